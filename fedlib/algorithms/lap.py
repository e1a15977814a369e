"""FedLap: a proximal term that adapts to every neuron of every layer (Charteros and Koutsopoulos)."""

from typing import Literal

import torch
from torch import Tensor

from fedlib.algorithms.base import Client, Local, register
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Entry


@register("fedlap")
class FedLap(Local):
    """Local loss + (q/2) sum_l <lambda_l, d_l>: neurons that turned away from the global model are pulled back.

    The paper gives no formula with q, only that q = 0 is FedAvg and q = 1 FedProx. ``reading="scale"`` multiplies
    Eq. 10 by q (q = 1 is Eq. 10 itself); ``reading="power"`` uses lambda^((1-q)/q), which is 1 at q = 1 (FedProx
    with mu = 1) and 0 as q goes to 0. Lambda is a constant of the gradient, renewed every epoch (Algorithm 1,
    line 16, so it is 0 in the first) or every batch; the distance is live. Algorithm 1, line 18 takes the gradient of
    the whole term, lambda included: ``through=True``. Clients are averaged alike (line 10).
    """

    q: float = 0.5
    reading: Literal["scale", "power"] = "scale"
    refresh: Literal["epoch", "batch"] = "epoch"
    through: bool = False  # whether the gradient goes through lambda, which then has to follow every batch
    weights = "uniform"

    def __post_init__(self):
        if self.through and (self.refresh, self.reading) != ("batch", "scale"):
            raise FedlibError("fedlap(through=True) differentiates Eq. 10 where it stands: write refresh=batch too.")
        if not 0 <= self.q <= 1:
            raise FedlibError(f"fedlap(q=…) lies in [0, 1]; got {self.q}.")

    def begin(self, c: Client) -> None:
        c.memo["pull"] = torch.zeros_like(c.theta)  # one factor per weight; biases are never pulled
        c.memo["drift"] = torch.empty_like(c.theta)

    def epoch(self, c: Client) -> None:
        if c.epoch > 0:
            self.renew(c)

    def renew(self, c: Client) -> None:
        for w in c.layout.weights:
            lam, _ = neurons(w.view(c.theta), w.view(c.anchor))
            w.view(c.memo["pull"]).copy_(spread(self.factor(lam), w))

    def factor(self, lam: Tensor) -> Tensor:
        if self.reading == "scale" or self.q == 0:
            return self.q * lam
        return lam.clamp(max=1) ** ((1 - self.q) / self.q)

    def gradient(self, c: Client) -> None:
        if self.q == 0:
            return
        if self.refresh == "batch":
            self.renew(c)
        drift = torch.sub(c.theta, c.anchor, out=c.memo["drift"])
        c.grad.addcmul_(c.memo["pull"], drift)
        if self.through:
            for w in c.layout.weights:
                w.view(c.grad).add_(turn(w.view(c.theta), w.view(c.anchor)), alpha=self.q / 2)

    def end(self, c: Client) -> None:
        terms = [neurons(w.view(c.theta), w.view(c.anchor)) for w in c.layout.weights]
        c.log("lap_term", sum(torch.dot(self.factor(lam), d) for lam, d in terms) / 2)
        c.log("lap_dissimilarity", torch.cat([lam for lam, _ in terms]).mean())


def neurons(local: Tensor, anchor: Tensor) -> tuple[Tensor, Tensor]:
    """Per input neuron (column of a Linear, input channel of a conv): lambda = 1 - cos and d (Eqs. 5 to 8)."""
    dims = [0, *range(2, local.ndim)]
    norms = (local.square().sum(dims) * anchor.square().sum(dims)).sqrt()
    cosine = torch.where(norms > 0, (local * anchor).sum(dims) / norms, 1.0)  # a dead neuron has no direction
    return (1 - cosine).clamp(0, 2), (local - anchor).square().sum(dims)


def turn(local: Tensor, anchor: Tensor) -> Tensor:
    """d_j times the gradient of lambda_j = 1 - cos(w_j, a_j) by w_j: cos w_j / |w_j|^2 - a_j / (|w_j| |a_j|)."""
    dims = [0, *range(2, local.ndim)]
    ours, theirs = (t.square().sum(dims, keepdim=True) for t in (local, anchor))
    norms = (ours * theirs).sqrt()
    cosine = (local * anchor).sum(dims, keepdim=True) / norms
    gradient = (local - anchor).square().sum(dims, keepdim=True) * (cosine * local / ours - anchor / norms)
    return torch.where(norms > 0, gradient, 0.0)


def spread(per_neuron: Tensor, w: Entry) -> Tensor:
    """One value per input neuron, shaped to broadcast over its outgoing weights."""
    return per_neuron.view(1, -1, *[1] * (len(w.shape) - 2))
