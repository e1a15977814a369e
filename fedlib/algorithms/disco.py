"""FedDisco: federated learning with discrepancy-aware collaboration (Ye et al., ICML 2023)."""

from typing import Literal

import torch
from torch import Tensor

from fedlib.algorithms.base import Round, Weighting, register
from fedlib.core.errors import FedlibError


@register("feddisco")
class FedDisco(Weighting):
    """w_k proportional to relu(n_k - a d_k + b); d_k: how far client k's classes are from evenly spread.

    n_k are the weights before it, by default the shares of the data. The released code rescales the Kullback-Leibler
    divergences (and only them) to sum to one over the cohort; ``variant="paper"`` leaves them as they are.
    """

    metric: Literal["kl", "l2", "l1", "cosine"] = "kl"
    a: float = 0.5  # FedLWS's repository has 0.1
    b: float = 0.1
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self):
        if self.a < 0:
            raise FedlibError(f"feddisco(a=…) must not be negative; got {self.a}.")

    def weigh(self, r: Round, weights: Tensor) -> Tensor:
        (counts,) = r.need("counts")
        d = self.discrepancy(torch.as_tensor(counts, dtype=weights.dtype, device=weights.device))
        adjusted = (weights - self.a * d.view(-1, *[1] * (weights.ndim - 1)) + self.b).relu()
        if not bool((adjusted.sum(0) > 0).all()):
            raise FedlibError(
                f"feddisco(a={self.a}, b={self.b}) leaves no client any weight, since a * d_k exceeds n_k + b for all; "
                "choose a smaller a or a larger b."
            )
        return adjusted / adjusted.sum(0)

    def discrepancy(self, counts: Tensor) -> Tensor:
        """d_k between each row of class counts, as shares, and the uniform distribution."""
        p = counts / counts.sum(1, keepdim=True)
        u = 1 / p.shape[1]
        if self.metric == "kl":
            d = torch.special.xlogy(p, p / u).sum(1)
            # clients that all have even classes stay at 0
            return d / d.sum().clamp(min=1e-12) if self.variant == "released" else d
        if self.metric == "cosine":
            return 1 - p.sum(1) * u / (p.norm(dim=1) * p.shape[1] ** -0.5)
        return (p - u).norm(p=2 if self.metric == "l2" else 1, dim=1)
