"""A cohort trained as one program: the same step of all its clients at once, by ``torch.func``.

Where a step is small, launching it costs more than its arithmetic, so on CUDA a cohort should take little longer than
one client (benchmarks/gpu.py measures it). On a CPU it wins nothing over the closed form of perceptrons
(benchmarks/training.py), so there clients go one by one.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedlib.core.errors import Diverged
from fedlib.core.layout import FlatModel
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.models.mlp import MLPNet

LARGEST = 1_000_000  # parameters; beyond, one client keeps a card busy
AT_ONCE = 50  # clients in one program; their gradients and activations are in memory together


def can_vectorise(flat: FlatModel, spec: RunSpec, parts: list, cuda: bool) -> bool:
    """The fixed rule: small perceptrons on CUDA, with nothing added to local training.

    With a batch of weights a convolution becomes a grouped one, which may well be slower than one client after
    another; dropout's random numbers are a client's own; cuDNN's RNNs take no batch of weights.
    """
    return (
        cuda
        and isinstance(flat.model, MLPNet)
        and flat.layout.size <= LARGEST
        and not parts
        and not spec.keep_optimizer
        and spec.augment == "none"
        and spec.precision != "bfloat16"
    )


def train_together(
    flat: FlatModel, thetas: Tensor, x: Tensor, y: Tensor, owned: list[Tensor], ids: list[int], epochs: list[int],
    number: int, spec: RunSpec, optimizer: Any,
) -> list[float]:  # fmt: skip
    """Train row k of ``thetas`` in place on the samples ``owned[k]`` of (x, y); returns the mean training losses.

    The same batches as one by one: a client's steps of all its epochs in a row, and who has more of them goes on alone.
    """
    device, lr = thetas.device, spec.lr * spec.lr_decay ** (number - 1)
    batches = []
    for mine, k, count in zip(owned, ids, epochs, strict=True):
        order = stream(spec.seed, "batches", number, k)
        shuffled = (mine[torch.from_numpy(order.permutation(len(mine)))] for _ in range(count))
        batches.append([b for epoch in shuffled for b in epoch.split(spec.batch_size)])
    longest = sorted(range(len(ids)), key=lambda k: -len(batches[k]))
    steps = [len(batches[k]) for k in longest]
    index = torch.zeros(len(ids), steps[0], spec.batch_size, dtype=torch.long)
    share = torch.zeros(index.shape)  # of a sample in the mean of its batch; 0 where a short batch is filled up
    for row, k in enumerate(longest):
        for t, batch in enumerate(batches[k]):
            index[row, t, : len(batch)], share[row, t, : len(batch)] = batch, 1 / len(batch)
    index, share = index.to(device), share.to(device)

    def loss(theta: Tensor, xb: Tensor, yb: Tensor, w: Tensor) -> Tensor:
        logits = functional_call(flat.model, {e.name: e.view(theta) for e in flat.layout.parameters}, (xb,))
        return w @ F.cross_entropy(logits, yb, reduction="none")

    gradients = vmap(grad_and_value(loss), chunk_size=AT_ONCE)
    flat.model.train()
    rows = thetas[longest]
    moments, total = optimizer.state(rows), torch.zeros(len(ids), device=device)
    for t in range(steps[0]):
        n = sum(s > t for s in steps)  # clients that still have batches
        i = index[:n, t]
        grad, losses = gradients(rows[:n], x[i], y[i], share[:n, t])
        total[:n] += losses
        optimizer.step(rows[:n], grad, {m: s[:n] if s.ndim else s for m, s in moments.items()}, lr)
    thetas[longest] = rows
    totals, sums = torch.stack([total, rows.sum(1)]).tolist()
    means = [total / count for total, count in zip(totals, steps, strict=True)]
    for row, k in enumerate(longest):
        if not (math.isfinite(sums[row]) and math.isfinite(means[row])):
            raise Diverged(
                f"Client {ids[k]} diverged in round {number}: its update is not finite. Try a smaller lr.",
                number,
                ids[k],
            )
    return [means[longest.index(k)] for k in range(len(ids))]
