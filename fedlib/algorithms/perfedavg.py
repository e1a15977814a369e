"""Per-FedAvg: a start from which one step is enough (Fallah, Mokhtari and Ozdaglar, NeurIPS 2020)."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms.base import Batch, Client, Local, register
from fedlib.algorithms.composition import Algorithm
from fedlib.core.errors import FedlibError
from fedlib.models.base import eval_for_gradients


@register("perfedavg")
class PerFedAvg(Local):
    """w <- w - beta grad f(w - alpha grad f(w; D); D'), the first-order form: the Hessian of f is left out.

    beta and the optimiser are the run's (the paper has plain SGD). D is the batch and D' the one before it, so that
    they are independent; the first is its own. ``released`` (FedDW's code): D' = D, to be run with sgd and lr=0.001.
    By ``adapt_steps`` of size alpha on all its data a client makes the global model its own, and these are scored (the
    paper takes one step); without, the global model is, as FedDW does. alpha = 0 as released is FedAvg.
    """

    alpha: float = 0.01
    adapt_steps: int = 0
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self):
        if self.alpha < 0 or self.adapt_steps < 0:
            raise FedlibError("perfedavg(…) needs alpha >= 0 and adapt_steps >= 0.")

    @property
    def adapts(self) -> bool:
        return self.adapt_steps > 0

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.locals[0] is not self:
            raise FedlibError("'perfedavg' replaces the gradient that other parts add to: put it before them.")
        if losing := [p.name for p in algorithm.locals[1:] if type(p).loss is not Local.loss]:
            raise FedlibError(f"{losing[0]!r} adds to the loss, which 'perfedavg' would count in half its steps only.")

    def loss(self, c: Client, batch: Batch) -> Tensor | None:
        before = c.memo.get("perfedavg", [batch])[-1]
        c.memo["perfedavg"] = [batch if self.variant == "released" else before, batch]

    def gradient(self, c: Client) -> None:
        start, other = c.theta.clone(), c.memo["perfedavg"][0]
        c.theta.sub_(c.grad, alpha=self.alpha)
        c.grad.zero_()
        F.cross_entropy(c.model(other.x), other.y).backward()
        c.theta.copy_(start)

    def adapt(self, c: Client) -> None:
        x, y = c.data
        eval_for_gradients(c.model)
        for _ in range(self.adapt_steps):
            c.grad.zero_()
            for xb, yb in zip(x.split(1000), y.split(1000), strict=True):
                (F.cross_entropy(c.model(xb), yb, reduction="sum") / len(y)).backward()
            c.theta.sub_(c.grad, alpha=self.alpha)
