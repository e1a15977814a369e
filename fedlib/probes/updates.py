"""What the clients' updates g_k = w_k - w_g say of each other, of the average and of the data."""

from collections import defaultdict
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import scipy
import torch
from torch import Tensor

from fedlib.algorithms import ALGORITHMS, Algorithm, Local, Round, Server
from fedlib.algorithms.base import Products
from fedlib.algorithms.lap import neurons
from fedlib.algorithms.law import Learned
from fedlib.algorithms.lws import spread
from fedlib.core.errors import Diverged, FedlibError
from fedlib.core.layout import gather
from fedlib.core.registry import canonical
from fedlib.core.spec import RunSpec
from fedlib.models.base import evaluate
from fedlib.probes.base import PROBES, Fed, Probe, averaged, by_id, cosines, round_significant, shares


@PROBES.register("spread")
class Spread(Probe):
    """tau, how far the clients' updates are from their mean: mean_k ||g_k - g_mean|| (FedLWS Eq. 4)."""

    every: int | None = 1

    def measure(self, fed: Fed, r: Round) -> dict:
        return {"tau": float(spread(r.thetas).mean())}  # the global model cancels in g_k - g_mean


@PROBES.register("balance")
class Balance(Probe):
    """The two terms of a shrunk average, w - (1 - gamma) w + gamma eta g, and their ratio (FedLWS Eqs. 3, 5).

    ``step`` is ||gamma eta g||, ``shrink`` is ||(1 - gamma) w||, with every layer's own gamma; r_lws = shrink / step,
    and FedLAW's r_law is its reciprocal. gamma is read off the vectors: what part of the average the new model is.
    """

    every: int | None = 1

    def measure(self, fed: Fed, r: Round) -> dict:
        merged, step, shrink, along, square, products = averaged(r), 0.0, 0.0, 0.0, 0.0, []
        for layer in r.layout.layers:
            new, old, mean = (v[layer.slice].double() for v in (r.aggregate, r.theta, merged))
            products += new @ mean, mean @ mean, (mean - old).square().sum(), old @ old
        for dot, norm, moved, before in torch.stack(products).view(-1, 4).tolist():  # read at once
            gamma = dot / norm if norm > 0 else 1.0
            step += gamma**2 * moved
            shrink += (1 - gamma) ** 2 * before
            along, square = along + dot, square + norm
        step, shrink = step**0.5, shrink**0.5
        return {
            "gamma": along / square if square > 0 else 1.0,
            "norm": float(r.theta.norm()),
            "step": step,
            "shrink": shrink,
            "r_lws": shrink / step if step > 0 else float("nan"),
            "r_law": step / shrink if shrink > 0 else float("nan"),
        }


@PROBES.register("server_step")
class ServerStep(Probe):
    """How far the server's own part takes the model from the clients' average, beside the step of that average.

    ``average`` is ||mean - w||, ``added`` is ||new - mean|| (FedDyn's h / alpha, say) and ``weights`` is ||w||.
    """

    every: int | None = 1

    def measure(self, fed: Fed, r: Round) -> dict:
        mean = averaged(r)
        lengths = {"average": mean - r.theta, "added": r.aggregate - mean, "weights": r.theta}
        return {name: float(vector.norm()) for name, vector in lengths.items()}


@PROBES.register("losses")
class Losses(Probe):
    """What FedLWS's Appendix D compares: every client's model on its own samples, the new global model on all of them.

    ``tau`` is Eq. 4's mean of ||g_k - g_mean||, ``squared`` Appendix D's, of the squares; ``norm`` is the new model's.
    """

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return 0.7 * train

    def measure(self, fed: Fed, r: Round) -> dict:
        def loss(theta: Tensor, buffers: Tensor, rows: Tensor) -> float:
            fed.flat.load(theta, buffers)
            return evaluate(fed.flat.model, gather(fed.x, rows), fed.y[rows])[1]

        each = [loss(*sent, fed.indices[k]) for *sent, k in zip(r.thetas, r.client_buffers, r.ids, strict=True)]
        whole = loss(r.aggregate, r.aggregate_buffers, torch.cat(fed.indices))
        apart = spread(r.thetas)
        return {
            "clients": round_significant([each[k] for k in by_id(r)]),
            "global": whole,
            "test": evaluate(fed.flat.model, fed.x_test, fed.y_test)[1],
            "tau": float(apart.mean()),
            "squared": float(apart.square().mean()),
            "norm": float(r.aggregate.norm()),
        }


