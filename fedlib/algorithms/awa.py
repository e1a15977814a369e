"""FedAWA: adaptive weight aggregation from client vectors (Shi et al., CVPR 2025).

With client vectors tau_k = theta_k - theta_g and their mean tau_g = sum_k lambda_k tau_k (Eq. 1), the weights are

    lambda = argmin  sum_k lambda_k ||tau_k - tau_g||  +  d(sum_k lambda_k theta_k, theta_g),   sum lambda = 1   (Eq. 3)

for the whole model, or for each layer on its own (Eq. 4, FedAWA-L). Clients enter only through inner products, so
no step of the optimisation touches a parameter.

The argmin itself is no average. tau_g is tau_k where lambda_k = 1, so the first term (Eq. 2) is zero at every vertex
of the simplex and positive everywhere between distinct clients: solved to convergence (``steps="converged"``) it
keeps a single client and drops the others. The second term only chooses which, unless the models turn so far that
it outweighs the distances. What the method does therefore lies in how little it optimises: a few small steps a
round, from weights that are carried on.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from fedlib.algorithms.base import Products, Round, Weighting, register
from fedlib.core.errors import FedlibError
from fedlib.core.optimizers import OPTIMIZERS

TINY = 1e-100  # keeps a vector of zeros from dividing by zero
MOST_STEPS = 20_000  # of an optimisation that does not settle
OPTIMISERS = {"adam": "adam(beta1=0.5)", "sgd": "sgd(momentum=0.9, weight_decay=0.0005)"}  # as released


@register("awa")
class AWA(Weighting):
    """Weights that bring client vectors and their mean together, lambda = softmax(T), by gradient steps on T.

    T starts at the logarithm of the weights before it (sizes, or FedDisco's); how far each client's T has moved is
    kept by client id. The released code starts at the raw size weights instead, which is nearly uniform, carries T
    by position in the cohort, takes one step and averages with the lambda before it; its second term is
    sum_k lambda_k d(theta_k, theta_g). Where everybody takes part its cohort is in the order of the clients, here it
    is in a random one: ``kept="client"`` is what it does then. ``rule="cosine"`` is FedAWA-COS: cos(tau_k, tau_g)
    itself, normalised.
    """

    granularity: Literal["model", "layer"] = "model"  # layer is FedAWA-L
    rule: Literal["optimise", "cosine"] = "optimise"
    normalise: Literal["relu", "softmax"] = "relu"  # of the cosines; the paper does not say
    sized: bool = False  # whether the cosines' weights are multiplied by those before them, such as sizes
    alignment: Literal["cosine", "euclidean", "none"] = "cosine"  # d of Eq. 3 (Table 5)
    sign: Literal["minimise", "maximise"] = "minimise"  # of the first term; released code maximised it until April 2025
    optimizer: Literal["adam", "sgd"] = "adam"
    steps: int | Literal["converged"] | None = None  # a round; the paper is silent. None: 100, or the released 1
    lr: float | None = None  # None is the released 0.001 for Adam, 0.01 for SGD
    variant: Literal["paper", "released"] = "paper"
    kept: Literal["client", "place"] | None = None  # whose T is carried on; None: the client's, or the released place's

    def __post_init__(self):
        if self.variant == "paper" and self.kept == "place":
            raise FedlibError("awa(kept=place) is the released code's: write variant=released too.")
        if isinstance(self.steps, int) and self.steps < 1:
            raise FedlibError(f"awa(steps=…) is at least 1, or converged; got {self.steps}.")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise FedlibError(f"awa(lr=…) must be positive; got {self.lr}.")
        if self.variant == "released" and (self.granularity, self.rule) != ("model", "optimise"):
            raise FedlibError("FedAWA-L and FedAWA-COS were never released; leave out variant=released.")

    def weigh(self, r: Round, weights: Tensor) -> Tensor:
        if weights.ndim > 1:
            raise FedlibError("awa starts from one weight per client: let it follow fedavg or feddisco.")
        products = r.products if self.granularity == "layer" else r.products.model()
        start = weights.cpu().double().expand(len(products.square), -1)  # (groups, clients); see Products
        find = self.cosine if self.rule == "cosine" else self.optimise if self.variant == "paper" else self.released
        lam = find(r, products, start)
        for k, value in zip(r.ids, lam.mean(0).tolist(), strict=True):
            r.log("lambda", round(value, 4), key=str(k))
        lam = lam.T.to(weights)
        return lam if self.granularity == "layer" else lam[:, 0]

    def cosine(self, r: Round, p: Products, lam: Tensor) -> Tensor:
        """FedAWA-COS (Table 4): lambda_k from cos(tau_k, tau_g), with tau_g by the weights before."""
        along = times(p.gram, lam)
        cos = along / (norms(p) * dot(lam, along)).clamp(min=TINY).sqrt()
        found = cos.softmax(1) if self.normalise == "softmax" else cos.relu()
        found = found * lam if self.sized else found
        total = found.sum(1, keepdim=True)
        return torch.where(total > 0, found / total, lam)  # without any update there is nothing to go by

    def optimise(self, r: Round, p: Products, start: Tensor) -> Tensor:
        """Eqs. 3 and 4: lambda after the last step."""
        moved = r.state.setdefault("moved", {})
        change = torch.stack([moved.get(k, start.new_zeros(len(start))).cpu() for k in r.ids], 1)
        *_, lam = self.descend(change, start.log(), lambda lam: self.objective(lam, p))
        moved.update(zip(r.ids, change.T.clone(), strict=True))
        return lam

    def released(self, r: Round, p: Products, start: Tensor) -> Tensor:
        """What the code computes: T from the raw shares of ALL clients' samples, lambda from BEFORE the last step."""
        own, kept = start * (float(r.sizes.sum()) / r.samples), r.state.get("T")
        if self.kept == "client":
            kept = kept or {}
            logits = torch.stack([kept.get(k, mine).cpu() for k, mine in zip(r.ids, own.T, strict=True)], 1)
        else:
            logits = kept.cpu().clone() if kept is not None and kept.shape == own.shape else own
        each = {"cosine": 1 - cosines(p), "euclidean": norms(p) / len(r.theta), "none": 0 * norms(p)}[self.alignment]

        def loss(lam: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = self.spread(lam, p)
            return value + dot(lam, each), slope + each

        *_, lam, _ = self.descend(logits, torch.zeros_like(logits), loss)
        r.state["T"] = logits if self.kept != "client" else kept | dict(zip(r.ids, logits.T.clone(), strict=True))
        return lam

    def descend(self, change: Tensor, logits: Tensor, loss: Callable) -> Iterator[Tensor]:
        """lambda = softmax(logits + change) before and after every gradient step on ``change`` (in place)."""
        optimizer = OPTIMIZERS.make(OPTIMISERS[self.optimizer])
        moments = optimizer.state(change)
        lr = self.lr or {"adam": 0.001, "sgd": 0.01}[self.optimizer]
        steps = self.steps or (100 if self.variant == "paper" else 1)
        lam = (logits + change).softmax(1)
        yield lam
        for _ in range(MOST_STEPS if steps == "converged" else steps):
            _, slope = loss(lam)
            slope = slope - dot(lam, slope)
            if steps != "converged":  # through the softmax, where it dies out near a vertex long before the end
                slope *= lam
            optimizer.step(change, slope, moments, lr)
            before, lam = lam, (logits + change).softmax(1)
            yield lam
            if steps == "converged" and float((lam - before).abs().max()) < 1e-8:
                break

    def objective(self, lam: Tensor, p: Products) -> tuple[Tensor, Tensor]:
        """Eq. 3 and its derivative by lambda, (groups, 1) and (groups, clients)."""
        (first, its_slope), (second, alignment_slope) = self.spread(lam, p), self.align(lam, p)
        return first + second, its_slope + alignment_slope

    def spread(self, lam: Tensor, p: Products) -> tuple[Tensor, Tensor]:
        """Eq. 2: sum_k lambda_k ||tau_k - tau_g||; tau_g moves with lambda."""
        along = times(p.gram, lam)  # <tau_k, tau_g>
        squared = norms(p) - 2 * along + dot(lam, along)
        apart = squared > 1e-12 * norms(p)  # else tau_k is tau_g but for rounding, and there is no way to go
        distance = squared.where(apart, 0).sqrt()
        pull = (lam / distance).where(apart, 0)  # what moving tau_g does to each distance
        sign = 1 if self.sign == "minimise" else -1
        slope = distance + pull.sum(1, keepdim=True) * along - times(p.gram, pull)
        return sign * dot(lam, distance), sign * slope

    def align(self, lam: Tensor, p: Products) -> tuple[Tensor, Tensor]:
        """The second term of Eq. 3, with sum_k lambda_k theta_k = theta_g + tau_g."""
        if self.alignment == "none":
            return torch.zeros_like(lam[:, :1]), torch.zeros_like(lam)
        along = times(p.gram, lam)
        merged = dot(lam, along)  # ||tau_g||^2
        if self.alignment == "euclidean":
            length = merged.clamp(min=TINY).sqrt()
            return length, along / length
        old, ahead = p.square[:, None], dot(lam, p.inner)  # ||theta_g||^2, <tau_g, theta_g>
        new = (old + 2 * ahead + merged).clamp(min=TINY)  # ||theta_g + tau_g||^2
        scale = (old * new).clamp(min=TINY).rsqrt()
        cos = (old + ahead) * scale
        return 1 - cos, cos / new * (p.inner + along) - scale * p.inner


def norms(p: Products) -> Tensor:
    """||tau_k||^2."""
    return p.gram.diagonal(dim1=1, dim2=2)


def cosines(p: Products) -> Tensor:
    """cos(theta_k, theta_g)."""
    old = p.square[:, None]
    return (old + p.inner) * (old * (old + 2 * p.inner + norms(p))).clamp(min=TINY).rsqrt()


def times(matrices: Tensor, vectors: Tensor) -> Tensor:
    return (matrices @ vectors[:, :, None])[:, :, 0]


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1, keepdim=True)
