"""Adaptive weight decay moved to the server, as FedLWS Table 6 compares with.

Both methods were made for SGD; FedLWS says that it adapted them to aggregation but not how, and released no code.
Our adaptation: the gradient of a round is the negative averaged update, g = w_g - sum_k lambda_k w_k, its learning
rate is 1, and the decay acts on the weights the round started from: w_g <- w_g - g - decay * w_g. The default
constants are our choice too, after the originals' as far as we know them.
"""

import torch
from torch import Tensor

from fedlib.algorithms.base import Round, Server, register
from fedlib.core.errors import FedlibError


@register("awd")
class AWD(Server):
    """decay = lambda_awd ||g|| / ||w||, smoothed over time, one for the whole model (Ghiasi et al., 2023)."""

    strength: float = 0.022  # lambda_awd
    smoothing: float = 0.1  # the share of the past in the running mean of the decay, which starts at 0

    def __post_init__(self):
        if self.strength < 0 or not 0 <= self.smoothing < 1:
            raise FedlibError("awd(…) needs strength >= 0 and smoothing in [0, 1).")

    def step(self, r: Round) -> Tensor:
        norm = r.theta.norm()
        now = float(self.strength * (r.theta - r.aggregate).norm() / norm) if norm > 0 else 0.0
        decay = r.state["decay"] = self.smoothing * r.state.get("decay", 0.0) + (1 - self.smoothing) * now
        r.log("decay", decay)
        return r.aggregate - decay * r.theta


@register("adadecay")
class AdaDecay(Server):
    """decay * 2 / (1 + exp(-alpha n)) for each weight, n its |g| standardised in its layer (Nakamura and Hong, 2019).

    Weights that moved much decay up to twice as much, those that rested hardly at all.
    """

    decay: float = 0.0005
    alpha: float = 4.0

    def __post_init__(self):
        if self.decay < 0 or self.alpha < 0:
            raise FedlibError("adadecay(…) needs decay >= 0 and alpha >= 0.")

    def step(self, r: Round) -> Tensor:
        out, means = r.aggregate.clone(), {}
        for layer in r.layout.layers:
            s = layer.slice
            size = (r.theta[s] - r.aggregate[s]).abs()
            n = (size - size.mean()) / size.std(correction=0).clamp(min=1e-12)  # a layer at rest: all alike
            factor = self.decay * 2 * torch.sigmoid(self.alpha * n)
            out[s] -= factor * r.theta[s]
            means[layer.name] = factor.mean()
        r.log_each("decay", means)
        return out
