"""What a CUDA card does with fedlib, as tables to send back: ``python benchmarks/gpu.py > gpu.md``.

1. Every algorithm on the card against the CPU: two rounds on small images, the first compared as the audit compares
   machines of different kinds.
2. Training samples a second of one client after another, in each precision, with the step as a CUDA graph, and of ten
   clients at once (federation/cohort.py), per model.
3. Rounds a second of several runs on one card.

Nobody has run this on a card yet. Without one it says so and exits with 2; it exits with 1 if an algorithm differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import torch

from fedlib.algorithms import ALGORITHMS, Algorithm, Client
from fedlib.core.device import cards, describe_machine, device, one_thread, prepare_device
from fedlib.core.layout import FlatModel, gather
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.spec import RunSpec
from fedlib.federation.cohort import train_together
from fedlib.federation.graphs import RecordedStep
from fedlib.federation.training import train
from fedlib.models import build
from fedlib.runs.compare import TOLERANCE
from fedlib.runs.engine import run
from fedlib.runs.execute import simulate
from fedlib.runs.processes import in_words
from fedlib.runs.store import Store
from fedlib.runs.worker import sees_only

SMALL = RunSpec(
    dataset="digits(shape=(1, 12, 12))", model="cnn_fmnist", partition="dirichlet(alpha=0.5)", subset=200,
    test_subset=200, clients=4, local_epochs=2, batch_size=16, rounds=2, lr=0.02, proxy="balanced(size=50)",
)  # fmt: skip
WORK = {  # model: (shape of an image, batch, samples)
    "mlp(hidden=64)": ((1, 28, 28), 10, 6000),
    "mlp": ((1, 28, 28), 64, 25600),
    "simple_cnn": ((3, 32, 32), 64, 25600),
    "resnet20": ((3, 32, 32), 128, 12800),
    "wrn56_4": ((3, 32, 32), 128, 2560),
}
CLIENTS = 10  # of the cohort that trains at once
AT_ONCE = ("mlp(hidden=64)", "mlp", "simple_cnn")  # which have neither BatchNorm nor dropout
SHARED = SMALL.replace(model="simple_cnn", dataset="digits(shape=(3, 32, 32))", subset=1000, clients=10, rounds=20)


def numbers(spec: RunSpec) -> dict:
    """The series of a run, made here; or, in words, why there are none."""
    try:
        return simulate(spec).series
    except Exception as error:
        return {"error": in_words(error)}


def on_processor(specs: list[RunSpec]) -> list[dict]:
    """The same in a process that uses no card."""
    texts = json.dumps([spec.to_json() for spec in specs])
    environment = os.environ | {"FEDLIB_DEVICE": "cpu"}
    command = [sys.executable, __file__, "--numbers"]
    done = subprocess.run(command, input=texts, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def agreement(specs: list[RunSpec]) -> list[tuple]:
    """(algorithm, model, difference of each number in the first round, what that means)."""
    rows = []
    for spec, here in zip(specs, on_processor(specs), strict=True):
        there = numbers(spec)
        if "error" in here or "error" in there:
            off, word = {}, f"not tried: {here['error']}" if "error" in here else f"FAILED: {there['error']}"
        else:
            off = {name: abs(there[name][0] - here[name][0]) for name in TOLERANCE}
            far = [name for name, most in TOLERANCE.items() if not off[name] <= most * max(1, abs(here[name][0]))]
            word = f"DIFFERS in {', '.join(far)}" if far else "agrees"
        rows.append((spec.algorithm, spec.model, *(f"{off[n]:.5f}" if off else "" for n in TOLERANCE), word))
    return rows


def everything() -> list[RunSpec]:
    """Every algorithm once on a network with BatchNorm and, where nothing is added to local training, on one that
    trains its whole cohort at once."""
    plain = [name for name in ALGORITHMS.names() if not Algorithm(name).locals]
    specs = [SMALL.replace(algorithm=name) for name in ALGORITHMS.names()]
    return specs + [SMALL.replace(algorithm=name, model="mlp(hidden=16)") for name in plain]


def speed(model: str, shape: tuple, batch: int, samples: int, precision="float32", way="one by one") -> float:
    """Training samples a second; the second of two passes counts. The ways: one by one, graph, at once."""
    spec = RunSpec(dataset=f"digits(shape={shape})", model=model, partition="iid", batch_size=batch)
    prepare_device(precision)
    spec = spec.replace(precision=precision)
    conv = "mlp" not in model
    flat, optimizer = FlatModel(build(model, shape, 10, 0), device(), channels_last=conv), OPTIMIZERS.make("sgd")
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(samples, *shape, generator=draw), torch.randint(0, 10, (samples,), generator=draw)
    x, y = x.to(device(), memory_format=torch.channels_last if conv else torch.contiguous_format), y.to(device())
    owned, ids, start = list(torch.arange(samples).tensor_split(CLIENTS)), list(range(CLIENTS)), flat.theta.clone()
    moments = optimizer.state(flat.theta)
    replayed = RecordedStep(flat, moments) if way == "graph" else None
    for _ in range(2):
        began = time.perf_counter()
        if way == "at once":
            train_together(flat, start.repeat(CLIENTS, 1), x, y, owned, ids, [1] * CLIENTS, 1, spec, optimizer)
        else:
            for k, mine in zip(ids, owned, strict=True):
                flat.theta.copy_(start)
                client = Client(k, 1, flat.model, flat.layout, flat.theta, flat.grad, start)
                mine = mine.to(device())
                train(flat, gather(x, mine), y[mine], client, [], spec, optimizer, moments, 1, replayed)
        seconds = time.perf_counter() - began  # training ends with reading its loss, so the card is done
    return samples / seconds


def throughput(work: dict) -> list[tuple]:
    """(model, batch, samples a second in every way; nothing where a way does not fit or failed)."""
    ways = [("float32", "one by one"), ("tf32", "one by one"), ("bfloat16", "one by one")]
    ways += [("float32", "graph"), ("float32", "at once")]
    rows = []
    for model, (shape, batch, samples) in work.items():
        row = [model, batch]
        for precision, way in ways:
            if way == "at once" and model not in AT_ONCE:
                row.append("")
                continue
            try:
                row.append(f"{speed(model, shape, batch, samples, precision, way):,.0f}")
            except Exception as error:
                row.append(f"FAILED: {in_words(error)}")
        rows.append(tuple(row))
    prepare_device()
    return rows


def sharing(spec: RunSpec, counts: list[int]) -> list[tuple]:
    """(runs on one card at a time, rounds a second of all of them together)."""
    rows = []
    for count in counts:
        with tempfile.TemporaryDirectory() as folder, sees_only(cards()[0]):
            specs = [spec.replace(seed=seed) for seed in range(count)]
            try:
                records = run(specs, jobs=count, store=Store(folder), progress=False, gpus=1 / count)
                slowest = max(0.05, *(r.json["seconds"] for r in records))  # which are rounded to a tenth
                rows.append((count, f"{count * spec.rounds / slowest:.2f}"))
            except Exception as error:
                rows.append((count, f"FAILED: {in_words(error)}"))
    return rows


def table(heads: tuple, rows: list[tuple]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def main() -> int:
    if not cards():
        print("No CUDA device is seen here, so there is nothing to measure: run this where there is one.")
        return 2
    print(table(("machine", ""), list(describe_machine().items())))
    agreed = agreement(everything())
    print(table(("algorithm", "model", *TOLERANCE, "on the card"), agreed), flush=True)
    heads = ("model", "batch", "samples/s", "tf32", "bfloat16", "CUDA graph", f"{CLIENTS} clients at once")
    print(table(heads, throughput(WORK)), flush=True)
    print(table(("runs on one card", "rounds/s of all"), sharing(SHARED, [1, 2, 3, 4, 6, 8])))
    return int(any(row[-1].startswith(("DIFFERS", "FAILED")) for row in agreed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", action="store_true", help=argparse.SUPPRESS)  # see on_processor
    if parser.parse_args().numbers:
        print(json.dumps([numbers(RunSpec.from_json(one)) for one in json.load(sys.stdin)]))
        sys.exit()
    with one_thread():
        sys.exit(main())
