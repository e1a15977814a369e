"""The fixed part of a run, and what one round of its clients does: the only place where clients are made."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlib.algorithms import Algorithm, Client, Local, Round
from fedlib.core.device import device
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel, gather, matrix
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.data import TRANSFORMS, Stored, load, partition, proxy, subset
from fedlib.data.corruption import CORRUPTIONS
from fedlib.federation.cohort import can_vectorise, train_together
from fedlib.federation.graphs import RecordedStep, can_record
from fedlib.federation.state import RunState
from fedlib.federation.training import train
from fedlib.models import build
from fedlib.models.base import evaluate, has_features
from fedlib.models.starts import STARTS
from fedlib.probes import parts, sections


class Federation:
    """The fixed part of a run: data on the device, who owns what, the model and where it starts."""

    def __init__(self, spec: RunSpec):
        data = subset(load(spec.dataset), spec.subset, spec.test_subset, spec.skip)
        labels = data.y_train.numpy()
        domains = None if data.domain_train is None else data.domain_train.numpy()
        self.partition = partition.split(spec.partition, labels, spec.clients, spec.seed, domains, data.classes)
        if spec.corruption:
            labels = CORRUPTIONS.make(spec.corruption).apply(labels, self.partition, spec.seed)
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
        if not has_features(model):
            refuse_features(spec)
        # Memory format is a fixed rule of the model: channels_last for convolutions, which it speeds up.
        conv = any(isinstance(m, nn.Conv2d) for m in model.modules())
        self.flat = FlatModel(model, device(), channels_last=conv)
        form = torch.channels_last if conv else torch.contiguous_format

        transform = TRANSFORMS[spec.transform]

        def resident(x: Tensor):
            return transform(x).to(device(), memory_format=form)

        self.x: Any  # a Tensor, or what is Stored
        self.x, self.y = data.x_train, torch.from_numpy(labels).to(device())
        self.x = Stored(self.x.to(device(), memory_format=form), transform) if self.y.is_cuda else resident(self.x)
        self.x_test, self.y_test = resident(data.x_test[test]), data.y_test[test].to(device())
        self.domain_test = None if data.domain_test is None else data.domain_test[test].to(device())
        self.proxy = None if held is None else (resident(data.x_test[held]), data.y_test[held].to(device()))
        self.data, self.classes, self.samples = data, data.classes, int(self.partition.counts.sum())
        self.mean_size = self.samples / spec.clients
        self.spec, self.optimizer = spec, OPTIMIZERS.make(spec.optimizer)
        self.moments = self.optimizer.state(self.flat.theta)
        self.replayed = RecordedStep(self.flat, self.moments)
        # The cohort's models, in the same memory every round: a gigabyte of new pages costs as much as filling it.
        self.rows = matrix(spec.clients_per_round, self.flat.layout.size, device())

    def start(self) -> RunState:
        """Before the first round."""
        sizes = [len(mine) for mine in self.partition.indices]
        return RunState(
            self.flat.theta.clone(), self.flat.buffers.clone(),
            partition={"fingerprint": self.partition.fingerprint, "sizes": sizes}, probes=sections(self.spec.probes),
        )  # fmt: skip

    def client(
        self, k: int, number: int, anchor: Tensor, data: tuple[Tensor, Tensor] | None = None, kept: dict | None = None,
        received: dict | None = None,
    ) -> Client:  # fmt: skip
        """Client ``k`` in round ``number``, about to train the model as it stands; one beyond the last owns nothing."""
        flat, owned = self.flat, k < self.spec.clients
        return Client(
            k, number, flat.model, flat.layout, flat.theta, flat.grad, anchor,
            state={} if kept is None else kept, received=received or {}, data=data, classes=self.classes,
            relative_size=len(self.partition.indices[k]) / self.mean_size if owned else 1.0,
            momentum=getattr(self.optimizer, "momentum", 0.0),
            context={"dataset": self.data, "indices": self.indices[k]} if owned else {},
        )  # fmt: skip

    def train_on(self, x: Tensor, y: Tensor, k: int, number: int, epochs: int) -> None:
        """Plain training of the model as it stands on any samples, in the batches client ``k`` has in that round."""
        client, moments = self.client(k, number, self.flat.theta.clone()), self.optimizer.state(self.flat.theta)
        train(self.flat, x, y, client, [], self.spec, self.optimizer, moments, epochs)

    def train_cohort(self, number: int, algorithm: Algorithm, state: RunState, logs: dict) -> Round | None:
        """Train this round's clients from the global model; None if none of them has data."""
        spec, flat = self.spec, self.flat
        chosen = [(k, e) for k, e in zip(*draw_clients(spec, number), strict=True) if len(self.indices[k])]
        if not chosen:
            return None
        thetas, buffers = self.rows[: len(chosen)], matrix(len(chosen), flat.layout.buffer_size, device())
        ids, epochs = map(list, zip(*chosen, strict=True))
        if can_vectorise(flat, spec, algorithm.locals, flat.theta.is_cuda):
            thetas[:] = state.theta
            owned = [self.indices[k] for k in ids]
            losses = train_together(flat, thetas, self.x, self.y, owned, ids, epochs, number, spec, self.optimizer)
            numbers, uploads = {"train_loss": losses}, {}
        else:
            numbers, uploads = self.train_sequentially(chosen, thetas, buffers, number, algorithm, state)
        logs.update({name: float(np.mean(values)) for name, values in numbers.items()})
        sizes = torch.tensor([len(self.partition.indices[k]) for k in ids], dtype=torch.float32, device=device())
        context: dict[str, Any] = {"model": flat, "proxy": self.proxy, "test": (self.x_test, self.y_test)}
        context["counts"] = torch.from_numpy(self.partition.counts[ids])  # samples of every class, per client
        context |= {"samples": self.samples, "clients": spec.clients, "dataset": self.data, "seed": spec.seed}
        return Round(
            flat.layout, state.theta, state.buffers, thetas, buffers, sizes, ids, number, spec.server_lr, context,
            uploads, state.broadcast,
        )  # fmt: skip

    def train_sequentially(
        self, chosen: list[tuple[int, int]], thetas: Tensor, buffers: Tensor, number: int, algorithm: Algorithm,
        state: RunState,
    ) -> tuple[dict, dict]:  # fmt: skip
        """One client after another, into the rows of ``thetas`` and ``buffers``; what they log and what they upload."""
        spec, flat = self.spec, self.flat
        numbers, uploads = defaultdict(list), defaultdict(list)
        replayed = self.replayed if can_record(spec, algorithm.locals, self.optimizer, flat.theta.is_cuda) else None
        personal, keeps = algorithm.personal(flat.layout, device()), any(p.keeps for p in algorithm.locals)
        for row, (k, epochs) in enumerate(chosen):
            kept, anchor = state.clients.get(k, {}), state.theta
            flat.load(anchor, state.buffers)
            if personal and "model" in kept:
                for vector, own, mask in zip((flat.theta, flat.buffers), kept["model"], personal, strict=True):
                    vector[mask] = own[mask]
                anchor = flat.theta.clone()
            x, y = gather(self.x, self.indices[k]), self.y[self.indices[k]]
            client = self.client(k, number, anchor, (x, y), kept, state.broadcast)
            moments = self.moments
            if spec.keep_optimizer:
                moments = kept.setdefault("optimizer", self.optimizer.state(flat.theta))
            else:
                for tensor in moments.values():
                    tensor.zero_()
            parts = algorithm.locals
            client.log("train_loss", train(flat, x, y, client, parts, spec, self.optimizer, moments, epochs, replayed))
            if keeps:
                kept["model"] = flat.theta.clone(), flat.buffers.clone()
                kept.pop("score", None)
            if kept:
                state.clients[k] = kept
            thetas[row], buffers[row] = flat.theta, flat.buffers
            for name, value in client.logs.items():
                numbers[name].append(value)
            for name, value in client.uploads.items():
                uploads[name].append(value)
        return numbers, uploads

    def evaluate(self, theta: Tensor, buffers: Tensor, algorithm: Algorithm, clients: dict) -> dict:
        """Accuracy and loss on the test set: of the global model, or the mean over all clients' own models.

        A client's own model is what it trained last, however long ago, or the global one until it takes part. Its
        score is kept as long as its model is; who fits the global model to its data first is scored every time.
        """
        whole: dict[str, Any] = {"model": (theta, buffers)}
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

    def score(self, kept: dict, k: int = 0, fit: Sequence[Local] = ()) -> tuple[float, float]:
        flat = self.flat
        flat.load(*kept["model"])
        if fit:
            data = gather(self.x, self.indices[k]), self.y[self.indices[k]]
            client = self.client(k, 0, kept["model"][0], data)
            for part in fit:
                part.adapt(client)
        return evaluate(flat.model, self.x_test, self.y_test)


def refuse_features(spec: RunSpec) -> None:
    """A sentence if something in this run looks at features, its model having none."""
    for part in (*Algorithm(spec.algorithm).parts, *parts(spec.probes)):
        if getattr(part, "uses_features", False):
            raise FedlibError(
                f"{part.name} looks at a model's features, which {spec.model} does not have: give it a method "
                "features(x) and a linear layer named classifier, as fedlib.models.Net has."
            )


def draw_clients(spec: RunSpec, number: int) -> tuple[list[int], list[int]]:
    """Who takes part in a round and for how many epochs: a matter of the seed alone."""
    ids = stream(spec.seed, "cohort", number).choice(spec.clients, spec.clients_per_round, replace=False)
    epochs = np.full(len(ids), spec.local_epochs)
    slow = stream(spec.seed, "stragglers", number)
    late = slow.permutation(len(ids))[: round(spec.stragglers * len(ids))]
    epochs[late] = slow.integers(1, spec.local_epochs + 1, len(late))
    return ids.tolist(), epochs.tolist()


def cohorts(spec: RunSpec) -> str:
    """A fingerprint of the participation sequence."""
    text = repr([draw_clients(spec, n) for n in range(1, spec.rounds + 1)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
