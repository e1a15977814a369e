"""Local training of one client: the only SGD loop."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms import Batch, Client, Local
from fedlib.core.errors import Diverged
from fedlib.core.layout import FlatModel, gather
from fedlib.core.random import stream, torch_seed
from fedlib.core.spec import RunSpec
from fedlib.data.augment import DEGREES, augment
from fedlib.models.base import has_features


def train(
    flat: FlatModel, x: Tensor, y: Tensor, client: Client, parts: list[Local], spec: RunSpec, optimizer: Any,
    moments: dict[str, Tensor], epochs: int, replayed: Callable | None = None,
) -> float:  # fmt: skip
    """Train ``flat`` in place on one client's samples (x, y); returns the mean training loss.

    Batches are drawn from a stream keyed by (seed, round, client): the algorithm does not change what a client
    sees. Samples are shuffled once per epoch, so a batch is a slice, not a copy. ``replayed`` (see graphs) does a step
    on a full batch in its own way.
    """
    lr = spec.lr * spec.lr_decay ** (client.round - 1)
    order = stream(spec.seed, "batches", client.round, client.id)
    altered = stream(spec.seed, "augment", client.round, client.id)
    torch.manual_seed(torch_seed(spec.seed, "dropout", client.round, client.id))
    extra = [p for p in parts if type(p).loss is not Local.loss]
    edits = [p for p in parts if type(p).gradient is not Local.gradient]
    model: Any = flat.model.train()
    theta, grad = flat.theta, flat.grad
    two_parts = has_features(model)
    mixed = spec.precision == "bfloat16"
    closed_form = model.closed_form() if hasattr(model, "closed_form") and not extra and not mixed else None
    total, batches = torch.zeros((), device=theta.device), 0
    phases = client.state if spec.keep_optimizer else {}
    client.spec, client.epochs = spec, epochs

    def step(xb: Tensor, yb: Tensor, index: Tensor | None = None) -> Tensor:
        """One batch; returns its cross-entropy."""
        if closed_form:
            plain = closed_form(xb, yb)
        else:
            with torch.autocast(theta.device.type, torch.bfloat16, enabled=mixed):
                features = model.features(xb) if two_parts else None
                logits = model.classifier(features) if two_parts else model(xb)
                loss = F.cross_entropy(logits, yb)
                plain = loss.detach()
                for part in extra:
                    if (term := part.loss(client, Batch(xb, yb, features, logits, index))) is not None:
                        loss = loss + term
            flat.backward(loss)
        for part in edits:
            part.gradient(client)
        optimizer.step(*moving, lr)
        return plain

    for part in parts:
        part.begin(client)
    for client.epoch in range(epochs):
        for part in parts:
            part.epoch(client)
        moving = theta, grad, moments
        if client.active is not None:  # a slice that trains by itself has an optimiser of its own
            w, key = theta[client.active], f"optimizer of {client.active}"
            moving = w, grad[client.active], phases.setdefault(key, optimizer.state(w))
        shuffled = torch.from_numpy(order.permutation(len(y))).to(y.device)
        xs, ys = gather(x, shuffled), y[shuffled]
        if spec.augment != "none":
            xs = augment(xs, altered, DEGREES[spec.augment])
        for xb, yb, index in zip(*(t.split(spec.batch_size) for t in (xs, ys, shuffled)), strict=True):
            total += replayed(step, xb, yb, lr) if replayed and len(yb) == spec.batch_size else step(xb, yb, index)
            batches += 1
    for part in parts:
        part.end(client)
    loss, whole = torch.stack([total, theta.sum()]).tolist()  # the only time that the host waits for a card
    mean = loss / batches
    if not math.isfinite(mean) or not math.isfinite(whole):
        what = "loss" if not math.isfinite(mean) else "update"
        raise Diverged(
            f"Client {client.id} diverged in round {client.round}: its {what} is not finite. Try a smaller lr.",
            client.round,
            client.id,
        )
    return mean
