"""Every algorithm, one short file each."""

from fedlib.algorithms import (  # noqa: F401  (importing registers them)
    avg,
    awa,
    decay,
    disco,
    distill,
    dw,
    dyn,
    fedopt,
    gamma,
    lap,
    law,
    ldawa,
    lws,
    moon,
    nova,
    prox,
    scaffold,
    uv,
)
from fedlib.algorithms.base import ALGORITHMS, Algorithm, Batch, Client, Local, Round, Server, Weighting, register

__all__ = ["ALGORITHMS", "Algorithm", "Batch", "Client", "Local", "Round", "Server", "Weighting", "register"]
