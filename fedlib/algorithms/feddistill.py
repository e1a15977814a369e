"""FedDistill+: federated distillation (Jeong et al., 2018) on top of averaging, a baseline of FedDW's."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms.base import Batch, Client, Local, Round, Server, register
from fedlib.algorithms.dw import mean_soft_labels, soft_labels
from fedlib.core.errors import FedlibError


@register("feddistill")
class FedDistill(Local, Server):
    """Local loss + strength * mean_i KL(Omega_{y_i} || p_i): predictions follow the mean soft label of their class.

    Omega is FedDW's SL matrix, over all clients of the round, the identity at the start; models are averaged (the "+").
    ``released`` (FedDW's code): the divergence is given p where log p belongs, which makes its gradient -Omega_y by p,
    and Omega is half the old one, half the mean over all rounds so far.
    """

    strength: float = 1.0
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self):
        if self.strength < 0:
            raise FedlibError(f"feddistill(strength=…) must not be negative; got {self.strength}.")

    def begin(self, c: Client) -> None:
        c.memo["feddistill"] = c.received.get("feddistill", torch.eye(c.classes, device=c.theta.device))

    def loss(self, c: Client, batch: Batch) -> Tensor | None:
        if not self.strength:
            return None
        guess = batch.logits.softmax(1) if self.variant == "released" else batch.logits.log_softmax(1)
        return self.strength * F.kl_div(guess, c.memo["feddistill"][batch.y], reduction="batchmean")

    def end(self, c: Client) -> None:
        c.uploads["soft_labels"], c.uploads["class_counts"] = soft_labels(c)

    def step(self, r: Round) -> Tensor:
        r.broadcast["feddistill"] = mean_soft_labels(r, self.variant)
        return r.aggregate
