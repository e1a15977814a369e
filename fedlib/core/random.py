"""Random streams keyed by what they are for, so that nothing shifts when something else changes."""

import zlib

import numpy as np


def stream(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """An independent generator for (seed, purpose, round, client, ...)."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *key])


def torch_seed(seed: int, purpose: str, *key: int) -> int:
    """A seed for torch's own generators from the same kind of key."""
    return int(stream(seed, purpose, *key).integers(2**62))
