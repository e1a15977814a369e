"""The averaged update as a gradient for a server optimiser (Hsu et al., 2019; Reddi et al., ICLR 2021).

Delta = sum_k lambda_k w_k - w_g takes the place of the negative gradient. Buffers are averaged as always.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedlib.algorithms.base import Round, Server, register
from fedlib.core.errors import FedlibError


@register("fedavgm")
class FedAvgM(Server):
    """v <- momentum * v + Delta; w <- w + lr * v (Hsu et al., 2019)."""

    momentum: float = 0.9
    lr: float = 1.0

    def __post_init__(self):
        if not 0 <= self.momentum < 1 or self.lr <= 0:
            raise FedlibError("fedavgm(…) needs momentum in [0, 1) and lr > 0.")

    def step(self, r: Round) -> Tensor:
        v = r.state["v"] = self.momentum * r.state.get("v", 0.0) + (r.aggregate - r.theta)
        return r.theta + self.lr * v


@dataclass(frozen=True, kw_only=True)
class Adaptive(Server):
    """m <- beta1 m + (1 - beta1) Delta; v by method; w <- w + lr m / (sqrt(v) + tau) (Reddi et al., Algorithm 2).

    There is no bias correction; v starts at tau^2.
    """

    lr: float = 0.1
    beta1: float = 0.9
    tau: float = 0.001

    def __post_init__(self):
        lr, tau, _ = self.constants()
        if min(lr, tau) <= 0 or not 0 <= self.beta1 < 1 or not 0 <= getattr(self, "beta2", 0.0) < 1:
            raise FedlibError(f"{self.name}(…) needs lr > 0, tau > 0 and betas in [0, 1).")

    def constants(self) -> tuple[float, float, float]:
        """lr, tau and where v starts."""
        return self.lr, self.tau, self.tau**2

    def step(self, r: Round) -> Tensor:
        lr, tau, start = self.constants()
        delta = r.aggregate - r.theta
        m, v = r.state.get("m", torch.zeros_like(delta)), r.state.get("v", torch.full_like(delta, start))
        m = r.state["m"] = self.beta1 * m + (1 - self.beta1) * delta
        v = r.state["v"] = self.second(v, delta.square())  # what tells the three methods apart
        return r.theta + lr * m / (v.sqrt() + tau)


@register("fedadagrad")
class FedAdagrad(Adaptive):
    """v <- v + Delta^2."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@register("fedyogi")
class FedYogi(Adaptive):
    """v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)."""

    beta2: float = 0.99

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@register("fedadam")
class FedAdam(Adaptive):
    """v <- beta2 v + (1 - beta2) Delta^2. FedLAW's code starts v at 0, with lr 1 and tau 1e-5 (its eps)."""

    lr: float | None = None  # 0.1, or 1.0 as released
    tau: float | None = None  # 0.001, or 0.00001 as released
    beta2: float = 0.99
    variant: Literal["paper", "released"] = "paper"

    def constants(self) -> tuple[float, float, float]:
        lr, tau = (1.0, 1e-5) if self.variant == "released" else (0.1, 1e-3)
        lr, tau = lr if self.lr is None else self.lr, tau if self.tau is None else self.tau
        return lr, tau, 0.0 if self.variant == "released" else tau**2

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square
