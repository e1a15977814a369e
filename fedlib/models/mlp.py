"""Fully connected networks."""

import math
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.errors import FedlibError
from fedlib.models.base import MODELS, Net


class MLPNet(Net):
    """Linear layers fc1, fc2, ... with ReLU, then the classifier."""

    def __init__(self, widths: tuple[int, ...], classes: int):
        super().__init__()
        self.depth = len(widths) - 1
        for i, (a, b) in enumerate(pairwise(widths), start=1):
            self.add_module(f"fc{i}", nn.Linear(a, b))
        self.classifier = nn.Linear(widths[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for i in range(1, self.depth + 1):
            x = F.relu(self.get_submodule(f"fc{i}")(x))
        return x


@MODELS.register("mlp")
class MLP:
    """784-200-200-10 on MNIST (199,210 parameters); ``hidden=64`` is a two-layer network of that width."""

    about = "fully connected: FedLAW (FashionMNIST), FedLWS (CIFAR-10); FedLap's two-layer network with hidden=64"
    hidden: int | tuple = (200, 200)  # FedLap prints no width

    def __post_init__(self):
        widths = self.hidden if isinstance(self.hidden, tuple) else (self.hidden,)
        if not all(type(w) is int and w > 0 for w in widths):
            raise FedlibError(f"mlp(hidden=…) is a width or a tuple of widths, all positive; got {self.hidden!r}.")
        if len(widths) == 1:  # one written form, so one id
            object.__setattr__(self, "hidden", widths[0])

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        hidden = self.hidden if isinstance(self.hidden, tuple) else (self.hidden,)
        return MLPNet((math.prod(shape), *hidden), classes)
