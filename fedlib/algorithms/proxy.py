"""What server methods that learn from a proxy set share: their parameters and their passes over it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from types import SimpleNamespace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedlib.algorithms.base import Round, Server
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.random import stream, torch_seed
from fedlib.core.registry import canonical
from fedlib.models.base import eval_for_gradients


@dataclass(frozen=True, kw_only=True)
class OnProxy(Server):
    """A server part that passes over the proxy set. What is left at None is the variant's own (``defaults``)."""

    variant: Literal["paper", "released"] = "paper"
    epochs: int | None = None  # passes over the proxy set
    optimizer: str | None = None
    lr: float | None = None
    batch: int = 128  # the released code's; the paper is silent
    sampling: Literal["shuffled", "balanced", "fixed"] = "shuffled"  # balanced: every class alike (FedLAW Table 6)
    defaults: ClassVar[dict[str, dict]]
    needs_proxy = True

    def __post_init__(self):
        if self.optimizer is not None:
            object.__setattr__(self, "optimizer", canonical(OPTIMIZERS.make(self.optimizer)))
        for name, value in self.defaults[self.variant].items():
            if getattr(self, name) == value:
                object.__setattr__(self, name, None)  # one written form, so one id
        if self.resolved.epochs < 1 or self.batch < 1 or not self.resolved.lr > 0:
            raise FedlibError(f"{self.name} needs epochs and batch of at least 1 and a positive lr.")

    @cached_property
    def resolved(self) -> SimpleNamespace:
        """The parameters after the variant has filled in what was left open."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return SimpleNamespace(**given | {k: v for k, v in self.defaults[self.variant].items() if given[k] is None})

    def passes(self, r: Round, epochs: int, rng: np.random.Generator) -> Iterator[list[Tensor]]:
        """Every epoch's batches, as indices into the proxy set."""
        labels = r.context["proxy"][1].cpu().numpy()
        share, n = 1 / np.bincount(labels)[labels], len(labels)
        orders = np.empty((epochs, n), dtype=np.int64)
        for order in orders:
            if self.sampling == "balanced":
                order[:] = rng.choice(n, n, p=share / share.sum())
            else:
                order[:] = rng.permutation(n) if self.sampling == "shuffled" else np.arange(n)
        for order in torch.from_numpy(orders).to(r.theta.device):  # all at once: every transfer waits for a card
            yield order.split(self.batch)


def proxy_stream(r: Round) -> np.random.Generator:
    return stream(r.context["seed"], "proxy batches", r.number)


@contextmanager
def mode(r: Round, flat: FlatModel, train: bool) -> Iterator[None]:
    """The server's model in train or eval mode, with dropout keyed by the round; the mode it was in comes back."""
    before = flat.model.training
    torch.manual_seed(torch_seed(r.context["seed"], "proxy dropout", r.number))
    flat.model.train() if train else eval_for_gradients(flat.model)
    try:
        yield
    finally:
        flat.model.train(before)