@PROBES.register("would")
class Would(Probe):
    """What a server part would have made of the round's average, which goes on without it: all that the part logs.

    So several rules can be read on the same rounds: ``would(part=lws)`` has the gamma FedLWS would have taken.
    """

    every: int | None = 1
    part: str = "lws"  # such as gws(epochs=10); it starts every round afresh

    def __post_init__(self):
        super().__post_init__()
        part = ALGORITHMS.make(self.part)
        if not isinstance(part, Server) or isinstance(part, Local):
            raise FedlibError(f"would(part=…) takes what acts at the server alone, such as lws; got {self.part}.")
        object.__setattr__(self, "part", canonical(part))

    def check(self, spec: RunSpec) -> None:
        if ALGORITHMS.make(self.part).needs_proxy and spec.proxy is None:
            raise FedlibError(f"would(part={self.part}) learns from data on the server: set proxy.")

    def measure(self, fed: Fed, r: Round) -> dict:
        aside = replace(r, aggregate=averaged(r), aggregate_buffers=r.aggregate_buffers.clone())
        aside = replace(aside, weights=r.weights.clone(), broadcast={}, state={}, logs=defaultdict(dict))
        aside.context = dict(r.context)
        ALGORITHMS.make(self.part).step(aside)
        return dict(aside.logs)


@PROBES.register("cosines")
class Cosines(Probe):
    """1 - cos between the updates (or the models) of any two clients (FedLWS Fig. 5, FedAWA Fig. 2).

    ``distance`` is condensed: scipy's ``squareform`` makes it the matrix, rows in the order of ``clients``.
    """

    of: Literal["updates", "models"] = "updates"

    def measure(self, fed: Fed, r: Round) -> dict:
        rows = by_id(r)
        distance = (1 - pairs(r, self.of)[rows][:, rows]).clamp(0, 2).fill_diagonal_(0)
        condensed = scipy.spatial.distance.squareform(distance.numpy(), checks=False)
        return {"clients": [r.ids[k] for k in rows], "distance": round_significant(condensed)}


def pairs(r: Round, of: str = "updates") -> Tensor:
    """cos of every pair of clients, from the round's inner products."""
    p = r.products.model()
    gram, inner, square = p.gram[0], p.inner[0], p.square[0]
    if of == "models":  # <w_i, w_j> with w_i = w_g + g_i
        gram = gram + inner[:, None] + inner + square
    norms = gram.diagonal().clamp(min=0).sqrt()
    norms = norms[:, None] * norms
    return torch.where(norms > 0, gram / norms, 0.0)


@PROBES.register("coherence")
class Coherence(Probe):
    """Do the clients pull the same way: (1/m) sum_{i != j} lambda_i lambda_j cos(g_i, g_j) (FedLAW Def. 5.1).

    ``cosine`` is the plain mean over pairs. A group of clients, such as (0, 9), counts as a cohort of its own.
    """

    every: int | None = 1
    groups: tuple = ()  # first and last id of each, such as ((0, 9), (10, 19)) in Figure 5

    def __post_init__(self):
        super().__post_init__()
        if not all(isinstance(g, tuple) and len(g) == 2 and g[0] < g[1] for g in self.groups):
            raise FedlibError(f"coherence(groups=…) are pairs of ids, such as ((0, 9), (10, 19)); got {self.groups}.")

    def measure(self, fed: Fed, r: Round) -> dict:
        cos, lam = pairs(r).fill_diagonal_(0), shares(r).cpu()
        found = {"coherence": {"cohort": coherence(cos, lam)}, "cosine": {"cohort": mean_cosine(cos)}}
        for first, last in self.groups:
            rows = [i for i, k in enumerate(r.ids) if first <= k <= last]
            if len(rows) > 1:
                inside, weights = cos[rows][:, rows], lam[rows]
                found["coherence"][f"{first}-{last}"] = coherence(inside, weights / weights.sum())
                found["cosine"][f"{first}-{last}"] = mean_cosine(inside)
        return found


def coherence(cos: Tensor, lam: Tensor) -> float:
    """With zeros on the diagonal."""
    return float(lam @ cos @ lam) / len(lam)


def mean_cosine(cos: Tensor) -> float:
    return float(cos.sum()) / max(len(cos) * (len(cos) - 1), 1)


@PROBES.register("weights")
class Weights(Probe):
    """lambda of every client by id, 0 for those who did not take part; whatever the method (FedAWA Fig. 7)."""

    every: int | None = 1

    def measure(self, fed: Fed, r: Round) -> dict:
        lam = [0.0] * r.clients
        for k, value in zip(r.ids, shares(r).tolist(), strict=True):
            lam[k] = round(value, 4)
        return {"lambda": lam}


@PROBES.register("course")
class Course(Probe):
    """gamma and every client's lambda after each pass over the proxy set, clients by id (FedLAW Fig. 14)."""

    def check(self, spec: RunSpec) -> None:
        if not any(isinstance(part, Learned) for part in Algorithm(spec.algorithm).servers):
            raise FedlibError(f"The probe course follows law, attentive or gws at the server; got {spec.algorithm}.")

    def measure(self, fed: Fed, r: Round) -> dict:
        course = r.context.get("course")
        if course is None:  # attentive(until=…) has stopped
            return {}
        found = {"gamma": round_significant(course[:, -1])}
        return found | (
            {"lambda": round_significant(course.T[by_id(r)])} if course.shape[1] > len(r.ids) else {}
        )  # not gws


