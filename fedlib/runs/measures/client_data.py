"""What clients' data are like: counts of classes, distances between clients."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch

from fedlib.core.errors import FedlibError
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.data import DATASETS, Dataset, load, partition, subset
from fedlib.data.distances import labelled_transport, transport
from fedlib.data.partition import PARTITIONS, Partition
from fedlib.federation.federation import Federation
from fedlib.models.starts import STARTS
from fedlib.runs.measures.base import MEASURES, Measurement, OnTurn


@dataclass(frozen=True, kw_only=True)
class OnPartition(Measurement):
    """A measurement of the clients' data, split as a run with these fields splits it."""

    dataset: str = "digits"
    partition: str = "class_blocks"
    clients: int = 12
    seed: int = 0
    subset: int | None = None
    seconds = 10.0

    def check(self) -> None:
        DATASETS.make(self.dataset)
        PARTITIONS.make(self.partition)

    def split(self) -> tuple[Dataset, Partition]:
        data = subset(load(self.dataset), self.subset, None)
        domains = None if data.domain_train is None else data.domain_train.numpy()
        labels = data.y_train.numpy()
        return data, partition.split(self.partition, labels, self.clients, self.seed, domains, data.classes)


@MEASURES.register("class_counts")
class ClassCounts(OnPartition):
    """Samples of every class that each client holds (FedLWS Fig. 11, FedAWA Fig. 8, FedLAW Fig. 13)."""

    def measure(self, on_turn: OnTurn) -> dict:
        _, partition = self.split()
        return {"counts": partition.counts.tolist(), "fingerprint": partition.fingerprint}


@MEASURES.register("cohort_classes")
class CohortClasses(OnPartition):
    """How alike the classes of a round's clients, weighted by size, and those of all data are (FedLAW Def. 5.2).

    By share of the clients that take part: the mean over ``rounds`` cohorts, drawn as a run draws them, of the overlap
    sum_c min(p_c, q_c); the paper leaves the similarity open.
    """

    participation: tuple = (0.1, 0.2, 0.5, 1.0)
    rounds: int = 200
    seconds = 5.0

    def check(self) -> None:
        super().check()
        for share in self.participation:
            if not (isinstance(share, int | float) and 1 / self.clients <= share <= 1):
                low = f"{1 / self.clients:.4g}"
                raise FedlibError(f"cohort_classes(participation=…) are shares from {low} to 1; got {share}.")

    def measure(self, on_turn: OnTurn) -> dict:
        _, partition = self.split()
        counts, found = partition.counts.astype(float), {}
        everyone = counts.sum(0) / counts.sum()
        for share in self.participation:
            size, overlaps = int(share * self.clients + 1e-9), []
            for number in range(1, self.rounds + 1):
                chosen = stream(self.seed, "cohort", number).choice(self.clients, size, replace=False)
                held = counts[chosen].sum(0)  # sizes as weights: all images of the cohort together
                overlaps.append(np.minimum(held / max(held.sum(), 1), everyone).sum())
            found[f"{share:g}"] = float(f"{np.mean(overlaps):.5g}")
        return {"similarity": found}


@MEASURES.register("data_distances")
class DataDistances(OnPartition):
    """Optimal-transport distances between clients' data, and of each to all data (FedLWS Fig. 5, FedAWA Figs. 2, 7).

    ``distance`` is condensed, for scipy's ``squareform``. Features are the pixels in [0, 1], those of ``model``,
    trained on all data for ``epochs``, or those of the checkpoint ``start`` (FedAWA took a pretrained ResNet20).
    """

    labels: bool = True  # Alvarez-Melis and Fusi's distance, which sees classes too; False: the features' alone
    model: str | None = None
    epochs: int = 5
    start: str | None = None  # instead of a model, such as resnet20_cifar10
    samples: int = 200  # of every client, and of all data
    seconds = 60.0

    def check(self) -> None:
        super().check()
        if self.model or self.start:
            self.spec()

    def spec(self) -> RunSpec:
        """The run that trains the model, or that begins with the start."""
        known = STARTS.make(self.start) if self.start else None
        return RunSpec(
            dataset=self.dataset, model=known.card["model"] if known else self.model or "", partition="iid", clients=1,
            subset=self.subset, batch_size=128, lr=0.05, seed=self.seed, start=self.start,
            transform=known.transform if known else "unit",
        )  # fmt: skip

    def measure(self, on_turn: OnTurn) -> dict:
        data, partition = self.split()
        features, labels = self.features(data), data.y_train.numpy()
        pools = [*partition.indices, np.concatenate(partition.indices)]
        drawn = [stream(self.seed, "ot", k).permutation(pool)[: self.samples] for k, pool in enumerate(pools)]

        def distance(i: int, j: int) -> float:
            a, b = drawn[i], drawn[j]
            if not (len(a) and len(b)):
                return float("nan")
            if self.labels:
                found = labelled_transport(features[a], labels[a], features[b], labels[b])
            else:
                found = transport(features[a], features[b])
            return float(f"{found:.5g}")

        clients = range(self.clients)
        between = [distance(i, j) for i, j in combinations(clients, 2)]
        return {"distance": between, "to_all": [distance(k, self.clients) for k in clients]}

    def features(self, data: Dataset) -> np.ndarray:
        if self.model is None and self.start is None:
            return data.x_train.flatten(1).double().numpy() / 255
        fed = Federation(self.spec())
        model: Any = fed.flat.model
        if self.start is None:
            fed.train_on(fed.x, fed.y, 0, 1, self.epochs)
        with torch.inference_mode():
            model.eval()
            return torch.cat([model.features(x) for x in fed.x.split(1000)]).double().cpu().numpy()
