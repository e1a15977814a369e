"""Shrinking by a given factor, and by the best one in hindsight (FedLWS Figure 1; FedLAW Table 1)."""

import scipy  # its parts are imported when they are used, which keeps the start of a run short
import torch
from torch import Tensor

from fedlib.algorithms.base import Round, Server, register
from fedlib.algorithms.lws import spread
from fedlib.core.errors import FedlibError
from fedlib.models.base import evaluate


@register("gamma")
class FixedGamma(Server):
    """w_g = gamma * sum_k lambda_k w_k (FedLWS Eq. 2): one gamma, or one per layer. Buffers are only averaged."""

    gamma: float | tuple | list = 0.99  # FedLWS Figure 1(b) has (1.0, 0.99, 0.98, 0.97, 0.96) on five layers

    def __post_init__(self):
        each = [self.gamma] if isinstance(self.gamma, float) else list(self.gamma)
        if not each or not all(isinstance(g, int | float) and 0 < g < float("inf") for g in each):
            raise FedlibError(f"gamma(gamma=…) is a positive number or one per layer; got {self.gamma}.")
        if not isinstance(self.gamma, float):
            object.__setattr__(self, "gamma", tuple(map(float, each)))

    def step(self, r: Round) -> Tensor:
        if isinstance(self.gamma, float):
            r.log("gamma", self.gamma)
            return self.gamma * r.aggregate
        layers, out = r.layout.layers, r.aggregate.clone()
        if len(self.gamma) != len(layers):
            raise FedlibError(
                f"gamma(gamma=…) has {len(self.gamma)} factors but the model has {len(layers)} layers: "
                f"{', '.join(layer.name for layer in layers[:8])}{'…' * (len(layers) > 8)}."
            )
        for gamma, layer in zip(self.gamma, layers, strict=True):
            out[layer.slice] *= gamma
            r.log("gamma", gamma, key=layer.name)
        return out


@register("oracle_gamma")
class OracleGamma(Server):
    """The gamma that minimises the TEST loss of gamma * aggregate, to study what it depends on: not a method.

    FedLWS names no optimiser. Here: Brent's bounded search on the cross-entropy, to within ``precision``; a
    one-dimensional problem needs no learning rate. Eq. 5 asks for gamma < 1, hence the upper end. Logged besides
    gamma: tau (Eq. 4) and r = (1 - gamma) ||w_g|| / (gamma ||eta_g g_g||) (Eq. 5), both of the whole model.
    """

    low: float = 0.5
    high: float = 1.0
    precision: float = 0.001

    def __post_init__(self):
        if not 0 < self.low < self.high or not self.precision > 0:
            raise FedlibError("oracle_gamma(…) needs 0 < low < high and a positive precision.")

    def step(self, r: Round) -> Tensor:
        flat, (x, y) = r.need("model", "test")

        def loss(gamma: float) -> float:
            torch.mul(r.aggregate, gamma, out=flat.theta)
            flat.buffers.copy_(r.aggregate_buffers)
            return evaluate(flat.model, x, y)[1]

        bounds, options = (self.low, self.high), {"xatol": self.precision}
        found = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options=options)
        gamma = found.x if found.fun < loss(self.high) else self.high  # the search never tries the ends themselves
        r.log("gamma", gamma)
        r.log("tau", spread(r.thetas).mean())
        r.log("r", (1 - gamma) * r.theta.norm() / (gamma * (r.aggregate - r.theta).norm()))
        return gamma * r.aggregate
