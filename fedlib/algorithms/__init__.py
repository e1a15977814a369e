"""Every algorithm, one short file each."""

from fedlib.algorithms import avg, decay, disco, fedopt, gamma, lap, ldawa, lws, prox  # noqa: F401  (importing registers them)
from fedlib.algorithms.base import ALGORITHMS, Algorithm, Batch, Client, Local, Round, Server, Weighting, register

__all__ = ["ALGORITHMS", "Algorithm", "Batch", "Client", "Local", "Round", "Server", "Weighting", "register"]
