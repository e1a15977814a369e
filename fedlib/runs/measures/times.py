"""How long things take: the server's step, a local epoch, a round. Only ratios within a turn mean anything."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedlib.algorithms import Algorithm, Round
from fedlib.core.errors import FedlibError
from fedlib.core.spec import MOST, RunSpec
from fedlib.federation.aggregation import aggregate, refuse_local
from fedlib.federation.federation import Federation
from fedlib.federation.state import RunState
from fedlib.models import MODELS, build
from fedlib.runs.measures.base import MEASURES, Measurement, OnTurn


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
        MODELS.make(self.model)
        for method in self.methods:
            refuse_local(Algorithm(method), "and aggregation_time has none that train: leave it out")
        if not all(type(n) is int and 0 < n <= MOST for n in self.shape):
            raise FedlibError(f"aggregation_time(shape=…) is a tuple of positive integers; got {self.shape}.")

    def measure(self, on_turn: OnTurn) -> dict:
        model = build(self.model, tuple(self.shape), self.classes, 0)
        start = {n: t.clone() for n, t in model.state_dict().items()}
        torch.manual_seed(0)

        def moved(t: Tensor) -> Tensor:
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
        return specs_of(self, subset=self.subset, optimizer=self.optimizer)

    check = specs

    def measure(self, on_turn: OnTurn) -> dict:
        taken = {kind: {method: [] for method in self.methods} for kind in ("seconds", "gradient", "end")}
        for turn, method, rounds in take_turns(self.specs(), self.turns, on_turn, hooks=("gradient", "end")):
            for kind in taken if turn else ():
                seconds = rounds.spent["local" if kind == "seconds" else kind]
                taken[kind][method].append(float(f"{seconds / (self.clients * self.epochs):.4g}"))
        return {"parameters": rounds.fed.flat.layout.size} | taken


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
        return specs_of(self, subset=self.subset, test_subset=self.test_subset, proxy=self.proxy)

    check = specs

    def measure(self, on_turn: OnTurn) -> dict:
        taken = {kind: {method: [] for method in self.methods} for kind in ("local", "server")}
        up, down = {}, {}
        for turn, method, rounds in take_turns(self.specs(), self.turns, on_turn):
            for kind in taken if turn else ():
                taken[kind][method].append(float(f"{rounds.spent[kind]:.4g}"))
            state, personal = rounds.state, rounds.algorithm.personal(rounds.fed.flat.layout)
            vectors = enumerate((state.theta, state.buffers))
            model = 4 * sum(len(v) - int(personal[i].sum() if personal else 0) for i, v in vectors)
            up[method] = model + sum(map(size, rounds.last.uploads.values())) // len(rounds.last.ids)
            down[method] = model + sum(map(size, state.broadcast.values()))
        return {"parameters": rounds.fed.flat.layout.size, "up": up, "down": down} | taken


@dataclass
class Rounds:
    """A federation whose rounds are timed, one by one."""

    fed: Federation
    algorithm: Algorithm
    state: RunState
    spent: dict[str, float]  # CPU seconds of the last round, by what took them
    last: Round = field(init=False)


def specs_of(measure: "EpochTime | RoundCost", **more: Any) -> dict[str, RunSpec]:
    """The run of every method that ``measure`` compares; the first of its rounds is not timed."""
    base = RunSpec(
        dataset=measure.dataset, model=measure.model, partition=measure.partition, clients=measure.clients,
        lr=measure.lr, local_epochs=measure.epochs, batch_size=measure.batch_size, rounds=measure.turns + 1,
        **more,
    )  # fmt: skip
    return {method: base.replace(algorithm=method) for method in measure.methods}


def take_turns(
    specs: dict[str, RunSpec], turns: int, on_turn: OnTurn, hooks: tuple = ()
) -> Iterator[tuple[int, str, Rounds]]:
    """(turn, method, its rounds) after every round; methods take turns in one process, so that all share its luck.

    ``spent`` has the seconds of the clients (local) and of the server, and of the ``hooks`` of local methods.
    """
    runs = {}
    for method, spec in specs.items():
        fed, spent = Federation(spec), dict.fromkeys(("local", "server", *hooks), 0.0)
        runs[method] = Rounds(fed, Algorithm(spec.algorithm), fed.start(), spent)
        for part in runs[method].algorithm.locals:
            for hook in hooks:
                object.__setattr__(part, hook, timed(getattr(part, hook), hook, spent))
    for turn in range(turns + 1):
        for method, rounds in runs.items():
            state, spent = rounds.state, rounds.spent
            spent |= dict.fromkeys(spent, 0.0)
            r = rounds.last = timed(rounds.fed.train_cohort, "local", spent)(turn + 1, rounds.algorithm, state, {})
            state.theta, state.buffers = timed(rounds.algorithm.aggregate, "server", spent)(r, state.server)
            yield turn, method, rounds
        on_turn(turn)


def timed(work: Callable, name: str, spent: dict[str, float]) -> Callable:
    """``work``, which from now on adds the CPU seconds it takes to ``spent[name]``: others may use the machine."""

    def working(*arguments: Any) -> Any:
        began = time.process_time()
        result = work(*arguments)
        spent[name] += time.process_time() - began
        return result

    return working


def size(sent: Any) -> int:
    """Bytes of what is sent: tensors as they are, a bare number as four."""
    if isinstance(sent, (list, tuple)):
        return sum(map(size, sent))
    return sent.numel() * sent.element_size() if hasattr(sent, "numel") else 4
