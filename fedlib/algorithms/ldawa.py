"""L-DAWA: layer-wise divergence-aware weight aggregation (Rehman et al., ICCV 2023)."""

from typing import Literal

import torch
from torch import Tensor

from fedlib.algorithms.base import Round, Weighting, register, start_weights
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Entry


@register("ldawa")
class LDAWA(Weighting):
    """Layer by layer (1/K) sum_k cos(w_k, w_g) w_k: who turned away from the global model counts less.

    The cosines are not normalised and sizes play no part, so the aggregate shrinks wherever clients turn: L-DAWA is
    a layer-wise gamma too. The released code takes every tensor of the state_dict for a layer, BatchNorm's
    statistics included, and averages scalars alike; a tensor that is all zero has no direction (there the
    released code yields NaN; here such a layer is averaged alike).
    """

    warmup: int = 0  # first rounds that average by size instead
    variant: Literal["paper", "released"] = "paper"
    fresh = True

    def __post_init__(self):
        if self.warmup < 0:
            raise FedlibError(f"ldawa(warmup=…) counts rounds; got {self.warmup}.")

    @property
    def by(self) -> str:
        return "layer" if self.variant == "paper" else "tensor"

    def weigh(self, r: Round, weights: Tensor) -> Tensor:
        if r.number <= self.warmup:
            return start_weights("size", r.sizes)
        if self.variant == "paper":
            columns = [cosines(r.thetas[:, x.slice], r.theta[x.slice]) for x in r.layout.layers]
            each = zip(r.layout.layers, columns, strict=True)
            r.log_each("cosine", {layer.name: column.mean() for layer, column in each})
        else:
            columns = [self.of_tensor(r, e) for e in r.layout.entries]
        return torch.stack(columns, 1) / len(r.ids)

    def of_tensor(self, r: Round, e: Entry) -> Tensor:
        clients, anchor = (r.client_buffers, r.buffers) if e.buffer else (r.thetas, r.theta)
        return cosines(clients[:, e.slice], anchor[e.slice]) if e.shape else torch.ones_like(r.sizes)


def cosines(rows: Tensor, anchor: Tensor) -> Tensor:
    """cos(row, anchor) for every row; 1 where either has no direction."""
    norms = rows.norm(dim=1) * anchor.norm()
    return torch.where(norms > 0, rows @ anchor / norms, 1.0)
