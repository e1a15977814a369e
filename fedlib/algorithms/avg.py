"""FedAvg (McMahan et al., 2017)."""

from typing import Literal

from torch import Tensor

from fedlib.algorithms.base import Round, Weighting, register, start_weights


@register("fedavg")
class FedAvg(Weighting):
    """Average the clients' models, each by its share of the data or all alike."""

    weights: Literal["size", "uniform"] = "size"
    fresh = True

    def weigh(self, r: Round, weights: Tensor) -> Tensor:
        return start_weights(self.weights, r.sizes)
