"""What one run or measurement is: everything that decides its numbers, frozen, with a canonical id."""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fedlib.core.errors import FedlibError, meant, quoted
from fedlib.core.registry import canonical, check, registry_of

FIELDS = {  # the fields in written form, and what each names
    "dataset": "data set", "model": "model", "partition": "partition", "corruption": "corruption", "proxy": "proxy",
    "optimizer": "optimizer", "start": "start",
}  # fmt: skip

MOST = 1_000_000  # clients, rounds, epochs, the learning rate and how much it may grow


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One federated run. Written forms such as ``dirichlet(alpha=0.1)`` are checked and made canonical."""

    dataset: str  # such as mnist, cifar10 or digits(shape=(1, 28, 28))
    model: str  # such as mlp(hidden=64) or simple_cnn
    partition: str  # such as shards(per_client=2) or dirichlet(alpha=0.1)
    algorithm: str = "fedavg"  # parts joined by '+', such as fedprox(mu=0.01)
    start: str | None = None  # a pretrained checkpoint, such as resnet20_cifar10; None is fresh weights
    subset: int | None = None  # training images used, the first of every class; None is all
    skip: int = 0  # training images passed over before those, the first of every class
    test_subset: int | None = None  # the same for the test set
    transform: Literal["unit", "half", "imagenet"] = "unit"  # pixels in [0, 1], in [-1, 1], or less ImageNet's mean
    augment: Literal["none", "crop_flip", "crop_flip_turn"] = "none"  # of clients' images, anew every epoch
    corruption: str | None = None  # such as swap(fraction=0.25)
    client_holdout: float = 0.0  # share of every client's data kept from training
    proxy: str | None = None  # the server's own data, such as balanced(size=200), cut from the test set
    clients: int = 10
    participation: float = 1.0  # share of the clients in every round
    stragglers: float = 0.0  # share of a cohort that stops after a random number of epochs in [1, E]
    rounds: int = 10
    local_epochs: int = 1
    batch_size: int = 32
    optimizer: str = "sgd(momentum=0.9)"
    keep_optimizer: bool = False  # whether a client's optimiser state outlives the round
    lr: float = 0.01
    lr_decay: float = 1.0  # factor on lr per round
    server_lr: float = 1.0  # step along the averaged update
    precision: Literal["float32", "bfloat16", "tf32"] = "float32"  # bfloat16: of local forward passes; tf32: of a card
    eval_every: int = 1
    evaluation: Literal["auto", "global", "clients"] = "auto"  # whose model is scored; auto is the algorithm's own way
    seed: int = 0
    probes: str | None = field(default=None, compare=False)  # measured besides, such as spread+balance; not in the id

    def __post_init__(self):
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, check(f.name, f.type, getattr(self, f.name)))
        for name in FIELDS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, canonical(_made(self, name)))
        algorithm = _algorithm(self.algorithm)
        object.__setattr__(self, "algorithm", str(algorithm))
        self._check_ranges()
        self._check_fit()
        if self.proxy is None and (learning := [p.name for p in algorithm.servers if p.needs_proxy]):
            raise FedlibError(f"{learning[0]} learns from data on the server: set proxy, such as balanced(size=200).")
        self._check_personal(algorithm)
        if self.probes is not None:
            probes = registry_of("probe").make_all(self.probes)
            object.__setattr__(self, "probes", "+".join(sorted({canonical(probe) for probe in probes})) or None)
            for probe in probes:
                probe.check(self)

    def _check_personal(self, algorithm: Any):
        if self.evaluation == algorithm.evaluation:  # one written form, so one id
            object.__setattr__(self, "evaluation", "auto")
        if self.evaluation == "clients":
            raise FedlibError(f"{self.algorithm} leaves clients no model of their own to score: leave evaluation=auto.")
        if self.evaluation == "global" and not algorithm.whole:
            raise FedlibError(f"{self.algorithm} has no complete global model to score: leave evaluation=auto.")
        for part in algorithm.locals:
            if self.local_epochs < part.least_epochs:
                raise FedlibError(f"{part.name} needs local_epochs >= {part.least_epochs}; got {self.local_epochs}.")

    def _check_fit(self):
        dataset, model = _made(self, "dataset"), _made(self, "model")
        words, known = getattr(dataset, "vocabulary", None), getattr(model, "vocabulary", None)
        if words is not None and known is None:
            raise FedlibError(f"{self.dataset} is made of words: it needs a model of texts, such as textcnn.")
        if words is None and known is not None:
            raise FedlibError(f"{self.model} reads words: it needs a data set of texts, such as ag_news.")
        if words is not None and known < words:
            raise FedlibError(f"{self.dataset} has {words} words: write a model with vocabulary={words} or more.")
        if self.start is not None and (theirs := _made(self, "start").card["model"]) != self.model:
            raise FedlibError(f"The start {self.start} is a {theirs} and this run's model is {self.model}.")
        if self.transform != "unit" and len(dataset.shape) != 3:
            raise FedlibError(f"{self.dataset} has no pixels for transform={self.transform}: leave it out.")
        if self.augment != "none" and len(dataset.shape) != 3:
            raise FedlibError(f"{self.dataset} has no pictures for augment={self.augment}: leave it out.")
        if self.transform == "imagenet" and dataset.shape[0] != 3:
            raise FedlibError(f"transform=imagenet is for colour images, which {self.dataset} does not have.")

    def _check_ranges(self):
        for name in ("clients", "rounds", "local_epochs", "batch_size", "eval_every"):
            if not 1 <= getattr(self, name) <= MOST:
                raise FedlibError(f"{name} must be at least 1 and at most {MOST:,}; got {getattr(self, name)}.")
        for name in ("lr", "lr_decay", "server_lr"):
            if not 0 < getattr(self, name) <= MOST:
                raise FedlibError(f"{name} must be a positive number up to {MOST:,}; got {getattr(self, name)}.")
        if self.rounds * math.log(self.lr_decay) > math.log(MOST):
            raise FedlibError(f"lr_decay={self.lr_decay} makes lr endless in {self.rounds} rounds: choose 1 or less.")
        for name in ("stragglers", "client_holdout"):
            if not 0 <= getattr(self, name) < 1 and not (name == "stragglers" and self.stragglers == 1):
                bounds = "[0, 1]" if name == "stragglers" else "[0, 1)"
                raise FedlibError(f"{name} is a share in {bounds}; got {getattr(self, name)}.")
        if not 0 < self.participation <= 1 or self.clients_per_round < 1:
            raise FedlibError(
                f"participation={self.participation} of {self.clients} clients selects nobody or too many; "
                f"choose a share from {1 / self.clients:.4g} to 1."
            )
        for name in ("seed", "skip"):
            if getattr(self, name) < 0:
                raise FedlibError(f"{name} must not be negative; got {getattr(self, name)}.")
        if self.skip and self.subset is None:
            raise FedlibError("skip passes over training images before a subset: set subset too.")
        for name in ("subset", "test_subset"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise FedlibError(f"{name} must be at least 1, or None for all; got {getattr(self, name)}.")

    @property
    def clients_per_round(self) -> int:
        """Clients per round; the small term undoes 0.29 * 100 = 28.999…"""
        return int(self.participation * self.clients + 1e-9)

    @property
    def scored_models(self) -> int:
        """How many models an evaluation has to look at: the global one, or those that the cohort left changed."""
        return 1 if "global" in (self.evaluation, _algorithm(self.algorithm).evaluation) else self.clients_per_round

    def replace(self, **changes: Any) -> "RunSpec":
        return dataclasses.replace(self, **changes)

    def with_probes(self, probes: str | None) -> "RunSpec":
        """The same run with these probes too."""
        return self.replace(probes="+".join(filter(None, (self.probes, probes)))) if probes else self

    def to_json(self) -> dict:
        """The fields that differ from their defaults; defaults never change, so old ids stay valid."""
        fields = [f for f in dataclasses.fields(self) if f.compare]  # probes decide no number
        return {f.name: getattr(self, f.name) for f in fields if getattr(self, f.name) != f.default}

    @classmethod
    def from_json(cls, fields: dict) -> "RunSpec":
        known = {f.name for f in dataclasses.fields(cls)}
        if not isinstance(fields, dict):
            raise FedlibError(f"A run is given by its fields, by name; got {quoted(fields)}.")
        if unknown := sorted(set(fields) - known):
            names = ", ".join(name if name.isidentifier() else quoted(name) for name in unknown)
            near = meant(unknown[0], known)
            raise FedlibError(f"A run has no field {names}{near}; it has: {', '.join(sorted(known))}.")
        if missing := sorted({"dataset", "model", "partition"} - set(fields)):
            raise FedlibError(f"A run needs {', '.join(missing)}.")
        return cls(**fields)

    @cached_property
    def revisions(self) -> dict[str, int | str]:
        """Revisions above 1 of the data set, model, partition and algorithm parts involved; a start's is its sha256."""
        return {t.name: t.revision for t in self.components() if t.revision != 1}

    def components(self) -> list:
        """The data set, model, partition, algorithm parts … that it names."""
        things = [_made(self, name) for name in FIELDS if getattr(self, name) is not None]
        return things + _algorithm(self.algorithm).parts

    @cached_property
    def id(self) -> str:
        text = json.dumps([self.to_json(), self.revisions], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _made(spec: RunSpec, field: str):
    """What a field's text stands for, such as the model."""
    return registry_of(FIELDS[field]).make(getattr(spec, field))


def _algorithm(text: str):
    return registry_of("algorithm").compose(text)


@dataclass(frozen=True)
class Measure:
    """One measurement in its written form."""

    text: str
    probes = None  # those are for runs

    def __post_init__(self):
        object.__setattr__(self, "text", canonical(registry_of("measurement").make(self.text)))

    @property
    def rounds(self) -> int:
        """Its steps, for progress bars."""
        return getattr(registry_of("measurement").make(self.text), "turns", 1)

    @cached_property
    def revisions(self) -> dict[str, int | str]:
        thing = registry_of("measurement").make(self.text)
        found = {thing.name: thing.revision} if thing.revision != 1 else {}
        if start := getattr(thing, "start", None):
            found[start] = registry_of("start").make(start).revision
        return found

    @cached_property
    def id(self) -> str:
        text = json.dumps([self.text, self.revisions], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return self.text

    def estimate(self) -> float:
        """Seconds it may take."""
        return registry_of("measurement").make(self.text).seconds
