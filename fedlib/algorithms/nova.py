"""FedNova: normalised averaging (Wang et al., NeurIPS 2020)."""

import torch
from torch import Tensor

from fedlib.algorithms.base import Client, Local, Round, Server, register
from fedlib.core.errors import FedlibError


@register("fednova")
class FedNova(Local, Server):
    """w_g + tau_eff sum_k p_k (w_k - w_g) / a_k: who took more steps has no more say.

    a_k says how far a client's steps carry it: their number tau, or under SGD with momentum m
    (tau - m (1 - m^tau) / (1 - m)) / (1 - m). tau_eff = sum_k p_k a_k, and p_k are the weights before it.
    """

    def begin(self, c: Client) -> None:
        c.memo["fednova"] = 0

    def gradient(self, c: Client) -> None:
        c.memo["fednova"] += 1

    def end(self, c: Client) -> None:
        m, tau = c.momentum, c.memo["fednova"]
        c.uploads["fednova"] = (tau - m * (1 - m**tau) / (1 - m)) / (1 - m)

    def step(self, r: Round) -> Tensor:
        if r.weights.ndim > 1:
            raise FedlibError("fednova normalises whole models; combine it with one weight per client, not per layer.")
        a = torch.as_tensor(r.sent("fednova")).to(r.weights)
        effective = torch.dot(r.weights, a)
        r.log("tau_eff", effective)
        change = r.weights * (effective / a - 1)  # beside the plain average, so that other server parts keep theirs
        return r.aggregate + r.server_lr * (change @ r.updates)
