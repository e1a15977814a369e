"""The papers' networks by name. Every one has ``features(x)`` and a linear ``classifier``."""

import torch
from torch import nn

from fedlib.core.random import torch_seed
from fedlib.models import cnn, densenet, mlp, mobile, resnet, text, vit
from fedlib.models.base import MODELS, Net

__all__ = ["MODELS", "Net", "build"]
FAMILIES = (cnn, densenet, mlp, mobile, resnet, text, vit)  # importing them fills the registry


def build(text: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A freshly initialised model; the same seed gives the same weights, the global generator stays as it was."""
    entry = MODELS.make(text)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "model"))  # CPU only: CUDA's stay as they are
        return entry.build(tuple(shape), classes)
