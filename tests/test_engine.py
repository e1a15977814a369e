"""Many runs at once: whatever a run does costs that run, a busy one waits its turn, absent clients cost nothing."""

import cProfile
import gc
import os
import pstats
import re
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from multiprocessing import current_process
from pathlib import Path

import pytest
import torch

from fedlib.algorithms import ALGORITHMS, Algorithm, Client, Local, register
from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.federation.federation import Federation
from fedlib.runs.engine import run
from fedlib.runs.execute import simulate
from fedlib.runs.processes import share_out, train_all
from fedlib.runs.ray import Ray
from fedlib.runs.store import Store

TINY = RunSpec(dataset="digits", model="mlp(hidden=4)", partition="iid", rounds=2)


class Deadly(RunSpec):
    """A run that takes its worker with it, as a lack of memory does, as often as DEATHS says."""

    @property
    def clients_per_round(self) -> int:  # asked for when its federation is made, in a worker
        if current_process().name != "MainProcess" and not vars(self).get("begun"):
            object.__setattr__(self, "begun", True)
            assert torch.get_num_threads() == 1
            tally = Path(os.environ["TALLY"])
            tally.write_text(tally.read_text() + "x")
            if len(tally.read_text()) <= int(os.environ["DEATHS"]):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().clients_per_round


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_dead_worker_costs_its_run_one_retry_and_the_others_nothing(tmp_path, monkeypatch, capsys, deaths):
    monkeypatch.setenv("TALLY", str(tmp_path / "tally"))
    monkeypatch.setenv("DEATHS", str(deaths))
    (tmp_path / "tally").write_text("")
    store, deadly, others = Store(tmp_path / "runs"), Deadly(**TINY.to_json()), [TINY.replace(seed=s) for s in (1, 2)]
    if deaths == 1:
        run([deadly, *others], jobs=2, store=store)
        shown = capsys.readouterr().err
        assert "6/6 rounds" in shown and "about 00:00 left]" in shown
    else:
        why = (
            r"1 of 3 runs failed.*\n.*: tried twice, then alone: its process was killed by signal 9, perhaps out of mem"
        )
        with pytest.raises(FedlibError, match=why) as error:
            run([deadly, *others], jobs=2, store=store)
        assert f"{deadly.id} (fedavg on digits, mlp(hidden=4), seed 0) failed" in str(error.value)
    made = {deadly.id: deaths == 1} | {spec.id: True for spec in others}
    assert (tmp_path / "tally").read_text() == "xx" and {id: id in store.ids() for id in made} == made
    assert {path.name for path in store.path.rglob("*") if path.is_file()} == {f"{id}.json" for id in store.ids()}


MISBEHAVE = """
import ctypes, os, resource, signal, sys, threading, time
import torch
from fedlib.algorithms import Weighting, register

class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("not by me")

class Silent(Exception):
    def __str__(self):
        raise ValueError("no words")

@register("misbehave")
class Misbehave(Weighting):
    way: str = ""

    def weigh(self, r, weights):
        print("a run prints", self.way)
        if self.way:
            getattr(self, self.way)()
        return weights

    def raises(self): raise ValueError("no such weight")
    def exits(self): os._exit(3)
    def sleeps(self): time.sleep(10_000)
    def eats(self):
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        torch.ones(8 << 30)
    def leaves(self):
        threading.Thread(target=time.sleep, args=(10_000,)).start()
        raise OSError("left a thread")

    def lacks(self): raise MemoryError
    def card(self): raise torch.OutOfMemoryError("CUDA out of memory")
    def quits(self): sys.exit()
    def interrupts(self): raise KeyboardInterrupt
    def pickles(self): raise Unpicklable(1, 2)
    def silent(self): raise Silent
    def stops(self): os.kill(os.getpid(), signal.SIGSTOP)
    def crashes(self): ctypes.string_at(0)
    def closes(self): os.closerange(3, 1000)
"""
FIVE = {
    "raises": r"ValueError: no such weight \(misbehave.py, line \d+\)",
    "exits": "tried twice: its process ended, exit code 3",
    "sleeps": "tried twice: no round was finished within 30 seconds",
    "eats": r"tried twice, then alone: RuntimeError: .*can't allocate memory.*, out of memory",
    "leaves": r"OSError: left a thread \(misbehave.py, line \d+\)",
}
OTHERS = {
    "lacks": r"tried twice, then alone: MemoryError \(misbehave.py, line \d+\), out of memory",
    "card": "tried twice, then alone: OutOfMemoryError: CUDA out of memory .*, out of memory",
    "quits": "SystemExit",
    "interrupts": "KeyboardInterrupt",
    "pickles": "Unpicklable: 1 and 2",
    "silent": "Silent: it cannot say why",
    "stops": "tried twice: no round was finished within 30 seconds",
    "crashes": "tried twice: its process was killed by signal 11",
    "closes": "tried twice: its process ended",
}
BATCH = """
import sys
from functools import partial
from fedlib import FedlibError, RunSpec
from fedlib.runs.engine import run, train_all
from fedlib.runs.ray import Ray

if __name__ == "__main__":
    engine, good, *ways = sys.argv[1:]
    tiny = RunSpec(dataset="digits", model="mlp(hidden=4)", partition="iid", rounds=2, algorithm="misbehave")
    specs = [tiny.replace(seed=seed) for seed in range(int(good))]
    specs += [tiny.replace(algorithm=f"misbehave(way={way})") for way in ways]
    try:
        run(specs, jobs=4, engine=partial(train_all, stall=30) if engine == "processes" else Ray(engine, stall=30))
    except FedlibError as error:
        print(error)
"""