@PROBES.register("products")
class ClientProducts(Probe):
    """All that FedAWA's objective knows of a round: inner products of the updates and the model (its Eq. 3).

    ``gram`` of the updates, rows in the order of ids; ``inner`` of each with the global model; ``square`` of the model.
    """

    def measure(self, fed: Fed, r: Round) -> dict:
        rows, p = by_id(r), r.products.model()
        return {
            "gram": round_significant(p.gram[0][rows][:, rows]),
            "inner": round_significant(p.inner[0][rows]),
            "square": float(p.square[0]),
        }


def kept_products(record: Any, probe: str, round: int) -> Products:
    """What the probe kept of a round, or of the last before it, as FedAWA's functions take it."""
    series = record.probe(probe)
    at = max(i for i, number in enumerate(series["round"]) if number <= round)
    return Products(*(torch.tensor([series[name][at]], dtype=torch.float64) for name in Products._fields))


@PROBES.register("heterogeneity")
class Heterogeneity(Probe):
    """How close a cohort's classes, weighted by lambda, come to those of all data (FedLAW Def. 5.2, Fig. 7).

    The paper leaves the similarity open; here it is the overlap sum_c min(p_c, q_c), which is 1 for equal shares.
    ``entropy`` of the cohort's classes is 1 where all have the same share.
    """

    every: int | None = 1
    classes: bool = False  # keep the cohort's class shares themselves

    def measure(self, fed: Fed, r: Round) -> dict:
        (counts,) = r.need("counts")
        p = mixture(np.asarray(counts, float), shares(r).cpu().numpy())
        q = fed.partition.counts.sum(0) / fed.partition.counts.sum()
        found = {"similarity": float(np.minimum(p, q).sum()), "entropy": entropy(p)}
        return found | ({"classes": round_significant(p)} if self.classes else {})


def mixture(counts: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """sum_k lambda_k D_k, with D_k the class shares of client k."""
    return lam @ (counts / counts.sum(1, keepdims=True))


def entropy(p: np.ndarray) -> float:
    """In units of log C; 0 log 0 is 0."""
    some = p[p > 0]
    return float(-(some * np.log(some)).sum() / np.log(len(p)))


@PROBES.register("ideal")
class Ideal(Probe):
    """Distance of updates to the ideal vector: the step of the same model trained on all data (FedAWA Fig. 3).

    ``clients`` by id, ``merged`` averages them by size, ``aggregate`` is the method's own step.
    """

    epochs: int = 1  # over all clients' data, with the clients' optimiser, learning rate and batches
    metric: Literal["cosine", "euclidean"] = "cosine"  # 1 - cos; the paper names none

    def __post_init__(self):
        super().__post_init__()
        if self.epochs < 1:
            raise FedlibError(f"ideal(epochs=…) is at least 1; got {self.epochs}.")

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return self.epochs * train

    def measure(self, fed: Fed, r: Round) -> dict:
        try:
            ideal = self.vector(fed, r)
        except Diverged:  # the run itself need not be the worse for it
            return {"clients": [float("nan")] * len(r.ids), "merged": float("nan"), "aggregate": float("nan")}
        merged = (r.sizes / r.sizes.sum()) @ r.updates
        distance = self.distances(torch.stack([*r.updates[by_id(r)], merged, r.aggregate - r.theta]), ideal)
        return {
            "clients": round_significant(distance[:-2]),
            "merged": float(distance[-2]),
            "aggregate": float(distance[-1]),
        }

    def distances(self, vectors: Tensor, ideal: Tensor) -> Tensor:
        if self.metric == "cosine":
            return 1 - cosines(vectors, ideal[None])[:, 0]
        return (vectors - ideal).norm(dim=1)

    def vector(self, fed: Fed, r: Round) -> Tensor:
        everyone = torch.cat(fed.indices)
        fed.flat.load(r.theta, r.buffers)
        # As one more client, whose id no other has: its batches come from a stream of their own.
        fed.train_on(gather(fed.x, everyone), fed.y[everyone], fed.spec.clients, r.number, self.epochs)
        return fed.flat.theta - r.theta


@PROBES.register("lap")
class Lap(Probe):
    """FedLap's dissimilarity, distance and term of every layer, mean over clients, for any method (Eqs. 5 to 10)."""

    every: int | None = 10

    def measure(self, fed: Fed, r: Round) -> dict:
        found = {"dissimilarity": [], "distance": [], "term": []}
        for w in r.layout.weights:
            both = [neurons(w.view(theta), w.view(r.theta)) for theta in r.thetas]
            found["dissimilarity"].append(torch.stack([lam.mean() for lam, _ in both]).mean())
            found["distance"].append(torch.stack([d.sum() for _, d in both]).mean())
            found["term"].append(torch.stack([lam @ d / 2 for lam, d in both]).mean())
        names = [w.name.removesuffix(".weight") for w in r.layout.weights]
        return {what: dict(zip(names, torch.stack(values).tolist(), strict=True)) for what, values in found.items()}
