"""Every algorithm, one short file each."""

from fedlib.algorithms import (  # noqa: F401  (importing registers them)
    ala,
    alone,
    avg,
    awa,
    babu,
    clip2fl,
    creff,
    decay,
    disco,
    distill,
    dw,
    dyn,
    feddistill,
    fedopt,
    fpl,
    gamma,
    lap,
    law,
    ldawa,
    lws,
    moon,
    nova,
    per,
    perfedavg,
    proto,
    prox,
    rep,
    scaffold,
    uv,
)
from fedlib.algorithms.base import ALGORITHMS, Batch, Client, Local, Round, Server, Weighting, register
from fedlib.algorithms.composition import Algorithm

__all__ = ["ALGORITHMS", "Algorithm", "Batch", "Client", "Local", "Round", "Server", "Weighting", "register"]