@pytest.fixture
def script(tmp_path, environment):
    """Run a Python script as a user would, with the plugin ``misbehave``; returns the finished process."""
    (tmp_path / "misbehave.py").write_text(MISBEHAVE)
    variables = environment | {"FEDLIB_PLUGINS": str(tmp_path / "misbehave.py")}

    def call(text, *arguments, timeout=500, **more):
        (tmp_path / "script.py").write_text(text)
        command = [sys.executable, "script.py", *map(str, arguments)]
        return subprocess.run(
            command, cwd=tmp_path, env=variables | more, capture_output=True, text=True, timeout=timeout, check=False
        )

    return call


def check_batch(done, store: Store, good: int, ways: dict) -> None:
    """``good`` records, and every way to misbehave is named with its reason."""
    assert f"{len(ways)} of {good + len(ways)} runs failed; all others are done and kept" in done.stdout, done.stderr
    for way, why in ways.items():
        assert re.search(rf"^{named(way)}{why}", done.stdout, re.M), way
    assert len(store.ids()) == good and not list(store.path.rglob("*.partial"))


def named(way: str) -> str:
    """How a run that misbehaves is named when it fails, as a regular expression."""
    return rf"\w+ \(misbehave\(way={way}\) on digits, mlp\(hidden=4\), seed 0\) failed: "


def test_one_failure_costs_one_run(script, tmp_path):
    done = script(BATCH, "processes", 15, *FIVE)
    check_batch(done, Store(tmp_path / "runs"), 15, FIVE)
    assert not list((tmp_path / "runs/.work").glob("*.lock")) and done.stdout.count("a run prints") >= 15


@pytest.mark.slow
def test_one_failure_costs_one_run_with_ray_too(local_ray, script, tmp_path):
    done = script(BATCH, "local", 15, *FIVE, timeout=1200)
    check_batch(done, Store(tmp_path / "runs"), 15, FIVE)
    assert not list((tmp_path / "runs/.work").glob("*.lock"))


@pytest.mark.slow
def test_whatever_a_run_does(script, tmp_path):
    check_batch(script(BATCH, "processes", 2, *OTHERS), Store(tmp_path / "runs"), 2, OTHERS)


def test_the_command_names_the_run_and_ends_with_2(shell, script, tmp_path):
    script("")
    options = ["simulate", "--dataset=digits", "--model=mlp(hidden=4)", "--partition=iid", "--rounds=2", "--quiet"]
    plugin = {"FEDLIB_PLUGINS": str(tmp_path / "misbehave.py")}
    for way in ("raises", "quits"):  # a single run stays in the process
        alone = shell(*options, f"--algorithm=misbehave(way={way})", **plugin)
        assert alone.returncode == 2 and "Traceback" not in alone.stderr
        assert re.fullmatch(rf"fedlib: {named(way)}{(FIVE | OTHERS)[way]} ?\(?.*\.\n", alone.stderr)
    both = shell(*options, "--algorithm=misbehave(way=raises)", "--seed=1", "--seed=2", "--jobs=2", **plugin)
    assert both.returncode == 2 and both.stderr.startswith("fedlib: 2 of 2 runs failed") and "Trace" not in both.stderr


class Failing(Local):
    """Clients that cannot train."""

    def begin(self, c: Client) -> None:
        raise {1: ValueError("one"), 2: SystemExit(0), 3: KeyboardInterrupt()}[c.spec.seed]


