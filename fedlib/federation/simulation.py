"""One run, from spec to record: the round loop on one screen."""

import functools
import hashlib
import platform
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedlib.algorithms import Algorithm, Client, Round
from fedlib.core.device import describe_device, device, prepare_device
from fedlib.core.errors import Diverged, FedlibError
from fedlib.core.layout import FlatModel, gather, matrix
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.data import TRANSFORMS, corruption, load, partition, proxy, subset
from fedlib.federation.cohort import together, train_together
from fedlib.federation.training import train
from fedlib.models import build
from fedlib.models.base import evaluate
from fedlib.models.starts import STARTS
from fedlib.probes import observe, sections
from fedlib.runs.store import Record


@contextmanager
def one_thread():
    """One thread and flushed denormals: the same numbers on a busy machine as on an idle one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


class Federation:
    """The fixed part of a run: data on the device, who owns what, the model and where it starts."""

    def __init__(self, spec: RunSpec):
        data = subset(load(spec.dataset), spec.subset, spec.test_subset, spec.skip)
        labels = data.y_train.numpy()
        domains = None if data.domain_train is None else data.domain_train.numpy()
        self.partition = partition.split(spec.partition, labels, spec.clients, spec.seed, domains, data.classes)
        if spec.corruption:
            labels = corruption.corrupt(spec.corruption, labels, self.partition, spec.seed)
        held, test = None, np.arange(len(data.y_test))
        if spec.proxy:
            held, test = proxy.cut(spec.proxy, data.y_test.numpy(), spec.seed)
        remaining = [partition.holdout(mine, spec.client_holdout, spec.seed) for mine in self.partition.indices]
        self.indices = [torch.from_numpy(mine) for mine in remaining]
        if not any(len(i) for i in self.indices):
            raise FedlibError("No client holds any sample; give the partition more data or fewer clients.")
        model = build(spec.model, tuple(data.x_train.shape[1:]), data.classes, spec.seed)
        if spec.start:
            STARTS.make(spec.start).load_into(model)
        # Memory format is a fixed rule of the model: channels_last for convolutions, which it speeds up.
        conv = any(isinstance(m, nn.Conv2d) for m in model.modules())
        self.flat = FlatModel(model, device(), channels_last=conv)
        form = torch.channels_last if conv else torch.contiguous_format

        def resident(x):
            return TRANSFORMS[spec.transform](x).to(device(), memory_format=form)

        self.x, self.y = resident(data.x_train), torch.from_numpy(labels).to(device())
        self.x_test, self.y_test = resident(data.x_test[test]), data.y_test[test].to(device())
        self.domain_test = None if data.domain_test is None else data.domain_test[test].to(device())
        self.proxy = None if held is None else (resident(data.x_test[held]), data.y_test[held].to(device()))
        self.data, self.classes, self.samples = data, data.classes, int(self.partition.counts.sum())
        self.mean_size = self.samples / spec.clients
        self.spec, self.optimizer = spec, OPTIMIZERS.make(spec.optimizer)
        self.moments = self.optimizer.state(self.flat.theta)
        # The cohort's models, in the same memory every round: a gigabyte of new pages costs as much as filling it.
        self.rows = matrix(spec.cohort, self.flat.layout.size, device())

    def train_cohort(self, number: int, algorithm: Algorithm, run: dict, logs: dict) -> Round | None:
        """Train this round's clients from the global model; None if none of them has data."""
        spec, flat = self.spec, self.flat
        chosen = [(k, e) for k, e in zip(*cohort(spec, number), strict=True) if len(self.indices[k])]
        if not chosen:
            return None
        thetas, buffers = self.rows[: len(chosen)], matrix(len(chosen), flat.layout.buffer_size, device())
        ids, epochs = map(list, zip(*chosen, strict=True))
        if together(flat, spec, algorithm.locals, flat.theta.is_cuda):
            thetas[:] = run["theta"]
            owned = [self.indices[k] for k in ids]
            losses = train_together(flat, thetas, self.x, self.y, owned, ids, epochs, number, spec, self.optimizer)
            numbers, uploads = {"train_loss": losses}, {}
        else:
            numbers, uploads = self.train_apart(chosen, thetas, buffers, number, algorithm, run)
        logs.update({name: float(np.mean(values)) for name, values in numbers.items()})
        sizes = torch.tensor([len(self.partition.indices[k]) for k in ids], dtype=torch.float32, device=device())
        context = {"model": flat, "proxy": self.proxy, "test": (self.x_test, self.y_test), "seed": spec.seed}
        context["counts"] = torch.from_numpy(self.partition.counts[ids])  # samples of every class, per client
        context |= {"samples": self.samples, "clients": spec.clients, "dataset": self.data}
        return Round(
            flat.layout, run["theta"], run["buffers"], thetas, buffers, sizes, ids, number, spec.server_lr, context,
            uploads, run["broadcast"],
        )  # fmt: skip

    def train_apart(self, chosen, thetas, buffers, number: int, algorithm: Algorithm, run: dict) -> tuple[dict, dict]:
        """One client after another, into the rows of ``thetas`` and ``buffers``; what they log and what they upload."""
        spec, flat = self.spec, self.flat
        numbers, uploads = defaultdict(list), defaultdict(list)
        personal, keeps = algorithm.personal(flat.layout, device()), any(p.keeps for p in algorithm.locals)
        for row, (k, epochs) in enumerate(chosen):
            kept, anchor = run["clients"].get(k, {}), run["theta"]
            flat.theta.copy_(anchor)
            flat.buffers.copy_(run["buffers"])
            if personal and "model" in kept:
                for vector, own, mask in zip((flat.theta, flat.buffers), kept["model"], personal, strict=True):
                    vector[mask] = own[mask]
                anchor = flat.theta.clone()
            x, y = gather(self.x, self.indices[k]), self.y[self.indices[k]]
            client = Client(
                k, number, flat.model, flat.layout, flat.theta, flat.grad, anchor, kept, run["broadcast"],
                (x, y), self.classes, len(self.partition.indices[k]) / self.mean_size,
                getattr(self.optimizer, "momentum", 0.0),
                {"dataset": self.data, "indices": self.indices[k]},
            )  # fmt: skip
            moments = self.moments
            if spec.keep_optimizer:
                moments = kept.setdefault("optimizer", self.optimizer.state(flat.theta))
            else:
                for tensor in moments.values():
                    tensor.zero_()
            client.log("train_loss", train(flat, x, y, client, algorithm.locals, spec, self.optimizer, moments, epochs))
            if keeps:
                kept["model"] = flat.theta.clone(), flat.buffers.clone()
                kept.pop("score", None)
            if kept:
                run["clients"][k] = kept
            thetas[row], buffers[row] = flat.theta, flat.buffers
            for name, value in client.logs.items():
                numbers[name].append(value)
            for name, value in client.uploads.items():
                uploads[name].append(value)
        return numbers, uploads

    def evaluate(self, theta: torch.Tensor, buffers: torch.Tensor, algorithm: Algorithm, clients: dict) -> dict:
        """Accuracy and loss on the test set: of the global model, or the mean over all clients' own models.

        A client's own model is what it trained last, however long ago, or the global one until it takes part. Its
        score is kept as long as its model is; who fits the global model to its data first is scored every time.
        """
        whole = {"model": (theta, buffers)}
        if "global" in (self.spec.evaluation, algorithm.evaluation):
            accuracy, loss = self.score(whole)
            return {"accuracy": accuracy, "loss": loss}
        fit = [p for p in algorithm.locals if p.adapts]
        scores = []
        for k in (k for k, mine in enumerate(self.indices) if len(mine)):
            kept = clients.get(k, whole)
            kept = kept if "model" in kept else whole
            if fit or "score" not in kept:
                kept["score"] = self.score(kept, k, fit)
            scores.append(kept["score"])
        accuracy, loss = np.mean(scores, axis=0).tolist()
        return {"accuracy": accuracy, "loss": loss}

    def score(self, kept: dict, k: int = 0, fit=()) -> tuple[float, float]:
        flat = self.flat
        for vector, own in zip((flat.theta, flat.buffers), kept["model"], strict=True):
            vector.copy_(own)
        if fit:
            data = gather(self.x, self.indices[k]), self.y[self.indices[k]]
            client = Client(k, 0, flat.model, flat.layout, flat.theta, flat.grad, kept["model"][0], data=data)
            for part in fit:
                part.adapt(client)
        return evaluate(flat.model, self.x_test, self.y_test)


