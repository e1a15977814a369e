"""Samples set aside, and labels spoilt: the server's proxy set, clients' hold-out, corrupted clients."""

import numpy as np

from fedlib.data.partition import Partition
from fedlib.errors import FedlibError
from fedlib.random import stream
from fedlib.registry import Registry, written

PROXIES = Registry("proxy")
CORRUPTIONS = Registry("corruption")


def cut(text: str, y_test: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The test samples that become the server's proxy set, and the rest, on which every method is scored."""
    y = np.asarray(y_test)
    proxy = PROXIES.make(text)
    classes = int(y.max()) + 1
    wanted, rng = proxy.counts(classes), stream(seed, "proxy")
    chosen = []
    for c in range(classes):
        pool = rng.permutation(np.flatnonzero(y == c))
        if wanted[c] > len(pool):
            raise FedlibError(
                f"The proxy {written(proxy)} takes {wanted[c]} samples of class {c}, but there are only {len(pool)}; "
                "take a smaller one."
            )
        chosen.append(pool[: wanted[c]])
    indices = np.sort(np.concatenate(chosen))
    if len(indices) == len(y):
        raise FedlibError(f"The proxy {written(proxy)} leaves no test sample to score on; take a smaller one.")
    return indices, np.setdiff1d(np.arange(len(y)), indices)


@PROXIES.register("balanced")
class Balanced:
    """The same number of every class (FedLAW, which takes them from the test set)."""

    size: int = 200

    def counts(self, classes: int) -> np.ndarray:
        if self.size < classes or self.size % classes:
            raise FedlibError(f"balanced(size=…) is a multiple of the {classes} classes; got {self.size}.")
        return np.full(classes, self.size // classes)


@PROXIES.register("longtail")
class Longtail:
    """``size`` samples in all, falling off as rho^(-c/(C-1)) from the first class to the last (FedLAW Table 6)."""

    size: int = 200
    rho: float = 10.0

    def __post_init__(self):
        if not 1 <= self.rho < np.inf:
            raise FedlibError(f"longtail(rho=…) is at least 1; got {self.rho}.")

    def counts(self, classes: int) -> np.ndarray:
        if self.size < classes:
            raise FedlibError(f"longtail(size=…) is at least the {classes} classes; got {self.size}.")
        exact = self.rho ** (-np.arange(classes) / max(classes - 1, 1))
        exact *= self.size / exact.sum()
        counts = np.floor(exact).astype(int)
        short = self.size - counts.sum()  # goes to the largest remainders, so that the sum is the size
        counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
        return counts


@CORRUPTIONS.register("swap")
class Swap:
    """Two labels exchanged on a share of the clients, another random pair on each (FedLAW Table 8 leaves open
    which); taken from the classes a client holds, so that the exchange is felt."""

    fraction: float = 0.25

    def __post_init__(self):
        if not 0 <= self.fraction <= 1:
            raise FedlibError(f"swap(fraction=…) is a share of the clients, 0 to 1; got {self.fraction}.")

    def clients(self, clients: int, seed: int) -> np.ndarray:
        """Which clients are corrupted; a larger fraction with the same seed adds to them."""
        return np.sort(stream(seed, "corruption").permutation(clients)[: round(self.fraction * clients)])

    def apply(self, labels: np.ndarray, partition: Partition, seed: int) -> np.ndarray:
        """The labels after the exchange; the ones given are left as they are."""
        old = np.asarray(labels)
        new = old.copy()
        classes = partition.counts.shape[1]
        for k in self.clients(len(partition.indices), seed):
            rng, mine, held = stream(seed, "swap", int(k)), partition.indices[k], np.flatnonzero(partition.counts[k])
            if not len(held) or classes < 2:
                continue
            a = rng.choice(held)
            others = np.setdiff1d(held if len(held) > 1 else np.arange(classes), [a])
            b = rng.choice(others)
            new[mine[old[mine] == a]] = b
            new[mine[old[mine] == b]] = a
        return new


def corrupt(text: str, labels: np.ndarray, partition: Partition, seed: int) -> np.ndarray:
    """The training labels as the clients see them under the corruption that ``text`` names."""
    return CORRUPTIONS.make(text).apply(labels, partition, seed)


def holdout(indices: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """What a client still trains on when ``fraction`` of its samples, rounded down, is kept from it at random."""
    if not 0 <= fraction < 1:
        raise FedlibError(f"The client hold-out is a share from 0 to below 1; got {fraction}.")
    indices = np.asarray(indices)
    if not fraction:
        return indices
    kept_back = stream(seed, "holdout").permutation(len(indices))[: int(fraction * len(indices))]
    return np.delete(indices, kept_back)