ON_CARDS = """
import os, sys, time
from pathlib import Path
import torch
from fedlib import FedlibError, RunSpec
from fedlib.runs.engine import run

if __name__ == "__main__":
    torch.cuda.device_count = lambda: int(sys.argv[1])  # as a machine with cards has it
    tiny = RunSpec(dataset="digits", model="mlp(hidden=4)", partition="iid", rounds=1, algorithm="crowded")
    specs = [tiny.replace(seed=seed) for seed in range(5)] + [tiny.replace(algorithm="crowded(large=True)", seed=9)]
    try:
        run(specs[::-1], jobs=3, gpus=eval(sys.argv[2]))
    except FedlibError as error:
        print(error)
"""
CROWDED = """
import os, time
from pathlib import Path
import torch
from fedlib.algorithms import Weighting, register

@register("crowded")
class Crowded(Weighting):
    '''Notes its card and who else is on it; the large run lacks memory unless nobody is.'''
    large: bool = False

    def weigh(self, r, weights):
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        mine = Path(f"on {card} {os.getpid()} {self.large}")
        mine.touch()
        time.sleep(1)
        look = lambda: [path for path in Path().glob(f"on {card} *") if path != mine]
        others = look()
        while self.large and not others and Path("wait").exists():  # for company: processes do not start at once
            time.sleep(0.1)
            others = look()
        if self.large:
            Path("wait").unlink(missing_ok=True)
        with open("seen", "a") as file:
            print(card, self.large, len(others), file=file)
        mine.unlink()
        if self.large and others:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return weights
"""


@pytest.fixture
def seen(script, tmp_path):
    """Train six runs in three processes on some cards; [(card, whether the run is large, others on its card)]."""
    (tmp_path / "crowded.py").write_text(CROWDED)

    def call(count, gpus, visible):
        if count == 1:
            (tmp_path / "wait").touch()
        variables = {"FEDLIB_PLUGINS": str(tmp_path / "crowded.py"), "CUDA_VISIBLE_DEVICES": visible}
        done = script(ON_CARDS, count, gpus, **variables)
        lines = (tmp_path / "seen").read_text().splitlines() if (tmp_path / "seen").exists() else []
        return [(card, large == "True", int(others)) for card, large, others in map(str.split, lines)], done

    return call


def test_cards_are_shared_out_and_a_run_that_lacks_memory_gets_one_alone(seen, tmp_path):
    found, done = seen(1, "None", "5,7")
    assert {card for card, _, _ in found} == {"5"}, "the second one does not exist"
    large = [others for _, is_large, others in found if is_large]
    assert len(large) == 2 and large[0] > 0 == large[1] and found[-1][1], "again, when the others are done"
    assert len(Store(tmp_path / "runs").ids()) == 6, done.stdout


def test_every_worker_has_one_card(seen):
    found, _ = seen(2, "1.0", "5,7")
    assert {card for card, _, _ in found} == {"5", "7"} and all(others == 0 for _, _, others in found)


