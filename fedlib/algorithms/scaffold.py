"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020)."""

import torch
from torch import Tensor

from fedlib.algorithms.base import Client, Local, Round, Server, register


@register("scaffold")
class Scaffold(Local, Server):
    """Every local step follows g - c_k + c: the client's usual direction gives way to everybody's.

    Afterwards c_k becomes the mean of the client's gradients along its path. For plain SGD that is Algorithm 1's
    option II, c_k - c + (w_g - w_k) / (steps * lr), and it stays a gradient under momentum or Adam. The server
    adds (1/N) sum_k (c_k_new - c_k), over all N clients, to c and averages the clients alike. Every client that ever
    took part keeps one vector as long as the model, and sends one more each round.
    """

    weights = "uniform"

    def begin(self, c: Client) -> None:
        zero = torch.zeros_like(c.theta)
        own, common = c.state.get("scaffold", zero), c.received.get("scaffold", zero)
        c.memo["scaffold"] = {"correction": common - own, "sum": torch.zeros_like(zero), "steps": 0}

    def gradient(self, c: Client) -> None:
        memo = c.memo["scaffold"]
        memo["sum"] += c.grad
        memo["steps"] += 1
        c.grad += memo["correction"]

    def end(self, c: Client) -> None:
        new = c.memo["scaffold"]["sum"] / c.memo["scaffold"]["steps"]
        c.uploads["scaffold"] = new - c.state.get("scaffold", 0.0)
        c.state["scaffold"] = new

    def step(self, r: Round) -> Tensor:
        c = r.state.get("c", torch.zeros_like(r.theta)) + sum(r.sent("scaffold")) / r.clients
        r.state["c"] = r.broadcast["scaffold"] = c
        return r.aggregate
