"""Many runs at once: a dead worker costs one retry, a busy run waits its turn, absent clients cost nothing."""

import cProfile
import gc
import os
import pstats
import signal
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
import torch

from fedlib.algorithms import Algorithm
from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.federation.federation import Federation
from fedlib.runs.engine import run
from fedlib.runs.execute import simulate
from fedlib.runs.store import Store

TINY = RunSpec(dataset="digits", model="mlp(hidden=4)", partition="iid", rounds=2)


class Deadly(RunSpec):
    """A run that takes its worker with it, as a lack of memory does, as often as DEATHS says."""

    def perform(self, checkpoint=None, on_round=None):
        assert torch.get_num_threads() == 1
        tally = Path(os.environ["TALLY"])
        tally.write_text(tally.read_text() + "x")
        if len(tally.read_text()) <= int(os.environ["DEATHS"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().perform(checkpoint, on_round)


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
        with pytest.raises(FedlibError, match=f"died twice, perhaps out of memory: {deadly.id}. All others are done"):
            run([deadly, *others], jobs=2, store=store)
    made = {deadly.id: deaths == 1} | {spec.id: True for spec in others}
    assert (tmp_path / "tally").read_text() == "xx" and {id: id in store.ids() for id in made} == made
    assert not list(store.path.rglob("*.partial")) and not list(store.path.rglob("*.checkpoint"))


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
