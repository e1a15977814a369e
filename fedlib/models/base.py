"""What every model has in common: penultimate features and a linear classifier on top of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.errors import FedlibError
from fedlib.core.registry import Registry

MODELS = Registry("model")


class Net(nn.Module):
    """forward(x) = classifier(features(x)); methods that look at features or at the classifier rely on it.

    Every network brings its own ``features``.
    """

    classifier: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class MappingNet(Net):
    """FedDW's head: ``maps(x)``, then fc1 with ReLU and a linear fc2 onto 128 features."""

    def add_head(self, inputs: int, classes: int, bias: bool) -> None:
        self.fc1 = nn.Linear(inputs, 256)
        self.fc2 = nn.Linear(256, 128)
        self.classifier = nn.Linear(128, classes, bias=bias)

    def features(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(self.maps(x))))


def has_features(model: nn.Module) -> bool:
    """Whether it is features and a linear classifier on top, as ``Net`` is; any other module is taken as a whole."""
    return callable(getattr(model, "features", None)) and isinstance(getattr(model, "classifier", None), nn.Linear)


def image(name: str, shape: tuple[int, ...], smallest: int = 1) -> int:
    """The number of channels of an image shape, or a clear error."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise FedlibError(
            f"Model {name!r} takes images of shape (channels, height, width), at least {smallest} pixels a side; "
            f"got {tuple(shape)}. Choose another model or data set."
        )
    return shape[0]


def flat(net: nn.Module, shape: tuple[int, ...]) -> int:
    """How many numbers ``net.maps`` yields per image; in eval mode, so that BN and dropout stay untouched."""
    net.eval()
    with torch.no_grad():
        size = net.maps(torch.zeros(1, *shape)).shape[1]
    net.train()
    return size


def eval_for_gradients(model: nn.Module) -> None:
    """Eval mode in which gradients can be taken. cuDNN's RNNs have a backward pass in train mode only; having no
    dropout of their own, they compute the same in both."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.train()


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """The same for second derivatives, which cuDNN's RNNs do not have and PyTorch's own do."""
    eval_for_gradients(model)
    enabled, rnn = torch.backends.cudnn.enabled, any(isinstance(m, nn.RNNBase) for m in model.modules())
    torch.backends.cudnn.enabled = enabled and not rnn
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = enabled


@torch.inference_mode()
def evaluate(model: nn.Module, x: Tensor, y: Tensor, batch: int = 1000) -> tuple[float, float]:
    """(accuracy, mean cross-entropy) in eval mode, in large batches."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=y.device)  # read once, at the end: every read waits for a card
    for xb, yb in zip(x.split(batch), y.split(batch), strict=True):
        logits = model(xb)
        correct, loss = (logits.argmax(1) == yb).sum(), F.cross_entropy(logits, yb, reduction="sum")
        sums += torch.stack([correct.double(), loss.double()])
    correct, loss = sums.tolist()
    return correct / len(y), loss / len(y)
