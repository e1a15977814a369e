"""Measurements that are not federated runs, such as the seconds of an aggregation step. They are records too.

A notebook's grid may hold ``Measure("aggregation_time(model=resnet20)")`` beside its ``RunSpec``s: planned, stored
and read back the same way, so that a page renders without measuring anything again.
"""

import hashlib
import json
import time
from dataclasses import dataclass
from functools import cached_property

from fedlib.registry import Registry, written

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
    def revisions(self) -> dict[str, int]:
        thing = MEASURES.make(self.text)
        return {thing.name: thing.revision} if thing.revision > 1 else {}

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


@MEASURES.register("aggregation_time")
class AggregationTime:
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
        taken = {method: [] for method in self.methods}
        for turn in range(self.turns):
            for method in self.methods:
                began = time.perf_counter()
                aggregate(method, start, clients, [100] * self.clients, model=model, proxy=data)
                taken[method].append(float(f"{time.perf_counter() - began:.4g}"))
            on_turn(turn + 1)
        return {"parameters": sum(p.numel() for p in model.parameters()), "seconds": taken}
