"""FedLAW, adaptive GWS and attentive LAW (Li et al., "Revisiting Weighted Aggregation in Federated Learning with
Neural Networks", ICML 2023): aggregation weights learned on a proxy set.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms.base import Round, register
from fedlib.algorithms.proxy import OnProxy, mode, proxy_stream
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel, gather
from fedlib.core.optimizers import OPTIMIZERS

LAMBDA, GAMMA, BOTH = slice(None, -1), slice(-1, None), slice(None)  # of the learned vector (x_1, ..., x_m, z)
SWA_START, SWA_LR, SWA_ANNEAL = 6, 0.05, 10  # the released code's; the paper names SWA only


@dataclass(frozen=True, kw_only=True)
class Learned(OnProxy):
    """w = gamma * sum_k lambda_k w_k (Eq. 3) by descent on L_proxy.

    ``bn="averaged"``: the loss sees the lambda-averaged BN statistics, as the evaluation will (no gradient flows
    through them). ``bn="proxy"``: the loss sees batch statistics and the running ones come from these passes.
    """

    function: Literal["exp", "quad"] = "exp"  # Eq. 10
    bn: Literal["averaged", "proxy"] | None = None
    defaults = {
        "paper": {"epochs": 100, "optimizer": "adam(beta1=0.5)", "lr": 0.01, "bn": "averaged"},
        "released": {"epochs": 20, "optimizer": "adam(beta1=0.5)", "lr": 0.01, "bn": "proxy"},
    }

    def start(self, lam: Tensor) -> Tensor:
        """(x, z) such that gamma = 1 and lambda is as given (Algorithm 1, line 10)."""
        if self.function == "exp":
            x = lam.clamp(min=1e-12).log()
        elif self.variant == "paper":
            x = lam.sqrt()
        else:  # the released quadratic start forgets the sizes
            x = torch.full_like(lam, len(lam) ** -0.5)
        return torch.cat([x, x.new_full((1,), 0.0 if self.function == "exp" else 1.0)])

    def weights(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """lambda (Eq. 10) and gamma > 0."""
        x, z = p[LAMBDA], p[-1]
        if self.function == "exp":
            return x.softmax(0), z.exp()
        return x.square() / x.square().sum(), z.square()

    def learn(self, r: Round, lam: Tensor, clients: Tensor, buffers: Tensor, stages: list) -> tuple[Tensor, Tensor]:
        """(lambda, new theta) from the weights ``lam``; a stage is (what it learns, epochs, with SWA or not).

        The network is differentiated at one flat theta; dL/d(gamma lambda_k) = <dL/dtheta, w_k>, and only the few
        learned numbers remain for autograd. What earlier server parts added to the average is carried along.
        """
        flat, (x, y) = r.need("model", "proxy")
        rest = r.aggregate - lam @ clients
        p, rng, backward = self.start(lam), proxy_stream(r), backpropagation(flat)
        optimizer, averaged, course = OPTIMIZERS.make(self.resolved.optimizer), self.resolved.bn == "averaged", []
        flat.buffers.copy_(r.buffers)
        with mode(r, flat, train=not averaged):
            for part, epochs, swa in stages:
                moments, visited = optimizer.state(p[part]), []
                for epoch, batches in enumerate(self.passes(r, epochs, rng)):
                    lr = swa_rate(self.resolved.lr, epoch) if swa else self.resolved.lr * 0.5 ** (epoch // 20)
                    for index in batches:
                        q = p.clone().requires_grad_()
                        lam, gamma = self.weights(q)
                        mix = gamma * torch.cat([lam, lam.new_ones(1)])
                        flat.theta.copy_(mix.detach()[:-1] @ clients + mix.detach()[-1] * rest)
                        if averaged:
                            flat.buffers.copy_(lam.detach() @ buffers)
                        backward(gather(x, index), y[index])
                        mix.backward(torch.cat([clients @ flat.grad, (rest @ flat.grad).view(1)]))
                        optimizer.step(p[part], q.grad[part], moments, lr)
                    if swa and epoch >= SWA_START:
                        visited.append(p[part].clone())
                    course.append(self.weights(p))
                if swa:
                    p[part] = torch.stack(visited).mean(0)
        lam, gamma = self.weights(p)
        r.aggregate_buffers = lam @ buffers if averaged else flat.buffers.clone()
        r.context["course"] = torch.stack([torch.cat([lam, gamma.view(1)]) for lam, gamma in course])  # for a probe
        r.log("gamma", gamma)
        return lam, gamma * (lam @ clients + rest)

    def learn_clients(self, r: Round, stages: list) -> Tensor:
        """Learn one weight per client, starting from the weights of the round."""
        clients = r.thetas if r.server_lr == 1 else torch.lerp(r.theta, r.thetas, r.server_lr)
        r.weights, theta = self.learn(r, r.weights / r.weights.sum(), clients, r.client_buffers, stages)
        log_weights(r)
        return theta

    def per_client(self, r: Round) -> None:
        if r.weights.ndim > 1:
            raise FedlibError(f"{self.name!r} learns one weight per client; it cannot follow weights per layer.")

    def enough_for_swa(self, epochs: int) -> None:
        if self.swa and epochs <= SWA_START:
            raise FedlibError(
                f"{self.name}(swa=True) averages from epoch {SWA_START + 1} of learning lambda on; give it more epochs."
            )


@register("law")
class Law(Learned):
    """FedLAW: gamma and lambda together (Eq. 8), or one after the other with SWA of lambda, half the epochs each."""

    swa: bool = False
    first: Literal["gamma", "weights"] | None = None  # of the two stages: gamma (the paper) or lambda (released)
    defaults = {
        "paper": Learned.defaults["paper"] | {"first": "gamma"},
        "released": Learned.defaults["released"] | {"first": "weights"},
    }

    def __post_init__(self):
        super().__post_init__()
        if self.first and not self.swa:
            raise FedlibError("law(first=…) is which of the two stages comes first; without swa=True there is one.")
        self.enough_for_swa(self.resolved.epochs // 2)

    def step(self, r: Round) -> Tensor:
        self.per_client(r)
        half = self.resolved.epochs // 2
        stages = [(GAMMA, half, False), (LAMBDA, half, True)]
        if self.resolved.first == "weights":
            stages.reverse()
        return self.learn_clients(r, stages if self.swa else [(BOTH, self.resolved.epochs, False)])


@register("gws")
class GWS(Learned):
    """Adaptive global weight shrinking: gamma alone (Eq. 5), on top of whatever made the aggregate."""

    def step(self, r: Round) -> Tensor:
        one = r.theta.new_ones(1)
        stages = [(GAMMA, self.resolved.epochs, False)]
        return self.learn(r, one, r.aggregate[None], r.aggregate_buffers[None], stages)[1]


@register("attentive")
class Attentive(Learned):
    """Attentive LAW: lambda alone, gamma = 1 (Eq. 7); after round ``until`` the weights are by size again."""

    swa: bool = False
    until: int | None = None  # early stopping near the critical point (Figure 5)

    def __post_init__(self):
        super().__post_init__()
        self.enough_for_swa(self.resolved.epochs)

    def step(self, r: Round) -> Tensor:
        self.per_client(r)
        if self.until is not None and r.number > self.until:
            log_weights(r)
            return r.aggregate
        return self.learn_clients(r, [(LAMBDA, self.resolved.epochs, self.swa)])


def swa_rate(lr: float, epoch: int) -> float:
    """A slow cosine decay, then a cosine from there to the constant rate at which SWA wanders."""
    base = lr * (1 + math.cos(math.pi * min(epoch, SWA_START) / 100)) / 2
    share = (1 - math.cos(math.pi * min(max(epoch - SWA_START, 0) / SWA_ANNEAL, 1))) / 2
    return base + (SWA_LR - base) * share


def log_weights(r: Round) -> None:
    for k, value in zip(r.ids, r.weights.tolist(), strict=True):
        r.log("lambda", round(value, 4), key=str(k))


def backpropagation(flat: FlatModel) -> Callable[[Tensor, Tensor], Tensor | None]:
    """A function (x, y) that leaves the gradient of the cross-entropy in ``flat.grad``."""
    if hasattr(flat.model, "closed_form"):
        return flat.model.closed_form()

    return lambda x, y: flat.backward(F.cross_entropy(flat.model(x), y))
