"""FedNova: normalised averaging (Wang et al., NeurIPS 2020)."""

import torch
from torch import Tensor

from fedlib.algorithms.base import Client, Local, Round, Server, register
from fedlib.errors import FedlibError


@register("fednova")
class FedNova(Local, Server):
    """w_g + tau_eff sum_k p_k (w_k - w_g) / a_k: who took more steps has no more say.

    a_k = ||a_k||_1 is how far a client's steps carry: their number tau, or under SGD with momentum m
    (tau - m (1 - m^tau) / (1 - m)) / (1 - m). tau_eff = sum_k p_k a_k, and p_k are the weights before it.
    """

    momentum: float = 0.0  # of the local SGD; what the run's optimizer says is to be repeated here

    def __post_init__(self):
        if not 0 <= self.momentum < 1:
            raise FedlibError(f"fednova(momentum=…) lies in [0, 1); got {self.momentum}.")

    def begin(self, c: Client) -> None:
        c.uploads["fednova"] = 0

    def gradient(self, c: Client) -> None:
        c.uploads["fednova"] += 1

    def step(self, r: Round) -> Tensor:
        if r.weights.ndim > 1:
            raise FedlibError("fednova normalises whole models; combine it with one weight per client, not per layer.")
        m, tau = self.momentum, torch.as_tensor(r.sent("fednova")).to(r.weights)
        a = (tau - m * (1 - m**tau) / (1 - m)) / (1 - m)
        effective = torch.dot(r.weights, a)
        r.log("tau_eff", effective)
        change = r.weights * (effective / a - 1)  # beside the plain average, so that other server parts keep theirs
        return r.aggregate + r.server_lr * (change @ r.updates)
