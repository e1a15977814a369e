"""The papers' networks by name. Every one has ``features(x)`` and a linear ``classifier``."""

import torch
from torch import nn

from fedlib.core.errors import FedlibError
from fedlib.core.random import torch_seed
from fedlib.models import cnn, densenet, mlp, mobile, resnet, text, vit
from fedlib.models.base import MODELS, Net

__all__ = ["MODELS", "Net", "build", "made"]
FAMILIES = (cnn, densenet, mlp, mobile, resnet, text, vit)  # importing them fills the registry


def build(text: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A freshly initialised model; the same seed gives the same weights, the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "model"))  # CPU only: CUDA's stay as they are
        return made(text, shape, classes)


def made(text: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model from torch's generator as it is, on torch's current device, or a sentence if it is too large for it."""
    entry = MODELS.make(text)
    try:
        return entry.build(tuple(shape), classes)
    except (RuntimeError, MemoryError, OverflowError) as error:
        why = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise FedlibError(f"{text} cannot be built for samples of shape {tuple(shape)}: {why}.") from None
