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

    uses_features = True
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
        square = F.pdist(batch.features.float()).square()
        median, apart = median_apart(square)
        return loss + self.uniformity * apart * torch.exp(-square / median).mean()


def median_apart(square: Tensor) -> tuple[Tensor, Tensor]:
    """The (lower) median of what is not zero, and 1; or 1 and 0 where all is. No number is read from the device.

    Its gradient goes in equal parts to all that have its value, as that of ``Tensor.median`` does.
    """
    value, zeros = square.detach(), (square == 0).sum()
    middle = (zeros + (len(square) - zeros - 1).clamp(min=0) // 2).clamp(max=len(square) - 1)
    median = value.sort().values.index_select(0, middle.view(1))[0]
    apart = median > 0
    mine = value == median
    slope = ((square - value) * mine).sum() / mine.sum()  # zero, but its derivative is not
    return torch.where(apart, median + slope, 1.0), apart.to(square)
