"""MOON: model-contrastive federated learning (Li et al., CVPR 2021)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.algorithms.base import Batch, Client, Local, register
from fedlib.core.errors import FedlibError


@register("moon")
class Moon(Local):
    """Local loss - mu log(e^(cos(z, z_g)/T) / (e^(cos(z, z_g)/T) + e^(cos(z, z_prev)/T))): features turn to the
    global model's and away from those of the client's own model of its last round.

    z are the penultimate features; the paper puts a projection head on them, FedDW's code (``released``, mu = 5) does
    not. The term is left out until a client has a previous model; a previous model equal to the global one would
    have no gradient either. Every client that ever took part keeps its last model.
    """

    uses_features = True
    mu: float | None = None  # 1, or 5 as released
    temperature: float = 0.5
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self):
        if (self.mu is not None and self.mu < 0) or self.temperature <= 0:
            raise FedlibError("moon(…) needs mu >= 0 and temperature > 0.")

    def strength(self) -> float:
        return self.mu if self.mu is not None else 5.0 if self.variant == "released" else 1.0

    def begin(self, c: Client) -> None:
        if "moon" in c.state and self.strength():
            c.memo["moon"] = Extractor(c.model), snapshot(c.model), c.state["moon"]

    def loss(self, c: Client, batch: Batch) -> Tensor | None:
        if "moon" not in c.memo:
            return None
        extractor, *frozen = c.memo["moon"]
        others = [extractor.of(tensors, batch.x) for tensors in frozen]
        cosines = torch.stack([F.cosine_similarity(batch.features, z) for z in others], 1)
        return self.strength() * -F.log_softmax(cosines / self.temperature, 1)[:, 0].mean()

    def end(self, c: Client) -> None:
        if self.strength():
            c.state["moon"] = snapshot(c.model)


class Extractor(nn.Module):
    """The features a model would have with other tensors in place of its own; nothing is copied."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.features(x)

    @torch.no_grad()
    def of(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        training = self.model.training
        self.model.eval()  # a fixed model: no dropout, and BatchNorm's own statistics
        z = torch.func.functional_call(self, {f"model.{name}": t for name, t in tensors.items()}, (x,))
        self.model.train(training)
        return z


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}