def cohort(spec: RunSpec, number: int) -> tuple[list[int], list[int]]:
    """Who takes part in a round and for how many epochs: a matter of the seed alone."""
    ids = stream(spec.seed, "cohort", number).choice(spec.clients, spec.cohort, replace=False)
    epochs = np.full(len(ids), spec.local_epochs)
    slow = stream(spec.seed, "stragglers", number)
    late = slow.permutation(len(ids))[: round(spec.stragglers * len(ids))]
    epochs[late] = slow.integers(1, spec.local_epochs + 1, len(late))
    return ids.tolist(), epochs.tolist()


def simulate(spec: RunSpec, checkpoint=None, on_round=None) -> Record:
    """Run ``spec`` and return its record. ``checkpoint`` (see store) makes it resumable; ``on_round(done)`` is told
    after every round."""
    return trained(spec, checkpoint, on_round)[0]


def trained(spec: RunSpec, checkpoint=None, on_round=None) -> tuple[Record, dict[str, torch.Tensor]]:
    """As ``simulate``, with the global model it ended at as a state_dict."""
    prepare_device(spec.precision)
    with one_thread():
        return _simulate(spec, checkpoint, on_round or (lambda done: None))


def _simulate(spec: RunSpec, checkpoint, on_round) -> tuple[Record, dict[str, torch.Tensor]]:
    began = time.perf_counter()
    fed, algorithm = Federation(spec), Algorithm(spec.algorithm)
    run = {
        "round": 0,
        "theta": fed.flat.theta.clone(),
        "buffers": fed.flat.buffers.clone(),
        "server": {},  # what the algorithm's parts remember between rounds, by part
        "clients": {},  # the same for every client that ever took part
        "broadcast": {},  # what the server sends along with the model
        "series": {},
        "probes": sections(spec.probes),
        "seconds": 0.0,
    }
    if checkpoint and (saved := checkpoint.load(device())) and run["probes"].keys() <= saved.get("probes", {}).keys():
        run.update(saved)
        on_round(run["round"])
    before, error = run["seconds"], None
    try:
        while run["round"] < spec.rounds:
            number = run["round"] = run["round"] + 1
            logs = {}
            if r := fed.train_cohort(number, algorithm, run, logs):
                run["theta"], run["buffers"] = algorithm.aggregate(r, run["server"])
                logs.update(r.logs)
                if not all(bool(torch.isfinite(run[name].sum())) for name in ("theta", "buffers")):
                    raise Diverged(f"The aggregate of round {number} is not finite.", number, None)
                for found in observe(fed, r, run["probes"]):
                    append(*found)
            if number % spec.eval_every == 0 or number == spec.rounds:
                theta = algorithm.evaluated(run["theta"], fed.flat.layout, run["server"])
                logs.update(round=number, **fed.evaluate(theta, run["buffers"], algorithm, run["clients"]))
                if not np.isfinite(logs["loss"]):
                    raise Diverged(f"The test loss of round {number} is not finite.", number, None)
                append(run["series"], logs)
            run["seconds"] = before + time.perf_counter() - began
            on_round(number)
            if checkpoint and checkpoint.due() and number < spec.rounds:
                checkpoint.save(**run)
    except Diverged as stop:
        error = {"round": stop.round, "client": stop.client, "message": str(stop)}
    measured = spec, run["series"], fed.partition, cohorts(spec), environment(), run["seconds"], error, run["probes"]
    return Record.of_run(*measured), fed.flat.layout.unpack(run["theta"].cpu(), run["buffers"].cpu())


def append(series: dict[str, list], logs: dict) -> None:
    """Add a round to the series. One of several numbers becomes a series of its own, such as ``gamma/conv1``; a
    client that was not there this time leaves None."""
    numbers = {}
    for name, value in logs.items():
        numbers |= {f"{name}/{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    before = len(series.get("round", []))
    for name in numbers:
        series.setdefault(name, [None] * before)
    for name, values in series.items():
        values.append(rounded(numbers.get(name)))


def rounded(value):
    """Six significant digits: what is meaningful, and short."""
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


@functools.cache
def cpu() -> str:
    """Maker, family and model of the processor: libraries choose kernels by them, which sum in other orders."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return " ".join(told[name] for name in ("vendor_id", "cpu family", "model"))
    except (OSError, KeyError):  # not Linux, or not x86
        return platform.processor() or platform.machine()


def cohorts(spec: RunSpec) -> str:
    """A fingerprint of the participation sequence."""
    text = repr([cohort(spec, n) for n in range(1, spec.rounds + 1)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def environment() -> dict[str, str]:
    """What the last digits hang on."""
    return {
        "torch": torch.__version__.split("+")[0],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": cpu(),
        "python": platform.python_version(),
    } | describe_device()
