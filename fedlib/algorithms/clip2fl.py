"""CLIP2FL: CLIP guides clients and server (Shi et al., AAAI 2024).

CReFF with two more terms. A client distils CLIP's zero-shot prediction, 100 cos(image, text) over the prompts "a photo
of a <class>", into its own at temperature T; the server pulls federated features to the text feature t of their class:

    client:  CE + distill * T^2 KL(softmax(clip / T) || softmax(logits / T))
    server:  mismatch + contrast * mean_v -log e^(v.t_y / tau) / sum_c e^(v.t_c / tau)
"""

import functools
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.algorithms.base import Batch, Client, Round, register
from fedlib.algorithms.creff import CReFF
from fedlib.core.errors import FedlibError
from fedlib.core.torchvision_import import torchvision
from fedlib.data import Dataset, data_dir


@register("clip2fl")
class CLIP2FL(CReFF):
    """CReFF under CLIP's supervision. Features need the length of CLIP's: 512 for ViT-B/32, as resnet8(width=8) has.

    CLIP sees every image once, enlarged to its own size; clients keep its logits. ``released`` is CReFF's, and in the
    server's term each text feature counts once per feature of its class, a feature's own copy left out below the line.
    """

    uses_features = True
    clip: str = "ViT-B-32-quickgelu"  # a folder <data directory>/clip/<name>, else open_clip's with OpenAI's weights
    distill: float = 1.0
    temperature: float = 3.0  # T
    contrast: float = 0.001
    contrast_temperature: float = 0.1  # tau

    def __post_init__(self):
        super().__post_init__()
        if min(self.distill, self.contrast) < 0 or min(self.temperature, self.contrast_temperature) <= 0:
            raise FedlibError("clip2fl needs distill and contrast of at least 0 and positive temperatures.")

    def begin(self, c: Client) -> None:
        if self.name not in c.state:
            dataset, mine = c.context["dataset"], c.context["indices"]
            text = self.text(dataset, c.layout.classifier.entries[0].shape[1]).to(c.theta.device)
            images = image_features(load_clip(self.clip, data_dir()), dataset.x_train[mine], c.theta.device)
            c.state[self.name] = 100 * images @ text.T
        super().begin(c)

    def loss(self, c: Client, batch: Batch) -> Tensor:
        clip, mine = c.state[self.name][batch.index], batch.logits
        p, log_q = (clip / self.temperature).softmax(1), (mine / self.temperature).log_softmax(1)
        return self.distill * self.temperature**2 * F.kl_div(log_q, p, reduction="batchmean")

    def objective(self, r: Round, v: Tensor, phi: Tensor, real: Tensor, present: Tensor) -> Tensor:
        text = self.text(*r.need("dataset"), v.shape[2]).to(v.device)
        term = contrast(v @ text.T / self.contrast_temperature, self.variant)
        return super().objective(r, v, phi, real, present) + self.contrast * term

    def text(self, dataset: Dataset, width: int) -> Tensor:
        """CLIP's feature of every class name, of length one."""
        features = text_features(self.clip, data_dir(), dataset.class_names)
        if dataset.x_train.ndim != 4 or features.shape[1] != width:
            raise FedlibError(
                f"clip2fl needs images and a model with as many features as CLIP ({features.shape[1]}), not {width}: "
                "choose another model, such as resnet8(width=8) for 512, or another clip."
            )
        return features


def contrast(scores: Tensor, variant: str) -> Tensor:
    """Cross-entropy of the scores (class, feature, class) of features against text features."""
    own = scores.diagonal(dim1=0, dim2=2).T
    below = scores.logsumexp(2)
    if variant == "released":  # log(m sum_c e^s_c - e^s_y) with m features per class
        below = below + torch.log(scores.shape[1] - (own - below).exp())
    return (below - own).mean()


@functools.cache
def load_clip(name: str, directory: Path) -> tuple[nn.Module, Callable]:
    """(model, tokenizer); its weights are read as plain tensors, never as code."""
    try:
        torchvision()  # which open_clip imports
        import open_clip
    except ImportError:
        hint = "pip install -e '.[clip]' in the clone, or leave clip2fl out"
        raise FedlibError(f"clip2fl needs open_clip: {hint}.") from None
    folder = directory / "clip" / name
    local = any(folder.glob("*.safetensors"))
    source = f"local-dir:{folder}" if local else name
    try:
        with torch.random.fork_rng(devices=[]):  # its random start, soon overwritten, must not shift a run's dropout
            model = open_clip.create_model(source, pretrained=None if local else "openai")
        return model.eval(), open_clip.get_tokenizer(source)
    except (OSError, RuntimeError, ValueError) as reason:
        raise FedlibError(
            f"CLIP {name!r} was neither found nor fetched ({reason}). Put open_clip_config.json and "
            f"open_clip_model.safetensors into {folder}, or choose an open_clip model with OpenAI's weights."
        ) from None


@functools.cache
@torch.no_grad()
def text_features(name: str, directory: Path, class_names: tuple[str, ...]) -> Tensor:
    model, tokenizer = load_clip(name, directory)
    prompts = tokenizer([f"a photo of a {c}" for c in class_names])
    return F.normalize(model.encode_text(prompts.to(model.logit_scale.device)))


@torch.no_grad()
def image_features(clip: tuple, images: Tensor, device: torch.device, batch: int = 100) -> Tensor:
    """Of images as bytes, each resized and normalised as CLIP was trained."""
    model, cfg = clip[0].to(device), clip[0].visual.preprocess_cfg
    size = cfg["size"] if isinstance(cfg["size"], (tuple, list)) else (cfg["size"],) * 2
    mean, std = (torch.tensor(cfg[key], device=device).view(3, 1, 1) for key in ("mean", "std"))
    features = []
    for part in images.split(batch):
        x = part.to(device).float().expand(-1, 3, -1, -1) / 255
        x = F.interpolate(x, size=size, mode="bicubic", antialias=True).clamp(0, 1)
        features.append(F.normalize(model.encode_image((x - mean) / std)))
    return torch.cat(features)
