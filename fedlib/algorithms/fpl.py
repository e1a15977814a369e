"""FPL: federated prototype learning under domain shift (Huang et al., CVPR 2023).

Every client sends the mean feature of each of its classes. One mean over all clients would favour the commonest
domain, so the server clusters the prototypes of a class (FINCH) and sends the mean of every cluster, P_c. Clients add

    -log sum_{p in P_y} e^(cos(z, p)/tau) / sum_{all p} e^(cos(z, p)/tau)     cluster prototypes, contrastive
    ||z - u_y||^2,   u_c = mean of P_c                                        unbiased prototype, regularisation
"""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms.base import Batch, Client, Local, Round, Server, register
from fedlib.core.errors import FedlibError


@register("fpl")
class FPL(Local, Server):
    """Features z gather around the cluster prototypes of their own class and keep away from the other classes'.

    ``released``: the squared distance is a mean over the features, not their sum, and a client's prototypes are the
    means of the features met during its last epoch, not those of the model that it sends.
    """

    uses_features = True
    temperature: float = 0.02
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self):
        if self.temperature <= 0:
            raise FedlibError(f"fpl(temperature=…) must be positive; got {self.temperature}.")

    def begin(self, c: Client) -> None:
        if "fpl" in c.received:
            prototypes, labels = c.received["fpl"]
            c.memo["means"] = class_means(prototypes, labels, c.classes)
            c.memo["all known"] = bool(torch.isin(c.data[1], labels).all())

    def epoch(self, c: Client) -> None:
        c.memo["fpl"] = []

    def loss(self, c: Client, batch: Batch) -> Tensor | None:
        if self.variant == "released":
            c.memo["fpl"].append((batch.features.detach(), batch.y))
        if "fpl" not in c.received:
            return None
        (prototypes, labels), z, y = c.received["fpl"], batch.features, batch.y
        if not c.memo["all known"]:  # a class without prototypes adds nothing (to pick out the others, a card waits)
            known = torch.isin(y, labels)
            z, y = z[known], y[known]
        square = (z - c.memo["means"][y]).square()
        square = square.sum(1) if self.variant == "paper" else square.mean(1)
        return (infonce(z, y, prototypes, labels, self.temperature) + square).sum() / len(batch.y)

    def end(self, c: Client) -> None:
        met = c.memo["fpl"] if self.variant == "released" else [(c.features(), c.data[1])]
        z, y = map(torch.cat, zip(*met, strict=True))
        c.uploads["fpl"] = class_means(z, y, c.classes)

    def step(self, r: Round) -> Tensor:
        prototypes, labels = [], []
        for c, sent in enumerate(torch.stack(r.sent("fpl"), 1).cpu()):
            points = sent[~sent[:, 0].isnan()]
            if len(points):
                cluster = torch.from_numpy(finch(points.numpy()))
                prototypes.append(class_means(points, cluster, int(cluster.max()) + 1))
                labels += [c] * len(prototypes[-1])
        r.broadcast["fpl"] = torch.cat(prototypes).to(r.theta.device), torch.tensor(labels, device=r.theta.device)
        r.log("prototypes", len(labels))
        return r.aggregate


def class_means(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """The mean of every class; NaN where there is none."""
    sums = z.new_zeros(classes, z.shape[1]).index_add_(0, y, z)
    return sums / torch.bincount(y, minlength=classes)[:, None]


def infonce(z: Tensor, y: Tensor, prototypes: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The contrastive term of every sample; each class in y has a prototype."""
    scores = F.normalize(z) @ F.normalize(prototypes).T / temperature
    own = scores.masked_fill(y[:, None] != labels, -torch.inf)
    return scores.logsumexp(1) - own.logsumexp(1)


def finch(points: np.ndarray) -> np.ndarray:
    """Cluster points by their first neighbours, then the clusters' means, and so on (Sarfraz et al., CVPR 2019).

    The last partition that is not a single cluster, unless the first one is.
    """
    labels = first_neighbours(points)
    while labels.max() > 0:
        means = np.stack([points[labels == k].mean(0) for k in range(labels.max() + 1)])
        coarser = first_neighbours(means)[labels]
        if coarser.max() == 0:
            break
        labels = coarser
    return labels


def first_neighbours(points: np.ndarray) -> np.ndarray:
    """Two points share a cluster if a chain of nearest neighbours, by cosine, joins them."""
    from scipy.sparse.csgraph import connected_components
    from sklearn.neighbors import NearestNeighbors

    if len(points) == 1:
        return np.zeros(1, dtype=int)
    graph = NearestNeighbors(n_neighbors=1, metric="cosine").fit(points).kneighbors_graph()  # never itself
    return connected_components(graph, directed=False)[1]
