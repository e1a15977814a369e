"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021)."""

from typing import Any, Literal

import torch
from torch import Tensor

from fedlib.algorithms.base import Client, Local, Round, Server, register
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Layout


@register("feddyn")
class FedDyn(Local, Server):
    """Local loss - <h_k, w> + (alpha/2) ||w - w_g||^2, whose optima agree with the global one as rounds go by.

    After training h_k <- h_k - alpha (w_k - w_g), the client's gradient at its optimum. The server keeps
    h <- h - (alpha/N) sum_k (w_k - w_g), over all N clients, and sends mean_k w_k - h/alpha (Algorithm 1).

    ``authors`` (their code): alpha is divided by the client's size relative to the mean. ``released`` (FedLAW's
    code): the norm is not squared, clients count by size, also in h, and buffers come from the first client.
    The authors score the plain mean of the clients (``score=mean``); FedLAW scores the model that is sent.
    Every client that ever took part keeps one vector as long as the model (1,000 clients with SimpleCNN: 0.5 GB);
    alpha = 0 switches the method off.
    """

    alpha: float | None = None  # 0.01, or 0.001 as released
    variant: Literal["paper", "authors", "released"] = "paper"
    score: Literal["sent", "mean"] = "sent"

    def __post_init__(self):
        if self.alpha is not None and self.alpha < 0:
            raise FedlibError(f"feddyn(alpha=…) must not be negative; got {self.alpha}.")

    @property
    def weights(self) -> str:
        return "size" if self.variant == "released" else "uniform"

    def strength(self, c: Client | None = None) -> float:
        alpha = self.alpha if self.alpha is not None else 0.001 if self.variant == "released" else 0.01
        return alpha / c.relative_size if c and self.variant == "authors" else alpha

    def begin(self, c: Client) -> None:
        c.memo["feddyn"] = c.state.get("feddyn", torch.zeros_like(c.theta))  # h_k

    def gradient(self, c: Client) -> None:
        drift, alpha = c.theta - c.anchor, self.strength(c)
        if self.variant == "released":  # of (alpha/2) ||w - w_g||, which has no direction where it is 0
            drift *= 0.5 / drift.norm().clamp(min=torch.finfo(drift.dtype).tiny)
        c.grad.sub_(c.memo["feddyn"]).add_(drift, alpha=alpha)

    def end(self, c: Client) -> None:
        if alpha := self.strength(c):
            c.state["feddyn"] = c.memo["feddyn"] - alpha * (c.theta - c.anchor)

    def step(self, r: Round) -> Tensor:
        if not self.strength():
            return r.aggregate
        if self.variant == "released":
            r.aggregate_buffers, drift = r.client_buffers[0], r.aggregate - r.theta
        else:
            drift = (r.thetas.sum(0) - len(r.ids) * r.theta) / r.clients
        if self.score == "mean":
            r.state["mean"] = r.aggregate
        h = r.state["h"] = r.state.get("h", 0.0) - self.strength() * drift
        return r.aggregate - h / self.strength()

    def evaluated(self, theta: Tensor, layout: Layout, state: dict[str, Any]) -> Tensor:
        return state.get("mean", theta)
