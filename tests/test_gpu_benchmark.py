"""The benchmark for a card works, as far as a pretended one can tell."""

import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from second_device import second_device

from fedlib.core.paths import ROOT

PATH = ROOT / "benchmarks/gpu.py"


@pytest.fixture(scope="module")
def gpu():
    return SimpleNamespace(**runpy.run_path(str(PATH), run_name="gpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_so():
    done = subprocess.run([sys.executable, PATH], capture_output=True, text=True)
    assert done.returncode == 2 and not done.stderr
    assert done.stdout == "No CUDA device is seen here, so there is nothing to measure: run this where there is one.\n"


def test_it_tries_every_algorithm(gpu):
    tried = {spec.algorithm for spec in gpu.everything()}
    assert tried == {str(gpu.Algorithm(name)) for name in gpu.ALGORITHMS.names()}


def test_what_agrees_what_differs_and_what_fails(gpu, monkeypatch):
    small = gpu.SMALL.replace(subset=60, test_subset=60, clients=2, rounds=1, local_epochs=1)
    specs = [small.replace(algorithm=name) for name in ("lws", "fedprox(mu=0.1)", "moon", "fedavg")]
    made = gpu.agreement.__globals__["numbers"]

    def elsewhere(spec):  # what a card that errs would give
        if spec.algorithm == specs[2].algorithm:
            return {"error": "RuntimeError: no kernel"}
        found = made(spec)
        if spec.algorithm == specs[1].algorithm:
            found["accuracy"][0] += 0.5
        return found

    monkeypatch.setitem(gpu.agreement.__globals__, "numbers", elsewhere)
    with second_device() as card:
        rows = gpu.agreement(specs)
    assert card.launches.total() > 100
    assert [row[-1] for row in rows] == ["agrees", "DIFFERS in accuracy", "FAILED: RuntimeError: no kernel", "agrees"]
    assert rows[0][2:5] == ("0.00000",) * 3, "the pretended card has the CPU's numbers"


def test_the_throughput_of_every_way(gpu):
    work = {"mlp(hidden=8)": ((1, 8, 8), 4, 80), "cnn_fmnist": ((1, 12, 12), 4, 80)}
    gpu.throughput.__globals__["AT_ONCE"] = ("mlp(hidden=8)",)
    with second_device() as card:
        rows = gpu.throughput(work)
    assert any(name == "replay" for _, name in card.launches)
    speeds = [cell for row in rows for cell in row[2:] if cell]
    assert len(speeds) == 9 and rows[1][-1] == "" and all(float(s.replace(",", "")) > 0 for s in speeds), rows
    printed = gpu.table(("model", "batch", *"abcde"), rows).splitlines()
    assert printed[1] == "|" + " --- |" * 7 and printed[2].startswith("| mlp(hidden=8) | 4 | ")


def test_several_runs_on_one_card(gpu):
    spec = gpu.SMALL.replace(model="mlp(hidden=4)", subset=60, test_subset=60, rounds=2)
    with second_device():
        rows = gpu.sharing(spec, [1, 2])
    assert [count for count, _ in rows] == [1, 2] and all(float(rate) > 0 for _, rate in rows), rows
