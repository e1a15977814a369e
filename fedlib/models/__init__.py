"""The papers' networks by name. Every one has ``features(x)`` and a linear ``classifier``."""

import sys
from collections.abc import Callable

import torch
from torch import nn

from fedlib.core.errors import FedlibError, cause
from fedlib.core.random import torch_seed
from fedlib.core.registry import code_revision
from fedlib.models import cnn, densenet, mlp, mobile, projected, resnet, text, vit
from fedlib.models.base import MODELS, Net

__all__ = ["MODELS", "Net", "build", "made", "register_model"]
FAMILIES = (cnn, densenet, mlp, mobile, projected, resnet, text, vit)  # importing them fills the registry


def build(text: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A freshly initialised model; the same seed gives the same weights, the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "model"))  # CPU only: CUDA's stay as they are
        return made(text, shape, classes)


def register_model(name: str, build: Callable[[tuple[int, ...], int], nn.Module]) -> None:
    """Make ``build(shape, classes)``, which returns any module, a model of runs; its code is in their ids."""

    class Own:
        def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
            return build(shape, classes)

    Own.__doc__, Own.revision = build.__doc__ or "a model of one's own", code_revision(build)
    Own.__module__ = sys._getframe(1).f_globals.get("__name__", "__main__")  # whose it is: see whether workers know it
    MODELS.register(name)(Own)


def made(text: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model from torch's generator as it is, on torch's current device, or a sentence if it is too large for it."""
    entry = MODELS.make(text)
    try:
        return entry.build(tuple(shape), classes)
    except (RuntimeError, MemoryError, OverflowError) as error:
        why = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise FedlibError(f"{text} cannot be built for samples of shape {tuple(shape)}: {why}.") from None
    except Exception as error:
        if isinstance(error, FedlibError) or type(entry).__module__.partition(".")[0] == "fedlib":
            raise
        raise FedlibError(f"{text} cannot be built for samples of shape {tuple(shape)}: {cause(error)}.") from error
