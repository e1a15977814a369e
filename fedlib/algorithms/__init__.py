"""Every algorithm, one short file each."""

from fedlib.algorithms import avg, awa, decay, disco, distill, dyn, fedopt, gamma, lap, law, ldawa, lws, prox  # noqa: F401  (importing registers them)
from fedlib.algorithms.base import ALGORITHMS, Algorithm, Batch, Client, Local, Round, Server, Weighting, register

__all__ = ["ALGORITHMS", "Algorithm", "Batch", "Client", "Local", "Round", "Server", "Weighting", "register"]