def test_what_a_run_gets_of_a_card(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert share_out(3, None) == [None] * 3, "no cards: as many processes as asked for"
    with pytest.raises(FedlibError, match="no CUDA device"):
        share_out(3, 0.5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert share_out(3, None) == ["0", "1", "0"] and share_out(64, None) == ["0", "1"] * 4
    assert share_out(64, 0.1) == ["0", "1"] * 10 and share_out(64, 1.0) == share_out(64, 0.6) == ["0", "1"]
    for gpus in (0.0, 1.5, -1.0):
        with pytest.raises(FedlibError, match="more than 0, at most 1"):
            share_out(3, gpus)
    with pytest.raises(FedlibError, match="an engine has its own"):
        run([TINY], engine=train_all, gpus=0.5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ab, GPU-cd")
    assert share_out(3, None) == ["GPU-ab", "GPU-cd", "GPU-ab"]


def test_what_a_run_gets_on_a_cluster():
    assert Ray().share_of({"CPU": 8.0, "GPU": 2.0}) == 0.25 and Ray().share_of({"CPU": 8.0}) == 0
    assert Ray(gpus=0.0).share_of({"GPU": 2.0}) == 0 and Ray(gpus=2.0).share_of({}) == 2


@pytest.fixture
def failing_clients():
    register("failing")(Failing)
    yield
    del ALGORITHMS.entries["failing"]  # other tests try every algorithm there is


def test_in_this_process_too_a_failure_costs_its_run(tmp_path, failing_clients):
    store, failing = Store(tmp_path), [TINY.replace(algorithm="failing", seed=seed) for seed in (1, 2)]
    with pytest.raises(FedlibError, match=r"(?s)2 of 3 runs failed.*seed 1\) failed: ValueError: one.*SystemExit: 0"):
        run([*failing, TINY], jobs=1, store=store, progress=False)
    assert store.ids() == [TINY.id]
    with pytest.raises(KeyboardInterrupt):
        run(TINY.replace(algorithm="failing", seed=3), store=store, progress=False)


UNGUARDED = """
import fedlib
from fedlib import RunSpec
base = RunSpec(dataset="digits", model="mlp(hidden=4)", partition="iid", rounds=2)
print(len(fedlib.run({specs}, jobs={jobs})))
"""


def test_a_script_without_a_guard(script, tmp_path):
    for specs, jobs in (("[base]", None), ("[base, base.replace(seed=1)]", 1)):
        done = script(UNGUARDED.format(specs=specs, jobs=jobs))
        assert done.returncode == 0 and "Traceback" not in done.stderr, "one process is enough, so there is no other"
    done = script(UNGUARDED.format(specs="[base.replace(seed=seed) for seed in (2, 3, 4)]", jobs=3))
    assert done.returncode == 0 and done.stdout == "3\n", done.stderr
    assert "Traceback" not in done.stderr and "one after the other" in done.stderr
    assert """call fedlib.run under 'if __name__ == "__main__":'""" in done.stderr


SESSION = UNGUARDED.replace(
    "import fedlib\n",
    """import fedlib
from fedlib.algorithms import Weighting, register
@register("typed")
class Typed(Weighting):
    def weigh(self, r, weights):
        return weights
""",
).replace('"iid"', '"iid", algorithm="typed"')


def test_what_a_session_defines_is_trained_in_it(environment, tmp_path):
    """Code on stdin stands for a notebook's cells: workers do not import it."""
    text = SESSION.format(specs="[base, base.replace(seed=1)]", jobs=2)
    done = subprocess.run(
        [sys.executable, "-"], input=text, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout == "2\n" and "typed is defined in this session" in done.stderr, done.stderr


def test_workers_that_cannot_start_are_not_started_for_ever(script):
    broken = "assert __name__ == '__main__'\n" + UNGUARDED.format(specs="[base, base.replace(seed=1)]", jobs=2)
    done = script(broken)
    assert done.returncode == 1 and "No worker process gets ready (exit code 1)" in done.stderr.splitlines()[-1]
    assert done.stderr.count("AssertionError") <= 4


@pytest.mark.parametrize("jobs", [0, -1, None])
def test_at_least_one_job(tmp_path, monkeypatch, jobs):
    monkeypatch.setenv("FEDLIB_JOBS", "0")
    says = "a number of processes, at least 1; got '0'" if jobs is None else f"At least one job is needed.*got {jobs}"
    with pytest.raises(FedlibError, match=says):
        run([TINY, TINY.replace(seed=1)], jobs=jobs, store=Store(tmp_path))


def test_no_more_workers_than_runs(tmp_path):
    run([TINY, TINY.replace(seed=1)], jobs=10**9, store=Store(tmp_path), progress=False)
    assert len(Store(tmp_path).ids()) == 2


def test_in_a_log_the_bar_is_a_line_a_minute(tmp_path, capsys):
    run(TINY.replace(rounds=200), store=Store(tmp_path))
    shown = capsys.readouterr().err
    assert shown.count("rounds [") <= 3 and "200/200 rounds" in shown and "\r" not in shown


def test_a_run_that_another_process_is_at_is_left_to_it_while_there_are_others(tmp_path):
    store, taken, free = Store(tmp_path), TINY.replace(rounds=3), TINY  # the taken one is longer, so it comes first
    with store.lock(taken.id):
        driver = threading.Thread(target=run, args=([taken, free], 1, store), kwargs={"progress": False})
        driver.start()
        until(lambda: store.ids() == [free.id])
    driver.join()
    assert set(store.ids()) == {taken.id, free.id}


def until(true, seconds=300) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def many(clients: int, **changes) -> RunSpec:
    """Five clients a round, of one sample each, however many there are."""
    return TINY.replace(
        partition="shards(per_client=1, chunk=1)",
        clients=clients,
        participation=5 / clients,
        eval_every=1000,
        **changes,
    )


def test_clients_that_do_not_take_part_cost_nothing():
    def calls(clients: int) -> int:
        fed, algorithm = Federation(many(clients)), Algorithm("fedavg")
        state = fed.start()
        for number in (1, 2):  # what the first of all rounds does besides is done once
            profile = cProfile.Profile()
            profile.runcall(fed.train_cohort, number, algorithm, state, {})
        return pstats.Stats(profile).total_calls

    assert calls(1400) == calls(10)


def test_memory_does_not_grow_with_rounds():
    held = {}

    def note(done: int) -> None:
        if done in (20, 120):
            gc.collect()
            held[done] = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        simulate(many(1400, rounds=121), on_round=note)
    finally:
        tracemalloc.stop()
    assert held[120] - held[20] < 100_000, "torch keeps some 300 bytes a round; one round's clients are several KB"
