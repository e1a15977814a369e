"""The server's own data: test samples set aside as its proxy set."""

import numpy as np

from fedlib.core.errors import FedlibError
from fedlib.core.random import stream
from fedlib.core.registry import Registry, canonical

PROXIES = Registry("proxy")


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
                f"The proxy {canonical(proxy)} takes {wanted[c]} samples of class {c}, but there are only {len(pool)}; "
                "take a smaller one."
            )
        chosen.append(pool[: wanted[c]])
    indices = np.sort(np.concatenate(chosen))
    if len(indices) == len(y):
        raise FedlibError(f"The proxy {canonical(proxy)} leaves no test sample to score on; take a smaller one.")
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
