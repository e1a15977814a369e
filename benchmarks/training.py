"""fedlib's local training against the tightest hand-written PyTorch loop for the same work, as ratios.

    python benchmarks/training.py            # about two minutes; exits with 1 if a ratio exceeds 1.15

Both train the same model from the same weights on the same batches in the same order, on one thread, in the same
memory format. The hand-written loop knows everything in advance: batches are slices of data shuffled once per epoch,
the optimiser is torch.optim.SGD in whichever implementation (fused or foreach) is faster for the model. The two
alternate, time is CPU time of the process, and the best of the repeats counts, so a busy machine moves the ratio
little. The last lines compare a cohort trained at once (federation/cohort.py) with the same clients one by one: below 1
it would win on this CPU; on CUDA it is the rule for small perceptrons.
"""

import sys
import time

import torch
import torch.nn.functional as F

from fedlib.algorithms import Client
from fedlib.core.device import one_thread
from fedlib.core.layout import FlatModel
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.federation.cohort import train_together
from fedlib.federation.training import gather, train
from fedlib.models import build

LIMIT, REPEATS = 1.15, 5
WORK = {  # model: (shape, batch, samples)
    "mlp": ((1, 28, 28), 10, 2000),
    "mlp(hidden=64)": ((1, 28, 28), 10, 2000),
    "simple_cnn": ((3, 32, 32), 64, 640),
    "resnet20": ((3, 32, 32), 128, 256),
}


def data(shape, samples):
    torch.manual_seed(0)
    x = torch.rand(samples, *shape)
    if shape[0] == 3:
        x = x.contiguous(memory_format=torch.channels_last)
    return x, torch.randint(0, 10, (samples,))


def ours(spec, shape, x, y):
    flat = FlatModel(build(spec.model, shape, 10, 0), channels_last=shape[0] == 3)
    optimizer = OPTIMIZERS.make(spec.optimizer)
    client = Client(0, 1, flat.model, flat.layout, flat.theta, flat.grad, flat.theta.clone())
    moments = optimizer.state(flat.theta)
    start = time.process_time()
    train(flat, x, y, client, [], spec, optimizer, moments, 1)
    return time.process_time() - start, flat.theta.norm().item()


def bare(spec, shape, x, y, **implementation):
    model = build(spec.model, shape, 10, 0).train()
    if shape[0] == 3:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), spec.lr, momentum=0.9, **implementation)
    start = time.process_time()
    order = torch.from_numpy(stream(spec.seed, "batches", 1, 0).permutation(len(y)))
    xs, ys = gather(x, order), y[order]
    for xb, yb in zip(xs.split(spec.batch_size), ys.split(spec.batch_size), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()
    seconds = time.process_time() - start
    return seconds, torch.cat([p.detach().flatten() for p in model.parameters()]).norm().item()


def cohort(spec, shape, x, y, clients=10) -> tuple[float, float]:
    """CPU seconds of a round of ``clients``, at once and one by one; the best of the repeats."""
    flat = FlatModel(build(spec.model, shape, 10, 0), channels_last=shape[0] == 3)
    optimizer, start, best = OPTIMIZERS.make(spec.optimizer), flat.theta.clone(), [float("inf")] * 2
    owned, ids = list(torch.arange(len(y)).tensor_split(clients)), list(range(clients))
    for _ in range(1 + REPEATS):
        rows, began = start.repeat(clients, 1), time.process_time()
        train_together(flat, rows, x, y, owned, ids, [1] * clients, 1, spec, optimizer)
        best[0], began = min(best[0], time.process_time() - began), time.process_time()
        for k in ids:
            flat.theta.copy_(start)
            client = Client(k, 1, flat.model, flat.layout, flat.theta, flat.grad, start)
            train(flat, gather(x, owned[k]), y[owned[k]], client, [], spec, optimizer, optimizer.state(start), 1)
        best[1] = min(best[1], time.process_time() - began)
        assert (rows[-1] - flat.theta).norm() < 1e-3 * flat.theta.norm(), "the two do not do the same work"
    return tuple(best)


def main() -> int:
    print(f"{'model':16} {'batch':>5} {'hand-written':>14} {'fedlib':>14} {'ratio':>6}   (samples/s of CPU time)")
    worst = 0.0
    for name, (shape, batch, samples) in WORK.items():
        spec = RunSpec(dataset=f"digits(shape={shape})", model=name, partition="iid", batch_size=batch)
        x, y = data(shape, samples)
        contenders = {
            "fused": lambda s=spec, h=shape, a=x, b=y: bare(s, h, a, b, fused=True),
            "foreach": lambda s=spec, h=shape, a=x, b=y: bare(s, h, a, b, foreach=True),
            "ours": lambda s=spec, h=shape, a=x, b=y: ours(s, h, a, b),
        }
        results = {n: [] for n in contenders}
        for _ in range(1 + REPEATS):  # the first warms up; the best counts, so it does no harm
            for n, run in contenders.items():
                results[n].append(run())
        best = {n: min(seconds for seconds, _ in rows) for n, rows in results.items()}
        norms = [rows[0][1] for rows in results.values()]
        assert max(norms) - min(norms) < 1e-3 * max(norms), f"{name}: the loops do not do the same work: {norms}"
        hand = min(best["fused"], best["foreach"])
        ratio = best["ours"] / hand
        worst = max(worst, ratio)
        print(f"{name:16} {batch:5} {samples / hand:14,.0f} {samples / best['ours']:14,.0f} {ratio:6.2f}")
    print(f"worst ratio {worst:.2f}, limit {LIMIT}")
    for name in ("mlp", "mlp(hidden=64)", "simple_cnn"):
        shape, batch, samples = WORK[name]
        spec = RunSpec(dataset=f"digits(shape={shape})", model=name, partition="iid", batch_size=batch)
        at_once, apart = cohort(spec, shape, *data(shape, samples))
        print(f"{name:16} ten clients at once: {at_once / apart:.2f} of the time of one by one")
    return int(worst > LIMIT)


if __name__ == "__main__":
    with one_thread():
        sys.exit(main())
