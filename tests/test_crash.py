"""Nothing is lost: a deleted record comes back the same, a killed run goes on where it was."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest
from conftest import FEDLIB
from test_engine import until

from fedlib.core.spec import RunSpec
from fedlib.runs.execute import run_one, simulate
from fedlib.runs.store import Store

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


BATCH = [LONG.replace(seed=seed, rounds=40) for seed in range(1, 5)]


def arguments(*more) -> list[str]:
    """The command that makes BATCH in two workers."""
    fields = {name: value for name, value in BATCH[0].to_json().items() if name != "seed"}
    options = [str(part) for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", value)]
    return ["simulate", *options, *(f"--seed={spec.seed}" for spec in BATCH), "--jobs=2", *more]


def writes(store: Store) -> set:
    """Every checkpoint and record that can be seen now, in the form it has now."""
    found = set()
    for path in [*store.work.glob("*.checkpoint"), *store.path.glob("*.json")]:
        try:
            found.add((path.name, path.stat().st_mtime_ns))
        except FileNotFoundError:  # a finished run's checkpoint
            pass
    return found


def left(sessions: list[int]) -> list[psutil.Process]:
    """The processes of these sessions that are still there; workers share the one of their driver."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_whatever_is_killed_whenever_the_records_come_out_the_same(start, shell, tmp_path, kills):
    """The driver or one of its processes is killed or stopped, at its start or some writes later.

    A dead driver is started again. In the end there are the records of an undisturbed batch, and nothing else.
    """
    chance, store, drivers, tally = random.Random(kills), Store(tmp_path / "runs"), [], Counter()
    for _ in range(kills):
        if not drivers or drivers[-1].poll() is not None:
            if len(store.ids()) == len(BATCH):  # all done before its time: there must be something left to kill
                (store.path / f"{chance.choice(store.ids())}.json").unlink()
            drivers.append(start(*arguments(), FEDLIB_CHECKPOINT_SECONDS="0.02"))
        before, enough, end = writes(store), chance.choice([0, 1, 2, 4, 8]), time.monotonic() + 30
        while len(writes(store) - before) == 0 and enough and drivers[-1].poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.02 * enough if enough else chance.uniform(0, 5))  # 0: while it or a worker is starting, perhaps
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(drivers[-1].pid)
            victim = chance.choice([driver, *driver.children(recursive=True)])
            number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP])
            number = signal.SIGKILL if number == signal.SIGSTOP and victim == driver else number
            tally["driver" if victim == driver else "worker", number.name] += 1
            victim.send_signal(number)
        if chance.random() < 0.5:  # else the next one is killed while the driver still deals with this one
            time.sleep(0.5)
    drivers[-1].kill()
    for process in left([driver.pid for driver in drivers]):
        # One that was stopped before it had begun cannot know that its driver is gone: it ends when it is woken.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    until(lambda: not left([driver.pid for driver in drivers]), 60)  # on a busy machine a worker begins slowly
    (store.path / f"{BATCH[0].id}.json").unlink(missing_ok=True)
    last = shell(*arguments())
    assert last.returncode == 0, last.stderr
    assert {id: numbers(store.get(id)) for id in store.ids()} == {s.id: numbers(simulate(s)) for s in BATCH}
    assert {path.name for path in store.path.rglob("*") if path.is_file()} == {f"{spec.id}.json" for spec in BATCH}
    print(f"{len(drivers)} drivers; {', '.join(f'{who} {what}: {n}' for (who, what), n in sorted(tally.items()))}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_workers_end_with_their_driver_at_its_start_too(start, number):
    """Sent to the command alone, as soon as there is a worker, and a little later each time."""
    for delay in (0, 0.05, 0.3, 1, 3):
        process = start(*arguments())
        until(lambda p=process: p.poll() is not None or workers(p))
        time.sleep(delay)
        process.send_signal(number)
        until(lambda p=process: not workers(p), 5)
        assert process.wait(60) in {signal.SIGKILL: [-9], signal.SIGTERM: [143, -15], signal.SIGINT: [130]}[number]
        until(lambda p=process: not left([p.pid]), 5)
        assert number == signal.SIGKILL or "Traceback" not in process.stderr.read()


def workers(driver) -> list[psutil.Process]:
    """The workers of a command that are alive, whether it is or not."""
    found = []
    for process in left([driver.pid]):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if "spawn_main" in " ".join(process.cmdline()) else []
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_worker_that_was_stopped_ends_with_its_driver(start, tmp_path, number):
    process = started(start, Store(tmp_path / "runs"), ENDLESS)
    for worker in workers(process):
        worker.suspend()
    process.send_signal(number)
    until(lambda: not workers(process), 5)
    process.wait(60)


HOLD = """
import sys
from pathlib import Path
from fedlib.runs.store import Store

store, tally = Store("runs"), Path("tally")
for _ in range(100):
    with store.lock("one"):
        before = int(tally.read_text())
        tally.write_text(str(before + 1))
"""


def test_a_lock_that_is_removed_still_locks(tmp_path, environment):
    (tmp_path / "tally").write_text("0")
    command = [sys.executable, "-c", HOLD]
    holders = [subprocess.Popen(command, cwd=tmp_path, env=environment) for _ in range(4)]
    assert [holder.wait(300) for holder in holders] == [0] * 4
    assert (tmp_path / "tally").read_text() == "400" and not list((tmp_path / "runs/.work").iterdir())


def test_two_drivers_on_one_store_share_the_work(start, tmp_path):
    drivers = [start(*arguments()) for _ in range(2)]
    for driver in drivers:
        _, error = driver.communicate(timeout=300)
        assert driver.returncode == 0 and "160/160 rounds" in error
    store = Store(tmp_path / "runs")
    assert {id: numbers(store.get(id)) for id in store.ids()} == {s.id: numbers(simulate(s)) for s in BATCH}


def limited(call, tmp_path, environment):
    """Call the fedlib command in a mount namespace of its own, where the store is a file system as ``call`` says."""
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    (tmp_path / "runs").mkdir()
    mount = f"mount -t tmpfs -o {call} none {tmp_path / 'runs'}"
    if not shutil.which("unshare") or subprocess.run([*inside, mount], capture_output=True).returncode:
        pytest.skip("needs Linux user namespaces")
    command = [*inside, f'{mount} && exec "$0" "$@"', FEDLIB]
    return lambda *more: subprocess.run(
        [*command, *arguments("--quiet", *more)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("options, says", [("size=16k", "No space left on device"), ("ro", "Read-only file system")])
def test_a_full_disk_and_a_read_only_store_give_a_sentence(tmp_path, environment, options, says):
    failed = limited(options, tmp_path, environment | {"FEDLIB_CHECKPOINT_SECONDS": "0"})()
    assert failed.returncode == 2 and failed.stderr.startswith("fedlib: 4 of 4 runs failed")
    lines = failed.stderr.splitlines()[1:]
    assert len(lines) == 4 and all("failed: Cannot write" in line and says in line for line in lines)


def test_a_checkpoint_of_another_version_or_run_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "0")
    checkpoint = Store(tmp_path).checkpoint("one")
    checkpoint.save(round=1)
    assert checkpoint.load()["round"] == 1
    other = Store(tmp_path).checkpoint("two")
    shutil.copy(checkpoint.path, other.path)
    assert other.load() is None
    monkeypatch.setattr("fedlib.runs.checkpoint.FORMAT", 2)
    assert checkpoint.load() is None
