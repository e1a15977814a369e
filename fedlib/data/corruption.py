"""What can be wrong with clients' labels."""

import numpy as np

from fedlib.core.errors import FedlibError
from fedlib.core.random import stream
from fedlib.core.registry import Registry
from fedlib.data.partition import Partition

CORRUPTIONS = Registry("corruption")


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
