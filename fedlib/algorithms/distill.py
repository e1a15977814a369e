"""Server methods that train the average on a proxy set: FedDF (Lin et al., 2020), FedBE (Chen and Chao, 2021) and
plain fine-tuning, as FedLAW compares them (Table 3; Appendix D.6).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms.base import Round, register
from fedlib.algorithms.proxy import OnProxy, mode, proxy_stream
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Entry, gather
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.random import torch_seed

PAPER = {"epochs": 100, "optimizer": "adam(beta1=0.5)", "lr": 0.001}  # no lr in the paper: FedDF's own
RELEASED = {"epochs": 20, "optimizer": "sgd(momentum=0.9, weight_decay=0.0005)", "lr": 0.08}


def fit(part: OnProxy, r: Round, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Train the aggregate by ``loss(logits, indices into the proxy)``; BN statistics follow, as in any training."""
    flat, (x, _) = r.need("model", "proxy")
    flat.load(r.aggregate, r.aggregate_buffers)
    optimizer = OPTIMIZERS.make(part.resolved.optimizer)
    if part.variant == "paper":
        moments = optimizer.state(flat.theta)
    else:  # the released server keeps one optimiser for the whole run
        moments = r.state.setdefault("moments", optimizer.state(flat.theta))
    with mode(r, flat, train=True):
        for batches in part.passes(r, part.resolved.epochs, proxy_stream(r)):
            for index in batches:
                flat.backward(loss(flat.model(gather(x, index)), index))
                optimizer.step(flat.theta, flat.grad, moments, part.resolved.lr)
    r.aggregate_buffers = flat.buffers.clone()
    return flat.theta.clone()


@register("server_ft")
class ServerFT(OnProxy):
    """Fine-tune the average on the labels of the proxy set; the paper found more than two epochs harmful."""

    defaults = {"paper": PAPER | {"epochs": 2}, "released": RELEASED}

    def step(self, r: Round) -> Tensor:
        _, (_, y) = r.need("model", "proxy")
        return fit(self, r, lambda logits, index: F.cross_entropy(logits, y[index]))


@register("feddf")
class FedDF(OnProxy):
    """Distil the clients into their average: KL to the softmax of their mean logits, without temperature."""

    defaults = {"paper": PAPER, "released": RELEASED}

    def teachers(self, r: Round) -> list[tuple[Tensor, Tensor]]:
        return list(zip(r.thetas, r.client_buffers, strict=True))

    def step(self, r: Round) -> Tensor:
        target = mean_logits(r, self.teachers(r)).softmax(1)

        def divergence(logits: Tensor, index: Tensor) -> Tensor:
            return F.kl_div(logits.log_softmax(1), target[index], reduction="batchmean")

        return fit(self, r, divergence)


@register("fedbe")
class FedBE(FedDF):
    """FedDF with more teachers: the average itself and draws from a Gaussian over the clients' models.

    FedLAW's code draws one, FedBE's authors ten. (That code also leaves the average and the draw in train mode, so
    that with BN they see batch statistics; here every teacher is in eval mode.)
    """

    samples: int = 1
    noise: float = 0.1  # of the released code: how many standard deviations a draw scatters

    def __post_init__(self):
        super().__post_init__()
        if self.samples < 0 or self.noise < 0:
            raise FedlibError("fedbe needs samples and noise of at least 0.")

    def teachers(self, r: Round) -> list[tuple[Tensor, Tensor]]:
        rng = torch.Generator().manual_seed(torch_seed(r.context["seed"], "fedbe", r.number))
        draws = [draw(r, rng, self.noise) for _ in range(self.samples)]
        return [(r.aggregate, r.aggregate_buffers), *super().teachers(r), *draws]


@torch.no_grad()
def mean_logits(r: Round, teachers: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The teachers' mean logits on the proxy set, each teacher in eval mode: they stay the same all round."""
    flat, (x, _) = r.need("model", "proxy")
    total = 0
    with mode(r, flat, train=False):
        for theta, buffers in teachers:
            flat.load(theta, buffers)
            total = total + torch.cat([flat.model(part) for part in x.split(1000)])
    return total / len(teachers)


def directions(r: Round, e: Entry) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of one tensor's updates, each scaled to length one, and their mean length."""
    old, clients = (r.buffers, r.client_buffers) if e.buffer else (r.theta, r.thetas)
    update = clients[:, e.slice] - old[e.slice]
    length = update.norm(dim=1, keepdim=True)
    unit = update / length.clamp(min=torch.finfo(length.dtype).tiny)  # a client that did not move has no direction
    mean = unit.mean(0)
    return mean, (unit.square().mean(0) - mean.square()).clamp(min=1e-5), length.mean()


def draw(r: Round, rng: torch.Generator, noise: float) -> tuple[Tensor, Tensor]:
    """One model w_g + length * (mean + noise * sqrt(variance) * eps), tensor by tensor, counters excepted."""
    theta, buffers = r.theta.clone(), r.buffers.clone()
    entries = [e for e in r.layout.entries if not e.name.endswith("num_batches_tracked")]
    sizes = [e.slice.stop - e.slice.start for e in entries]
    drawn = torch.cat([torch.randn(n, generator=rng) for n in sizes]).to(theta.device)  # one transfer
    for e, eps in zip(entries, drawn.split(sizes), strict=True):
        mean, variance, length = directions(r, e)
        tensor = (buffers if e.buffer else theta)[e.slice]
        tensor += length * (mean + noise * variance.sqrt() * eps)
        if e.name.endswith("running_var"):
            tensor.clamp_(min=0)
    return theta, buffers
