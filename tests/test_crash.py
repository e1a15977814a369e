"""Nothing is lost: a deleted record comes back the same, a killed run goes on where it was."""

import json
import os
import signal
import time

import pytest

from fedlib.engine import run_one
from fedlib.simulation import simulate
from fedlib.spec import RunSpec
from fedlib.store import Store

LONG = RunSpec(
    dataset="digits", model="mlp(hidden=64)", partition="shards", algorithm="fedlap", rounds=120, local_epochs=3,
    participation=0.5, stragglers=0.5, keep_optimizer=True, seed=3,
)  # fmt: skip
ENDLESS = LONG.replace(rounds=10_000)


def numbers(record) -> dict:
    """Everything in a record that must be the same when it is made again."""
    return {name: value for name, value in record.json.items() if name not in ("seconds", "checksum")}


def started(start, store: Store, spec: RunSpec, workers=True):
    """A run in progress, in a worker process or in the command itself, that has written a checkpoint at least."""
    options = [part for name, value in spec.to_json().items() for part in (f"--{name.replace('_', '-')}", value)]
    another = ("--seed", "4") if workers else ()
    process = start("simulate", *options, *another, FEDLIB_CHECKPOINT_SECONDS="0.05")
    while not store.checkpoint(spec.id).path.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    return process


def test_a_deleted_record_alone_is_trained_again_and_is_the_same(shell, tmp_path, notebook):
    assert shell("run", notebook, "--out", "out").returncode == 0
    store = Store(tmp_path / "runs")
    gone, *others = store.ids()
    before, executed = store.get(gone), (tmp_path / "out/smoke/mine/table01_tiny.ipynb")
    claims = [cell.get("outputs") for cell in json.loads(executed.read_text())["cells"]][-3]
    (store.path / f"{gone}.json").unlink()
    untouched = {id: (store.path / f"{id}.json").stat().st_mtime_ns for id in others}
    again = shell("run", notebook, "--out", "out")
    assert again.returncode == 0 and "2/2" in again.stderr, "two rounds: that of one run"
    assert numbers(store.get(gone)) == numbers(before)
    assert {id: (store.path / f"{id}.json").stat().st_mtime_ns for id in others} == untouched
    assert [cell.get("outputs") for cell in json.loads(executed.read_text())["cells"]][-3] == claims


def test_a_killed_run_goes_on_to_the_same_record(start, tmp_path):
    store = Store(tmp_path / "runs")
    process = started(start, store, LONG)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert store.ids() == [] and not list(store.path.rglob("*.json"))
    saved = store.checkpoint(LONG.id).load()["round"]
    assert 1 <= saved < LONG.rounds
    rounds = []
    record = run_one(LONG, store, rounds.append)
    assert rounds == list(range(saved, LONG.rounds + 1)), "it went on after the round it had saved"
    assert numbers(record) == numbers(simulate(LONG)) == numbers(store.get(LONG.id))
    assert not store.checkpoint(LONG.id).path.exists()


@pytest.mark.parametrize("workers", [True, False])
@pytest.mark.parametrize("everyone", [True, False], ids=["from the terminal", "sent to the command alone"])
def test_ctrl_c_says_how_to_go_on(start, tmp_path, everyone, workers):
    store = Store(tmp_path / "runs")
    process = started(start, store, ENDLESS, workers)
    (os.killpg if everyone else os.kill)(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert error.splitlines()[-1].endswith("unfinished runs resume: give the same command again to go on.")
    assert "Traceback" not in error and store.ids() == []
    with pytest.raises(ProcessLookupError):  # and its workers are gone too
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)
