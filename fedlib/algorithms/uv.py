"""FedUV: uniformity and variance (Son et al., CVPR 2024)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms.base import Batch, Client, Local, register
from fedlib.core.errors import FedlibError


@register("feduv")
class FedUV(Local):
    """Local loss + variance * mean_c max(0, s - std p_c) + uniformity * mean_{i<j} exp(-||z_i - z_j||^2 / median).

    The classifier's probabilities p_c are to vary over a batch as those of balanced data do, where the standard
    deviation is s = 1/sqrt(C); the penultimate features z are to spread evenly (a Gaussian kernel as wide as the median
    squared distance). A batch of one sample has neither, and a batch whose features coincide no kernel.
    """

    variance: float = 2.5
    uniformity: float = 0.5

    def __post_init__(self):
        if min(self.variance, self.uniformity) < 0:
            raise FedlibError("feduv(…) needs variance >= 0 and uniformity >= 0.")

    def loss(self, c: Client, batch: Batch) -> Tensor | None:
        if len(batch.y) < 2:
            return None
        p = batch.logits.softmax(1)
        loss = self.variance * F.relu(p.shape[1] ** -0.5 - p.std(0)).mean()
        square = F.pdist(batch.features).square()
        if len(apart := square[square != 0]):
            loss = loss + self.uniformity * torch.exp(-square / apart.median()).mean()
        return loss
