"""FedProx (Li et al., 2020)."""

from fedlib.algorithms.base import Client, Local, register
from fedlib.core.errors import FedlibError


@register("fedprox")
class FedProx(Local):
    """Local loss + (mu/2) ||w - w_g||^2, added as its gradient (FedLap Eq. 9)."""

    mu: float = 0.01

    def __post_init__(self):
        if self.mu < 0:
            raise FedlibError(f"fedprox(mu=…) must not be negative; got {self.mu}.")

    def gradient(self, c: Client) -> None:
        c.grad.add_(c.theta - c.anchor, alpha=self.mu)
