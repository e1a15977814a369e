"""How the training samples are shared out over the clients.

Each partition names the paper or released code it follows; the ones with released code reproduce it index
for index, so they keep its random stream (numpy's RandomState) and its order of draws.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from fedlib.core.errors import FedlibError
from fedlib.core.random import stream
from fedlib.core.registry import Registry

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
    if not 0 <= seed < 2**32:
        raise FedlibError(f"A seed is a whole number from 0 to 2**32 - 1; got {seed}.")
    if not 1 <= clients <= len(y):
        raise FedlibError(f"The number of clients is 1 to the number of samples, {len(y)}; got {clients}.")
    classes = classes or int(y.max()) + 1
    domains = None if domains is None else np.asarray(domains)
    indices = PARTITIONS.make(text).split(Labelled(y, clients, classes, domains), np.random.RandomState(seed))
    indices = [np.asarray(i, np.int64) for i in indices]
    counts = np.stack([np.bincount(y[i], minlength=classes) for i in indices])
    total = hashlib.sha256()
    for i in indices:
        total.update(len(i).to_bytes(8, "little") + i.astype("<i8").tobytes())
    return Partition(indices, counts, total.hexdigest()[:16])


@PARTITIONS.register("iid")
class Iid:
    """Shuffled and cut into parts that differ by at most one sample."""

    def split(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        return np.array_split(rng.permutation(len(data.y)), data.clients)


@PARTITIONS.register("shards")
class Shards:
    """Sorted by label, cut into chunks, ``per_client`` chunks each (FedLap: two of 200 or 300)."""

    per_client: int = 2
    chunk: int | None = None  # samples; None shares out all of them

    def __post_init__(self):
        if self.per_client < 1 or (self.chunk is not None and self.chunk < 1):
            raise FedlibError("shards(per_client=…, chunk=…) are whole numbers of at least 1.")

    def split(self, data: Labelled, rng: np.random.RandomState) -> Indices:
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


def _positive(name: str, **alphas: float | None) -> None:
    for key, alpha in alphas.items():
        if alpha is None or not 0 < alpha < np.inf:
            raise FedlibError(f"{name}({key}=…) needs a positive number, such as 0.1; got {alpha}.")


def _shares(alpha: float, clients: int, classes: int, rng: np.random.RandomState) -> np.ndarray:
    """Dirichlet shares, classes x clients."""
    shares = rng.dirichlet([alpha] * clients, classes)
    if not np.isfinite(shares).all():  # every gamma draw of a row fell below the smallest float
        raise FedlibError(f"A Dirichlet with alpha={alpha} cannot be drawn in floating point; take a larger alpha.")
    return shares


def _cut(pools: Indices, shares: np.ndarray, rng: np.random.RandomState) -> Indices:
    """Slice every class by its shares, each rounded on its own; the last client takes what remains."""
    clients = shares.shape[1]
    parts = []
    for pool, share in zip(pools, shares, strict=True):
        ends = np.round(share * len(pool)).astype(int).cumsum()[:-1]
        parts.append(np.split(pool, np.minimum(ends, len(pool))))
    dealt = [np.concatenate([part[k] for part in parts]) for k in range(clients)]
    for mine in dealt:
        rng.shuffle(mine)
    return dealt


def _shuffled(pools: Indices, rng: np.random.RandomState) -> Indices:
    for pool in pools:
        rng.shuffle(pool)
    return pools


@PARTITIONS.register("dirichlet")
class Dirichlet:
    """Every class shared out by a draw from Dir(alpha), as released with FedLAW, FedLWS and FedAWA: sizes
    are whatever comes, none is guaranteed, so at a small alpha a client can be empty."""

    alpha: float | None = None  # always written out: the papers use anything from 0.1 to 100

    def __post_init__(self):
        _positive("dirichlet", alpha=self.alpha)

    def split(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        pools = _shuffled(data.by_class(), rng)
        return _cut(pools, _shares(self.alpha, data.clients, data.classes, rng), rng)


@PARTITIONS.register("hybrid")
class Hybrid:
    """The first half of the clients by Dir(alpha1), the others by Dir(alpha2) on what is left (FedLAW)."""

    alpha1: float = 10.0
    alpha2: float = 0.1
    equal: bool = False  # drawn again until sizes differ little, then all are cut to the smallest (Fig. 12)

    def __post_init__(self):
        _positive("hybrid", alpha1=self.alpha1, alpha2=self.alpha2)

    def split(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        if not self.equal:
            return self.draw(data, rng)
        for _ in range(1000):
            dealt = self.draw(data, rng)
            smallest = min(map(len, dealt))
            if smallest >= 0.9 * len(data.y) / data.clients:
                return [mine[:smallest] for mine in dealt]  # each is shuffled
        raise FedlibError(
            f"No draw of hybrid(alpha1={self.alpha1}, alpha2={self.alpha2}) makes {data.clients} clients about equally "
            "large; take larger alphas or fewer clients."
        )

    def draw(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        half = data.clients // 2
        pools = _shuffled(data.by_class(), rng)
        first = _shares(self.alpha1, data.clients, data.classes, rng)[:, :half]
        second = _shares(self.alpha2, data.clients - half, data.classes, rng)
        left = 1 - first.sum(1, keepdims=True)
        return _cut(pools, np.hstack([first, left * second]), rng)


def _balanced(pools: Indices, alpha: float, clients: int, rng: np.random.RandomState) -> Indices:
    """Class by class by Dir(alpha), no more for a client that has an equal share; drawn again until all have 10."""
    equal = sum(map(len, pools)) / clients
    for _ in range(1000):
        dealt, sizes = [[] for _ in range(clients)], np.zeros(clients)
        for pool in pools:
            rng.shuffle(pool)
            share = rng.dirichlet([alpha] * clients) * (sizes < equal)
            if not share.sum() > 0:
                break  # whoever still has room drew nothing
            pieces = np.split(pool, (share.cumsum()[:-1] / share.sum() * len(pool)).astype(int))
            sizes += [len(piece) for piece in pieces]
            for mine, piece in zip(dealt, pieces, strict=True):
                mine.append(piece)
        else:
            if sizes.min() >= 10:
                return [rng.permutation(np.concatenate(mine)) for mine in dealt]
    raise FedlibError(
        f"No draw from Dir({alpha}) leaves each of {clients} clients 10 of {round(equal * clients)} samples; take a "
        "larger alpha or fewer clients."
    )


@PARTITIONS.register("longtail_dirichlet")
class LongtailDirichlet:
    """Class c keeps n_c * rho^(-c/(C-1)) samples, which are then shared out by Dir(alpha) (FedLAW).

    CIFAR-10-LT and CIFAR-100-LT are cifar10 and cifar100 under this partition; CReFF's is the balanced one.
    """

    alpha: float | None = None
    rho: float = 10.0  # the largest class over the smallest
    balanced: bool = False  # clients of about equal size, none below 10 samples

    def __post_init__(self):
        _positive("longtail_dirichlet", alpha=self.alpha)
        if not 1 <= self.rho < np.inf:
            raise FedlibError(f"longtail_dirichlet(rho=…) is at least 1; got {self.rho}.")

    def split(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        pools = _shuffled(data.by_class(), rng)
        last = max(data.classes - 1, 1)
        pools = [pool[: int(len(pool) * (1 / self.rho) ** (c / last))] for c, pool in enumerate(pools)]
        if self.balanced:
            return _balanced(pools, self.alpha, data.clients, rng)
        return _cut(pools, _shares(self.alpha, data.clients, data.classes, rng), rng)


@PARTITIONS.register("feddw_dirichlet")
class FeddwDirichlet:
    """The Dirichlet split released with FedDW: file order, cut points rounded down; an empty client is given
    sample 0, which another client then holds as well."""

    alpha: float | None = None

    def __post_init__(self):
        _positive("feddw_dirichlet", alpha=self.alpha)

    def split(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        shares = _shares(self.alpha, data.clients, data.classes, rng)
        parts = [
            np.split(pool, (share.cumsum()[:-1] * len(pool)).astype(int))
            for pool, share in zip(data.by_class(), shares, strict=True)
        ]
        dealt = [np.concatenate([part[k] for part in parts]) for k in range(data.clients)]
        return [mine if len(mine) else np.array([0]) for mine in dealt]


@PARTITIONS.register("class_blocks")
class ClassBlocks:
    """Twelve clients of equal size: four hold the first half of the classes, four the other half, four all
    of them (FedLWS Fig. 5, FedAWA Fig. 2); every client is balanced over the classes it holds."""

    def split(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        pools = _shuffled(data.by_class(), rng)
        unit = min(map(len, pools)) // 12  # of a class: two units to each of its 4 clients, one to the last 4
        if data.clients != 12 or data.classes % 2 or not unit:
            raise FedlibError(
                "class_blocks is a split over exactly 12 clients of an even number of classes with at least 12 "
                f"samples each; got {data.clients} clients, {data.classes} classes."
            )
        dealt = [[] for _ in range(12)]
        for c, pool in enumerate(pools):
            block = 0 if c < data.classes // 2 else 4
            owners = [k for k in range(block, block + 4) for _ in range(2)] + [8, 9, 10, 11]
            for slot, k in enumerate(owners):
                dealt[k].append(pool[slot * unit : (slot + 1) * unit])
        return [np.concatenate(mine) for mine in dealt]


@PARTITIONS.register("domains")
class Domains:
    """Feature shift: clients are divided among the domains in order, and share their domain at random."""

    def split(self, data: Labelled, rng: np.random.RandomState) -> Indices:
        if data.domains is None:
            raise FedlibError("The partition 'domains' needs a data set that has domains; take another partition.")
        names = np.unique(data.domains)
        if data.clients < len(names):
            raise FedlibError(f"'domains' needs a client for each of the {len(names)} domains; got {data.clients}.")
        dealt = []
        for name, clients in zip(names, np.array_split(np.arange(data.clients), len(names)), strict=True):
            mine = np.flatnonzero(data.domains == name)
            dealt += np.array_split(rng.permutation(mine), len(clients))
        return dealt


def holdout(indices: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """What a client still trains on when ``fraction`` of its samples, rounded down, is kept from it at random."""
    if not 0 <= fraction < 1:
        raise FedlibError(f"The client hold-out is a share from 0 to below 1; got {fraction}.")
    indices = np.asarray(indices)
    if not fraction:
        return indices
    kept_back = stream(seed, "holdout").permutation(len(indices))[: int(fraction * len(indices))]
    return np.delete(indices, kept_back)
