"""The global model a round ends with: how its weights are distributed and how its loss changes around it."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from fedlib.algorithms import Round
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.models.base import evaluate, twice_differentiable
from fedlib.probes.base import PROBES, Fed, Probe, by_id, draw, round_significant, shares


@PROBES.register("histogram")
class Histogram(Probe):
    """The new model's parameters in equal bins, and the share of them near zero (FedLWS Fig. 3, FedLAW Fig. 4)."""

    bins: int = 61
    limit: float = 0.3  # bins cover [-limit, limit]; what lies beyond counts in the outermost
    near: float = 0.01  # |w| below this is near zero; the papers name no threshold

    def __post_init__(self):
        super().__post_init__()
        if not (self.bins > 1 and self.limit > 0 and self.near > 0):
            raise FedlibError("histogram(…) needs two bins or more and a positive limit and threshold.")

    def measure(self, fed: Fed, r: Round) -> dict:
        w = r.aggregate.cpu()  # a card's histc is not deterministic
        counts = torch.histc(w.clamp(-self.limit, self.limit), self.bins, -self.limit, self.limit)
        return {"counts": counts.long().tolist(), "near_zero": float((w.abs() < self.near).double().mean())}


@PROBES.register("rescaling")
class Rescaling(Probe):
    """The loss of the new model times each factor (FedLAW Fig. 4, left)."""

    factors: tuple = (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2)
    samples: int | None = None  # None is all
    on: Literal["test", "train"] = "test"

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return len(self.factors) * (self.samples or (test if self.on == "test" else train)) / 3

    def measure(self, fed: Fed, r: Round) -> dict:
        loss = loss_at(fed, r, *draw(fed, "rescaling", self.samples, self.on))
        return {"loss": round_significant([loss(factor * r.aggregate) for factor in self.factors])}


@PROBES.register("descent")
class Descent(Probe):
    """The two sums of FedLAW's Eq. 6 and what they stand for: how far one round lowers the loss.

    ``own`` = sum_k lambda_k^2 ||g_k||^2 and ``cross`` = sum_{i != j} lambda_i lambda_j <g_i, g_j> add up to
    ||sum_k lambda_k g_k||^2. On the clients' training data: ``linear`` = -<dL/dw, step> at the round's start, the first
    term of Taylor's series, for which Eq. 6 puts those sums; ``drop``, by how much the loss has fallen after the step.
    """

    every: int | None = 1
    samples: int | None = 2000  # None is all

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return (self.samples or train) * 5 / 3

    def measure(self, fed: Fed, r: Round) -> dict:
        lam, gram = shares(r).cpu(), r.products.model().gram[0]
        own = float(lam.square() @ gram.diagonal())
        x, y = draw(fed, "descent", self.samples, "train")
        loss = loss_at(fed, r, x, y)
        before, after = loss(r.theta), loss(r.aggregate)
        fed.flat.load(r.theta, r.buffers)
        fed.flat.model.eval()
        fed.flat.backward(F.cross_entropy(fed.flat.model(x), y))
        linear = fed.flat.grad @ (r.theta - r.aggregate)
        return {"own": own, "cross": float(lam @ gram @ lam) - own, "linear": float(linear), "drop": before - after}


@PROBES.register("hessian")
class Hessian(Probe):
    """The largest eigenvalues of the loss's Hessian, and the loss along the first eigenvector (FedLAW Figs. 4, 10).

    By Lanczos' method (ARPACK) with Hessian-vector products, on one fixed batch, BatchNorm and dropout as in
    evaluation. ``loss`` is that of w + distance * v_1, ||v_1|| = 1; the sign of v_1 is arbitrary.
    """

    top: int = 5
    samples: int = 200
    along: tuple = ()  # distances, such as (-1.0, -0.5, 0.0, 0.5, 1.0)
    on: Literal["train", "test"] = "train"
    precision: float = 0.001  # of the eigenvalues, relative

    def __post_init__(self):
        super().__post_init__()
        if self.top < 1 or self.samples < 1 or not self.precision > 0:
            raise FedlibError("hessian(…) needs top and samples of at least 1 and a positive precision.")

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return 6 * (4 * self.top + 20) * self.samples  # a product is two backward passes; second order costs double

    def measure(self, fed: Fed, r: Round) -> dict:
        x, y = draw(fed, "hessian", self.samples, self.on)
        fed.flat.load(r.aggregate, r.aggregate_buffers)
        start = stream(fed.spec.seed, "probe hessian", r.number).standard_normal(r.layout.size)
        try:
            values, vectors = top_eigen(hessian_product(fed.flat, x, y), start, self.top, self.precision)
        except scipy.sparse.linalg.ArpackError:  # flat or not finite; the run itself need not be the worse for it
            values, vectors = np.full(self.top, np.nan), np.full((r.layout.size, 1), np.nan)
        found = {"eigenvalues": round_significant(values), "ratio": float(values[0] / values[-1])}
        if self.along:
            loss, v = loss_at(fed, r, x, y), torch.from_numpy(vectors[:, 0]).to(r.aggregate)
            found["loss"] = round_significant([loss(r.aggregate + distance * v) for distance in self.along])
        return found


