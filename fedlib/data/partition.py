"""How the training samples are shared out over the clients.

Each partition names the paper or released code it follows; the ones with released code reproduce it index
for index, so they keep its random stream (numpy's RandomState) and its order of draws.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from fedlib.errors import FedlibError
from fedlib.registry import Registry

PARTITIONS = Registry("partition")
Indices = list[np.ndarray]


@dataclass(frozen=True)
class Partition:
    """Which samples each client holds. A client may be empty where the released split leaves it so."""

    indices: Indices
    counts: np.ndarray  # clients x classes
    fingerprint: str

    @property
    def sizes(self) -> np.ndarray:
        return self.counts.sum(1)


@dataclass(frozen=True)
class Labelled:
    """What a partition may look at."""

    y: np.ndarray
    clients: int
    classes: int
    domains: np.ndarray | None = None

    def by_class(self) -> Indices:
        return [np.flatnonzero(self.y == c) for c in range(self.classes)]


def split(
    text: str, labels: np.ndarray, clients: int, seed: int, domains: np.ndarray | None = None,
    classes: int | None = None,
) -> Partition:  # fmt: skip
    """Share the samples with these ``labels`` out over ``clients`` as ``text`` says, e.g. ``dirichlet(alpha=0.1)``."""
    y = np.asarray(labels)
    if not 1 <= clients <= len(y):
        raise FedlibError(f"The number of clients is 1 to the number of samples, {len(y)}; got {clients}.")
    classes = classes or int(y.max()) + 1
    domains = None if domains is None else np.asarray(domains)
    indices = PARTITIONS.make(text).deal(Labelled(y, clients, classes, domains), np.random.RandomState(seed))
    indices = [np.asarray(i, np.int64) for i in indices]
    counts = np.stack([np.bincount(y[i], minlength=classes) for i in indices])
    total = hashlib.sha256()
    for i in indices:
        total.update(len(i).to_bytes(8, "little") + i.astype("<i8").tobytes())
    return Partition(indices, counts, total.hexdigest()[:16])


@PARTITIONS.register("iid")
class Iid:
    """Shuffled and cut into parts that differ by at most one sample."""

    def deal(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        return np.array_split(rng.permutation(len(data.y)), data.clients)


@PARTITIONS.register("shards")
class Shards:
    """Sorted by label, cut into chunks, ``per_client`` chunks each (FedLap: two of 200 or 300)."""

    per_client: int = 2
    chunk: int | None = None  # samples; None shares out all of them

    def __post_init__(self):
        if self.per_client < 1 or (self.chunk is not None and self.chunk < 1):
            raise FedlibError("shards(per_client=…, chunk=…) are whole numbers of at least 1.")

    def deal(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        pieces = self.per_client * data.clients
        chunk = self.chunk or len(data.y) // pieces
        if chunk < 1 or pieces * chunk > len(data.y):
            raise FedlibError(
                f"{pieces} shards of {chunk or 'at least 1'} need {pieces * max(chunk, 1)} samples, "
                f"but there are {len(data.y)}; take fewer clients or smaller chunks."
            )
        dealt = rng.permutation(pieces).reshape(data.clients, self.per_client)
        order = np.argsort(data.y, kind="stable")
        return [np.concatenate([order[s * chunk : (s + 1) * chunk] for s in mine]) for mine in dealt]
