"""What is measured besides accuracy: small functions of a round, switched on by name.

``RunSpec(..., probes="spread+hessian(top=5, every=10)")`` is the written form. Probes are not part of a run's id. They
look at a round after its aggregation, draw from random streams of their own and leave the model as it was, so
a run has the same numbers with and without them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedlib.algorithms import Round
from fedlib.algorithms.base import average
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel, gather
from fedlib.core.random import stream
from fedlib.core.registry import Registry, canonical
from fedlib.core.spec import RunSpec
from fedlib.data import Dataset
from fedlib.data.partition import Partition

PROBES = Registry("probe")


class Fed(Protocol):
    """What a probe sees of the federation: its data, its clients, and the one model that all of them train."""

    spec: RunSpec
    flat: FlatModel
    data: Dataset
    classes: int
    x: Any  # all clients' training samples: a Tensor, or what stands for one
    y: Tensor
    indices: list[Tensor]  # which of them each client holds
    partition: Partition
    x_test: Tensor
    y_test: Tensor
    domain_test: Tensor | None
    proxy: tuple[Tensor, Tensor] | None

    def train_on(self, x: Tensor, y: Tensor, k: int, number: int, epochs: int) -> None:
        """Plain training of the model as it stands, in the batches client ``k`` has in that round."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Measures something after the aggregation of the rounds asked for.

    Every probe brings ``measure(fed, r)``: numbers, lists or dicts of numbers (by layer, say) of the round ``r`` in
    the federation ``fed``.
    """

    every: int | None = None  # rounds from one measurement to the next, the last always; None is only the last
    rounds: tuple | None = None  # these instead; one beyond the end stands for the last

    def __post_init__(self):
        if self.every is not None and self.every < 1:
            raise FedlibError(f"{self.name}(every=…) counts rounds; got {self.every}.")
        if self.rounds is not None and not (self.rounds and all(type(n) is int and n > 0 for n in self.rounds)):
            raise FedlibError(f"{self.name}(rounds=…) is a tuple of round numbers, such as (1, 50); got {self.rounds}.")

    def due(self, number: int, last: int) -> bool:
        if self.rounds:
            return number in self.rounds or number == last < max(self.rounds)
        return number == last or bool(self.every and number % self.every == 0)

    def check(self, spec: RunSpec) -> None:
        """Raise if this cannot be measured in such a run."""

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        """About how many training samples' time one measurement takes; ``train`` and ``test`` are set sizes."""
        return 0.0


def parts(text: str | None) -> list[Probe]:
    return PROBES.make_all(text) if text else []


def canonical_probes(text: str) -> str | None:
    """One text for one set of probes."""
    return "+".join(sorted({canonical(p) for p in parts(text)})) or None


def sections(text: str | None) -> dict[str, dict]:
    """Where a run keeps what its probes find, by probe."""
    return {canonical(p): {"revision": p.revision, "series": {}} for p in parts(text)}


def observe(fed: Fed, r: Round, sections: dict) -> Iterator[tuple[dict, dict]]:
    """(series, what was found) of every probe that is due after this round."""
    for text, section in sections.items():
        probe = PROBES.make(text)
        if probe.due(r.number, fed.spec.rounds):
            with preserve_model(fed.flat):
                found = probe.measure(fed, r)
            yield section["series"], {"round": r.number, **found}


@contextmanager
def preserve_model(flat: FlatModel) -> Iterator[None]:
    """Whatever happens to the model, its mode and torch's random numbers in here, nobody outside will know."""
    vectors, training = (flat.theta, flat.buffers, flat.grad), flat.model.training
    before = [v.clone() for v in vectors]
    with torch.random.fork_rng([flat.theta.device] if flat.theta.is_cuda else []):  # all cards would be opened else
        try:
            yield
        finally:
            for vector, old in zip(vectors, before, strict=True):
                vector.copy_(old)
            flat.model.train(training)


# What several probes need.


def round_significant(values: Tensor | ArrayLike) -> list | float:
    """Nested lists of four significant digits, to keep records small."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return [round_significant(v) for v in values] if isinstance(values, list | tuple) else float(f"{values:.4g}")


def by_id(r: Round) -> list[int]:
    """The rows of the cohort in the order of the clients' ids."""
    return sorted(range(len(r.ids)), key=r.ids.__getitem__)


def shares(r: Round) -> Tensor:
    """lambda_k, one per client: where a method has one per layer, their mean; they sum to one. float64."""
    lam = r.weights.double()
    lam = lam if lam.ndim == 1 else lam.mean(1)
    return lam / lam.sum()


def averaged(r: Round) -> Tensor:
    """What the server parts started from: sum_k lambda_k w_k, after the server's learning rate."""
    whole = r.weights.ndim == 1 or r.weights.shape[1] == len(r.layout.layers)
    theta, _ = average(r, r.weights, "layer" if whole else "tensor")
    return theta if r.server_lr == 1 else torch.lerp(r.theta, theta, r.server_lr)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """cos of every row of ``a`` with every row of ``b``, float64; 0 where a vector has no direction."""
    a, b = a.double(), b.double()
    norms = a.norm(dim=1)[:, None] * b.norm(dim=1)
    return torch.where(norms > 0, a @ b.T / norms, 0.0)


def draw(fed: Fed, purpose: str, samples: int | None, on: str) -> tuple[Tensor, Tensor]:
    """``samples`` of the test set or of all clients' training data, the same in every round; None is all."""
    x, y = (fed.x_test, fed.y_test) if on == "test" else (fed.x, fed.y)
    pool = torch.arange(len(y)) if on == "test" else torch.cat(fed.indices)
    if samples is not None and samples < len(pool):
        chosen = stream(fed.spec.seed, f"probe {purpose}").permutation(len(pool))[:samples]
        pool = pool[torch.from_numpy(chosen)]
    return gather(x, pool), y[pool]