def hessian_product(flat: FlatModel, x: Tensor, y: Tensor) -> Callable[[np.ndarray], np.ndarray]:
    """v -> H v for the cross-entropy of ``flat`` on (x, y): the gradient of <gradient, v>."""
    named, entries = dict(flat.model.named_parameters()), flat.layout.parameters
    weights = [named[e.name] for e in entries]
    with twice_differentiable(flat.model):
        gradient = torch.autograd.grad(F.cross_entropy(flat.model(x), y), weights, create_graph=True)

    def product(v: np.ndarray) -> np.ndarray:
        v = torch.from_numpy(np.ravel(v)).to(flat.theta)
        parts = [e.view(v) for e in entries]
        second = torch.autograd.grad(gradient, weights, parts, retain_graph=True, materialize_grads=True)
        return torch.cat([e.flat(h) for e, h in zip(entries, second, strict=True)]).double().cpu().numpy()

    return product


def top_eigen(product: Callable, start: np.ndarray, top: int, precision: float) -> tuple[np.ndarray, np.ndarray]:
    """The ``top`` algebraically largest eigenvalues, the largest first, with their vectors as columns."""
    operator = scipy.sparse.linalg.LinearOperator((len(start), len(start)), matvec=product, dtype=np.float64)
    values, vectors = scipy.sparse.linalg.eigsh(operator, k=top, which="LA", v0=start, tol=precision)
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


@PROBES.register("simplex")
class Simplex(Probe):
    """The test loss of every mixture of three clients' models, and the best mixture (FedLAW Fig. 12).

    ``loss`` follows ``mixtures(steps)``, clients by id; buffers are mixed alike.
    """

    steps: int = 10  # per side of the triangle
    samples: int | None = 1000
    landscape: bool = True  # False keeps the best mixture only, for every round of a long run

    def check(self, spec: RunSpec) -> None:
        if spec.clients_per_round != 3:
            raise FedlibError(f"The probe simplex is for three clients in every round; got {spec.clients_per_round}.")

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return len(mixtures(self.steps)) * min(self.samples or test, test) / 3

    def measure(self, fed: Fed, r: Round) -> dict:
        if len(r.ids) != 3:  # one of them holds no data
            return {}
        rows, grid = by_id(r), torch.from_numpy(mixtures(self.steps)).to(r.thetas)
        data = draw(fed, "simplex", self.samples, "test")
        losses = []
        for lam in grid:
            fed.flat.load(lam @ r.thetas[rows], lam @ r.client_buffers[rows])
            losses.append(evaluate(fed.flat.model, *data)[1])
        found = {"best": round_significant(grid[int(np.argmin(losses))])}
        return found | ({"loss": round_significant(losses)} if self.landscape else {})


def mixtures(steps: int) -> np.ndarray:
    """All (a, b, c) of multiples of 1/steps that sum to one, a rising first, then b."""
    return np.array([(a, b, steps - a - b) for a in range(steps + 1) for b in range(steps + 1 - a)]) / steps


APART, AWAY = np.array([0, 1, -1]) / 2**0.5, np.array([2, -1, -1]) / 6**0.5  # clients 1 to 2; these two to client 0


def bends(points: np.ndarray, values: ArrayLike) -> tuple[float, float]:
    """Second derivatives along APART and AWAY of the quadratic that fits ``values`` over mixtures best."""
    a, b = points @ APART, points @ AWAY
    terms = np.column_stack([np.ones_like(a), a, b, a * b, a**2, b**2])
    *_, along, across = np.linalg.lstsq(terms, np.asarray(values, float), rcond=None)[0]
    return 2 * float(along), 2 * float(across)


def loss_at(fed: Fed, r: Round, x: Tensor, y: Tensor) -> Callable[[Tensor], float]:
    """The loss on (x, y) as a function of the parameters, with the new model's buffers."""

    def loss(theta: Tensor) -> float:
        fed.flat.load(theta, r.aggregate_buffers)
        return evaluate(fed.flat.model, x, y)[1]

    return loss
