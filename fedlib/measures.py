"""Measurements that are not federated runs, such as the seconds of an aggregation step. They are records too.

A notebook's grid may hold ``Measure("aggregation_time(model=resnet20)")`` beside its ``RunSpec``s: planned, stored
and read back the same way, so that a page renders without measuring anything again.
"""

import hashlib
import json
import time
from dataclasses import dataclass, fields
from functools import cached_property

from fedlib.errors import FedlibError
from fedlib.registry import Registry, written
from fedlib.spec import MOST, RunSpec

MEASURES = Registry("measurement")


@dataclass(frozen=True)
class Measure:
    """One measurement in its written form."""

    text: str
    probes = None  # those are for runs

    def __post_init__(self):
        object.__setattr__(self, "text", written(MEASURES.make(self.text)))

    @property
    def rounds(self) -> int:
        """Its steps, for progress bars."""
        return getattr(MEASURES.make(self.text), "turns", 1)

    @cached_property
    def revisions(self) -> dict[str, int | str]:
        thing = MEASURES.make(self.text)
        found = {thing.name: thing.revision} if thing.revision != 1 else {}
        if start := getattr(thing, "start", None):
            from fedlib.pretrained import STARTS

            found[start] = STARTS.make(start).revision
        return found

    @cached_property
    def id(self) -> str:
        text = json.dumps([self.text, self.revisions], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return self.text

    def estimate(self) -> float:
        """Seconds it may take."""
        return MEASURES.make(self.text).seconds

    def perform(self, checkpoint=None, on_round=None):
        from fedlib.simulation import environment, one_thread
        from fedlib.store import Record

        start = time.perf_counter()
        with one_thread():
            result = MEASURES.make(self.text).measure(on_round or (lambda done: None))
        return Record.of_measure(self, result, environment(), time.perf_counter() - start)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What measurements have in common: their parameters are checked where they are written, not first in a worker."""

    def __post_init__(self):
        for f in fields(self):
            value, least = getattr(self, f.name), f.name != "seed"
            if type(value) is int and not least <= value <= MOST:
                raise FedlibError(f"{self.name}({f.name}=…) is from {least:d} to {MOST:,}; got {value}.")
            if value == ():
                raise FedlibError(f"{self.name}({f.name}=…) must not be empty.")
        self.check()

    def check(self) -> None:
        """Raise where something has no meaning, such as a method that does not exist."""


@MEASURES.register("aggregation_time")
class AggregationTime(Measurement):
    """Seconds of the server's step, from the clients' state_dicts to the new global one, for several methods.

    The clients are the global model plus noise of a tenth of its size. Methods take turns in one process, and every
    turn is kept: only ratios within a turn mean anything.
    """

    model: str = "resnet20"
    methods: tuple = ("fedavg", "lws")
    shape: tuple = (3, 32, 32)
    classes: int = 10
    clients: int = 20
    proxy: int = 200  # samples of noise as the server's data set, for methods that learn on it
    turns: int = 3
    seconds = 60.0

    def check(self) -> None:
        from fedlib.aggregation import refuse_local
        from fedlib.algorithms import Algorithm
        from fedlib.models import MODELS

        MODELS.make(self.model)
        for method in self.methods:
            refuse_local(Algorithm(method), "and aggregation_time has none that train: leave it out")
        if not all(type(n) is int and 0 < n <= MOST for n in self.shape):
            raise FedlibError(f"aggregation_time(shape=…) is a tuple of positive integers; got {self.shape}.")

    def measure(self, on_turn) -> dict:
        import torch

        from fedlib.aggregation import aggregate
        from fedlib.models import build

        model = build(self.model, tuple(self.shape), self.classes, 0)
        start = {n: t.clone() for n, t in model.state_dict().items()}
        torch.manual_seed(0)

        def moved(t):
            return t + 0.1 * t.std() * torch.randn_like(t) if t.is_floating_point() and t.numel() > 1 else t.clone()

        clients = [{n: moved(t) for n, t in start.items()} for _ in range(self.clients)]
        data = torch.randn(self.proxy, *self.shape), torch.randint(0, self.classes, (self.proxy,))
        aggregate("fedavg", start, clients, [100] * self.clients)  # untimed: the first of all pays for fresh memory
        taken = {method: [] for method in self.methods}
        for turn in range(self.turns):
            for method in self.methods:
                began = time.perf_counter()
                aggregate(method, start, clients, [100] * self.clients, model=model, proxy=data)
                taken[method].append(float(f"{time.perf_counter() - began:.4g}"))
            on_turn(turn + 1)
        return {"parameters": sum(p.numel() for p in model.parameters()), "seconds": taken}


@MEASURES.register("epoch_time")
class EpochTime(Measurement):
    """CPU seconds of a client's local epoch for several methods, with what it computes to upload (FedDW Table III).

    Each has a federation of its own, and their rounds take turns in one process. The first round is not timed: it pays
    for fresh memory and lacks what some methods remember. Only ratios within a turn mean anything. ``gradient`` and
    ``end`` are the parts of the time that a method's own hooks of that name take.
    """

    dataset: str = "digits"
    model: str = "mlp"
    methods: tuple = ("fedavg", "dw")
    partition: str = "iid"
    clients: int = 2
    subset: int | None = None
    epochs: int = 1
    batch_size: int = 128
    optimizer: str = "adam"
    lr: float = 0.001
    turns: int = 3
    seconds = 60.0

    def specs(self) -> dict[str, RunSpec]:
        return {
            method: RunSpec(
                dataset=self.dataset, model=self.model, partition=self.partition, clients=self.clients, lr=self.lr,
                subset=self.subset, local_epochs=self.epochs, batch_size=self.batch_size, optimizer=self.optimizer,
                algorithm=method, rounds=self.turns + 1,
            )
            for method in self.methods
        }  # fmt: skip

    check = specs

    def measure(self, on_turn) -> dict:
        from fedlib.algorithms import Algorithm
        from fedlib.simulation import Federation

        kinds = ("seconds", "gradient", "end")
        runs, taken = {}, {kind: {method: [] for method in self.methods} for kind in kinds}
        for method, spec in self.specs().items():
            fed = Federation(spec)
            start = {"theta": fed.flat.theta.clone(), "buffers": fed.flat.buffers.clone()}
            algorithm, spent = Algorithm(spec.algorithm), dict.fromkeys(kinds, 0.0)
            for part in algorithm.locals:
                for hook in kinds[1:]:
                    object.__setattr__(part, hook, timed(getattr(part, hook), hook, spent))
            runs[method] = fed, algorithm, start | {"clients": {}, "broadcast": {}, "server": {}}, spent
        for turn in range(self.turns + 1):
            for method, (fed, algorithm, run, spent) in runs.items():
                spent |= dict.fromkeys(kinds, 0.0)
                r = timed(fed.train_cohort, "seconds", spent)(turn + 1, algorithm, run, {})
                if turn:
                    for kind, seconds in spent.items():
                        taken[kind][method].append(float(f"{seconds / (self.clients * self.epochs):.4g}"))
                run["theta"], run["buffers"] = algorithm.aggregate(r, run["server"])
            on_turn(turn)
        return {"parameters": fed.flat.layout.size} | taken


@MEASURES.register("round_cost")
class RoundCost(Measurement):
    """What a round of each method costs: CPU seconds of its clients and of its server, and bytes sent per client.

    Each has a federation of its own, and their rounds take turns in one process; the first is not timed. Only ratios
    within a turn mean anything. Bytes are counted off the last round: the part of the model that is averaged, with its
    buffers, and whatever a method sends beside it, in each direction.
    """

    dataset: str = "digits"
    model: str = "mlp"
    methods: tuple = ("fedavg", "scaffold")
    partition: str = "iid"
    proxy: str | None = None
    clients: int = 4
    subset: int | None = None
    test_subset: int | None = None
    epochs: int = 1
    batch_size: int = 32
    lr: float = 0.01
    turns: int = 3
    seconds = 120.0

    def specs(self) -> dict[str, RunSpec]:
        return {
            method: RunSpec(
                dataset=self.dataset, model=self.model, partition=self.partition, clients=self.clients, lr=self.lr,
                subset=self.subset, test_subset=self.test_subset, proxy=self.proxy, local_epochs=self.epochs,
                batch_size=self.batch_size, algorithm=method, rounds=self.turns + 1,
            )
            for method in self.methods
        }  # fmt: skip

    check = specs

    def measure(self, on_turn) -> dict:
        from fedlib.algorithms import Algorithm
        from fedlib.simulation import Federation

        runs, taken = {}, {kind: {method: [] for method in self.methods} for kind in ("local", "server")}
        up, down = {}, {}
        for method, spec in self.specs().items():
            fed = Federation(spec)
            start = {"theta": fed.flat.theta.clone(), "buffers": fed.flat.buffers.clone()}
            runs[method] = fed, Algorithm(spec.algorithm), start | {"clients": {}, "broadcast": {}, "server": {}}
        for turn in range(self.turns + 1):
            for method, (fed, algorithm, run) in runs.items():
                spent = dict.fromkeys(taken, 0.0)
                r = timed(fed.train_cohort, "local", spent)(turn + 1, algorithm, run, {})
                run["theta"], run["buffers"] = timed(algorithm.aggregate, "server", spent)(r, run["server"])
                for kind in taken if turn else ():
                    taken[kind][method].append(float(f"{spent[kind]:.4g}"))
                personal = algorithm.personal(fed.flat.layout)
                model = 4 * sum(
                    len(v) - int(personal[i].sum() if personal else 0)
                    for i, v in enumerate((run["theta"], run["buffers"]))
                )
                up[method] = model + sum(map(size, r.uploads.values())) // len(r.ids)
                down[method] = model + sum(map(size, run["broadcast"].values()))
            on_turn(turn)
        return {"parameters": fed.flat.layout.size, "up": up, "down": down} | taken


def size(sent) -> int:
    """Bytes of what is sent: tensors as they are, a bare number as four."""
    if isinstance(sent, (list, tuple)):
        return sum(map(size, sent))
    return sent.numel() * sent.element_size() if hasattr(sent, "numel") else 4


@MEASURES.register("under_flower")
class UnderFlower(Measurement):
    """Methods under Flower's simulation engine and in this simulator, with the same clients.

    Accuracy over the rounds (Flower's begins before any training), and by ``checked`` round the largest difference
    between any parameter of the two models.
    """

    dataset: str = "digits"
    model: str = "mlp"
    methods: tuple = ("fedavg", "lws")
    partition: str = "dirichlet(alpha=0.5)"
    clients: int = 4
    subset: int | None = None
    checked: tuple = (1, 3)  # the last of them ends the runs
    epochs: int = 1
    batch_size: int = 16
    lr: float = 0.1
    seed: int = 0
    seconds = 60.0

    def specs(self) -> dict[tuple[str, int], RunSpec]:
        return {
            (method, rounds): RunSpec(
                dataset=self.dataset, model=self.model, partition=self.partition, clients=self.clients, lr=self.lr,
                subset=self.subset, local_epochs=self.epochs, batch_size=self.batch_size, rounds=rounds,
                seed=self.seed, algorithm=method,
            )
            for method in self.methods
            for rounds in self.checked
        }  # fmt: skip

    check = specs

    def measure(self, on_turn) -> dict:
        from fedlib import flower
        from fedlib.simulation import rounded, trained

        specs = self.specs()
        found = {method: {"apart": {}} for method in self.methods}
        for (method, rounds), theirs in zip(specs, flower.simulate(*specs.values()), strict=True):
            record, ours = trained(specs[method, rounds])
            state, scores = theirs.arrays.to_torch_state_dict(), theirs.evaluate_metrics_serverapp
            apart = max((state[name].double() - tensor.double()).abs().max().item() for name, tensor in ours.items())
            found[method]["apart"][str(rounds)] = rounded(apart)
            found[method]["flower"] = rounded([scores[n]["accuracy"] for n in range(rounds + 1)])
            found[method]["fedlib"] = record.series["accuracy"]
        return found


def timed(work, name: str, spent: dict):
    """``work``, which from now on adds the CPU seconds it takes to ``spent[name]``: others may use the machine."""

    def working(*arguments):
        began = time.process_time()
        result = work(*arguments)
        spent[name] += time.process_time() - began
        return result

    return working


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
        from fedlib.data import DATASETS
        from fedlib.data.partition import PARTITIONS

        DATASETS.make(self.dataset)
        PARTITIONS.make(self.partition)

    def split(self):
        """(data set, partition)."""
        from fedlib.data import load, partition, subset

        data = subset(load(self.dataset), self.subset, None)
        domains = None if data.domain_train is None else data.domain_train.numpy()
        labels = data.y_train.numpy()
        return data, partition.split(self.partition, labels, self.clients, self.seed, domains, data.classes)


@MEASURES.register("class_counts")
class ClassCounts(OnPartition):
    """Samples of every class that each client holds (FedLWS Fig. 11, FedAWA Fig. 8, FedLAW Fig. 13)."""

    def measure(self, on_turn) -> dict:
        _, partition = self.split()
        return {"counts": partition.counts.tolist(), "fingerprint": partition.fingerprint}


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

    def measure(self, on_turn) -> dict:
        from itertools import combinations

        import numpy as np

        from fedlib.data.distances import labelled_transport, transport
        from fedlib.random import stream

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

    def spec(self) -> RunSpec:
        """The run that trains the model, or that begins with the start."""
        from fedlib.pretrained import STARTS

        known = STARTS.make(self.start) if self.start else None
        return RunSpec(
            dataset=self.dataset, model=known.card["model"] if known else self.model, partition="iid", clients=1,
            subset=self.subset, batch_size=128, lr=0.05, seed=self.seed, start=self.start,
            transform=known.transform if known else "unit",
        )  # fmt: skip

    def features(self, data):
        import torch

        if self.model is None and self.start is None:
            return data.x_train.flatten(1).double().numpy() / 255
        from fedlib.algorithms import Client
        from fedlib.simulation import Federation
        from fedlib.training import train

        spec = self.spec()
        fed = Federation(spec)
        flat = fed.flat
        if self.start is None:
            client = Client(0, 1, flat.model, flat.layout, flat.theta, flat.grad, flat.theta.clone())
            train(flat, fed.x, fed.y, client, [], spec, fed.optimizer, fed.moments, self.epochs)
        with torch.inference_mode():
            flat.model.eval()
            return torch.cat([flat.model.features(x) for x in fed.x.split(1000)]).double().cpu().numpy()
