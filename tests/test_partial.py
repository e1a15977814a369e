"""Half-done runs: stopped by the clock or killed, looked at, gone on with; never trained twice, never other numbers."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import FEDLIB, write_notebook
from test_crash import ENDLESS, numbers, started

from fedlib.core.device import describe_machine as environment
from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.core.spec import Measure, RunSpec
from fedlib.runs import engine, execute
from fedlib.runs.compare import compare
from fedlib.runs.execute import keep, run_one, simulate
from fedlib.runs.lookup import on_record
from fedlib.runs.partial import common_rounds, how_far
from fedlib.runs.record import Record, checksum
from fedlib.runs.store import Store, committed, default_store
from fedlib.workbook import frames
from fedlib.workbook.page import Page

SPEC = RunSpec(
    dataset="digits", model="mlp(hidden=8)", partition="shards(per_client=2)", algorithm="fedlap", participation=0.5,
    rounds=12, keep_optimizer=True, subset=300, seed=1, probes="spread(every=2)",
)  # fmt: skip
OTHER = {"torch": "1.0", "capability": "none", "cpu": "another", "device": "cpu", "python": "3.0"}


def half(spec: RunSpec, store: Store, rounds: int, put=True) -> Record:
    """The run up to a round, as the clock leaves it: a checkpoint and a record; without ``put``, as a kill does."""
    checkpoint = store.checkpoint(spec.id)

    def stop(done: int) -> None:
        if done == rounds:
            checkpoint.deadline = 0.0

    record = simulate(spec, checkpoint, stop)
    assert (record.status, record.rounds_done) == ("partial", rounds) and checkpoint.path.exists()
    if put:
        store.put(record)
    return record


def edited(record: Record, **changes) -> Record:
    body = {name: value for name, value in (record.json | changes).items() if name != "checksum"}
    return Record(body | {"checksum": checksum(body)})


@pytest.fixture(scope="module")
def whole() -> Record:
    return simulate(SPEC)


# ---------------------------------------------------------------- one run


def test_a_run_stopped_again_and_again_is_the_run(tmp_path, whole):
    store = Store(tmp_path)
    first = half(SPEC, store, 3)
    assert first.series == whole.first(3).series and first.probes == whole.first(3).probes
    assert "rounds_done" not in whole.json and store.get(SPEC.id).json == first.json
    second = half(SPEC, store, 8)
    assert second.json["seconds"] >= first.json["seconds"] and numbers(second) == numbers(whole.first(8))
    assert numbers(run_one(SPEC, store)) == numbers(whole) == numbers(store.get(SPEC.id))
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [f"{SPEC.id}.json"], "no checkpoint, no lock is left"


def test_the_clock_stops_a_run_at_the_end_of_a_round(tmp_path):
    store = Store(tmp_path)
    before = run_one(ENDLESS, store, deadline=time.time() + 1)
    after = run_one(ENDLESS, store, deadline=time.time() + 1)
    assert 0 < before.rounds_done < after.rounds_done < ENDLESS.rounds
    assert after.series["accuracy"][: before.rounds_done] == before.series["accuracy"]
    assert run_one(ENDLESS, store, deadline=0.0).json == store.get(ENDLESS.id).json == after.json, "time is up"
    nothing = run_one(SPEC, store, deadline=0.0)
    assert nothing.rounds_done == 0 and nothing.waiting and store.ids() == [ENDLESS.id], "no round, no record"


def test_stopping_adds_no_evaluation(tmp_path):
    spec = SPEC.replace(eval_every=5)
    assert half(spec, Store(tmp_path), 8).series["round"] == [5]
    early = half(spec, Store(tmp_path / "early"), 4)
    assert early.waiting and early.summary is None
    assert engine.run(spec, store=Store(tmp_path / "early"), progress=False).json == early.json


def test_without_hours_it_is_shown_and_not_gone_on_with(tmp_path, whole):
    store = Store(tmp_path)
    record = half(SPEC, store, 4)
    assert engine.missing([SPEC], store) == [] and engine.missing([SPEC], store, finish=True) == [SPEC]
    assert engine.run([SPEC], store=store, progress=False)[0].json == record.json
    assert engine.run([SPEC], store=store, progress=False, hours=0)[0].json == record.json
    assert execute.rounds_done(SPEC, store) == 4
    more = SPEC.replace(probes="lap")
    with pytest.raises(FedlibError, match="lap has nothing of .* 4 of 12 rounds are done: .* --hours or --finish"):
        engine.run(more, store=store, progress=False).probe("lap")
    assert numbers(engine.run(SPEC, store=store, progress=False, finish=True)) == numbers(whole)


def test_a_killed_run_can_be_looked_at(start, tmp_path):
    store = Store(tmp_path / "runs")
    process = started(start, store, ENDLESS)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert store.ids() == [] and execute.rounds_done(ENDLESS, store) > 0
    record = engine.run(ENDLESS, store=store, progress=False, hours=0)
    assert store.ids() == [ENDLESS.id] and record.partial and record.accuracy.any()
    assert record.rounds_done == store.checkpoint(ENDLESS.id).load()["round"]
    again = simulate(ENDLESS.replace(rounds=record.rounds_done))
    assert all(record.json[name] == again.json[name] for name in ("series", "summary", "partition", "environment"))


def test_a_run_not_reached_in_time_shows_its_checkpoint(tmp_path):
    """Of two runs the second was killed once; the time is up before its turn comes."""
    store, killed = Store(tmp_path), SPEC.replace(seed=2)
    half(killed, store, 5, put=False)
    found = engine.run([SPEC, killed], store=store, progress=False, hours=0)
    assert [(r.rounds_done, r.partial) for r in found] == [(0, True), (5, True)] and store.ids() == [killed.id]


def test_where_the_checkpoint_is_gone_the_first_rounds_come_out_again(tmp_path, whole):
    store = Store(tmp_path)
    record = half(SPEC, store, 6)
    store.checkpoint(SPEC.id).clear()
    checkpoint = store.checkpoint(SPEC.id)
    again = simulate(SPEC, checkpoint, lambda done: setattr(checkpoint, "deadline", 0.0 if done == 2 else None))
    keep(again, record, store)
    assert again.rounds_done == 2 and store.get(SPEC.id).json == record.json, "the longer one stays for now"
    assert numbers(run_one(SPEC, store)) == numbers(whole)


def test_first_rounds_that_moved_are_said_and_the_old_record_is_kept(tmp_path):
    store = Store(tmp_path)
    record = half(SPEC, store, 6)
    series = {**record.series, "loss": [*record.series["loss"][:-1], record.series["loss"][-1] + 0.01]}
    wrong = edited(record, series=series)
    for machine, moves in ((record.json["environment"], True), (OTHER, False)):
        store.checkpoint(SPEC.id).clear()
        store.put(edited(wrong, environment=machine))
        if moves:
            with pytest.raises(FedlibError, match="json was made again, but the numbers moved: loss of round 6 was"):
                run_one(SPEC, store)
            assert store.get(SPEC.id).series == series
        else:  # on another kind of machine the first round is compared, within a tolerance
            assert run_one(SPEC, store).status == "ok"
    store.put(edited(record, environment=OTHER, series=record.series | {"loss": [9.0, *record.series["loss"][1:]]}))
    with pytest.raises(FedlibError, match="loss of round 1 was 9.0"):
        run_one(SPEC, store)


def test_a_run_that_moved_to_another_machine_says_so(tmp_path, whole):
    store = Store(tmp_path)
    half(SPEC, store, 5, put=False)
    checkpoint = store.checkpoint(SPEC.id)
    assert whole.json["environment"] == environment(), "as long as it stays, nothing is added"
    checkpoint.save(**checkpoint.load() | {"environments": [OTHER]})
    assert engine.run(SPEC, store=store, progress=False, hours=0).json["environment"] == OTHER
    record = run_one(SPEC, store)
    assert record.json["environment"] == environment() | {"also": [OTHER]} and record.series == whole.series
    assert not compare(record, whole).exact and not compare(whole, record).exact and compare(whole, whole).exact


def test_a_machine_it_comes_back_to_is_the_last_one(tmp_path):
    store = Store(tmp_path)
    half(SPEC, store, 5)
    checkpoint = store.checkpoint(SPEC.id)
    checkpoint.save(**checkpoint.load() | {"environments": [environment(), OTHER]})
    assert run_one(SPEC, store).json["environment"] == environment() | {"also": [OTHER]}


def rows(values):
    return lambda state: state["series"] | {"round": values}


@pytest.mark.parametrize(
    "part, value",
    {
        "round": lambda state: 99, "theta": lambda state: state["theta"][:-1], "seconds": lambda state: "long",
        "buffers": lambda state: torch.zeros(3), "server": lambda state: None, "clients": lambda state: {99: {}},
        "series": rows([1, 2, 3]), "environments": lambda state: [], "probes": lambda state: {"spread(every=2)": 1},
        "partition": lambda state: state["partition"] | {"fingerprint": "another"}, "broadcast": lambda state: [],
    }.items(),
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit_is_discarded(tmp_path, whole, part, value):
    store, told = Store(tmp_path), []
    half(SPEC, store, 5, put=False)
    checkpoint = store.checkpoint(SPEC.id)
    state = checkpoint.load()
    checkpoint.save(**state | {part: value(state)})
    assert numbers(run_one(SPEC, store, told.append)) == numbers(whole)
    assert told == list(range(1, SPEC.rounds + 1)), "it began again"


@pytest.mark.parametrize("content", [b"", b"not torch's", b"\x80\x02]q\x00."])
def test_what_is_sealed_by_hand_is_no_checkpoint(tmp_path, content):
    checkpoint = Store(tmp_path).checkpoint(SPEC.id)
    checkpoint.path.parent.mkdir()
    checkpoint.path.write_bytes(hashlib.sha256(content).hexdigest().encode() + content)
    assert checkpoint.load() is None and execute.rounds_done(SPEC, Store(tmp_path)) == 0
    checkpoint.path.unlink()
    os.mkfifo(checkpoint.path)
    assert checkpoint.load() is None, "and does not wait for a writer"


# ---------------------------------------------------------------- many runs


def test_with_hours_the_order_is_kept_and_measurements_are_made(tmp_path):
    short, long = SPEC.replace(rounds=2), SPEC.replace(rounds=40)
    measure = Measure("class_counts")
    asked = []

    def note(todo, jobs, store, progress, deadline):
        asked.append((todo, deadline))
        for spec in todo:
            run_one(spec, store, deadline=deadline)

    store = Store(tmp_path)
    engine.run([short, long, measure], store=store, engine=note, progress=False, hours=1)
    assert asked[0][0] == [short, long, measure] and 3500 < asked[0][1] - time.time() <= 3600
    engine.run([short, long, measure], store=Store(tmp_path / "2"), engine=note, progress=False)
    assert [s.id for s in asked[1][0]][-2:] == [long.id, short.id] and asked[1][1] is None, "else the longest first"
    none = engine.run([short, long, measure], store=Store(tmp_path / "3"), engine=note, progress=False, hours=0)
    assert asked[2][0] == [measure] and [r.partial for r in none] == [True, True, False]
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(FedlibError, match="hours must be a number of hours"):
            engine.run([short], store=store, hours=wrong)


def test_workers_stop_by_the_clock_too(tmp_path):
    store, specs = Store(tmp_path), [ENDLESS.replace(seed=seed) for seed in (1, 2, 3)]
    found = engine.run(specs, jobs=2, store=store, progress=False, hours=25 / 3600)
    assert [r.partial for r in found] == [True] * 3 and len({r.rounds_done for r in found if not r.waiting}) == 1
    assert found[2].rounds_done == 0 and sorted(store.ids()) == sorted(s.id for s in specs[:2]), "no time for the third"
    assert {store.get(s.id).rounds_done for s in specs[:2]} >= {found[0].rounds_done}


def test_the_variable_sets_the_hours(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_HOURS", "0")
    assert engine.run(SPEC, store=Store(tmp_path), progress=False).waiting
    monkeypatch.setenv("FEDLIB_HOURS", "soon")
    with pytest.raises(FedlibError, match="FEDLIB_HOURS is a number of hours, at least 0; got 'soon'"):
        engine.run(SPEC, store=Store(tmp_path))


# ---------------------------------------------------------------- pages


NAMES = ("data", "alpha", "method", "seed")


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> dict:
    """Two columns, two methods, two seeds: one column half done to different rounds, one run not begun at all."""
    store, grid = Store(tmp_path_factory.mktemp("runs")), {}
    for alpha in (100, 0.1):
        for method in ("fedavg", "fedprox"):
            for seed in (1, 2):
                change = dict(partition=f"dirichlet(alpha={alpha})", algorithm=method, seed=seed)
                grid["digits", alpha, method, seed] = SPEC.replace(**change)
    rounds = {("fedavg", 2): 7, ("fedprox", 1): 5, ("fedprox", 2): 0}
    for (_, alpha, method, seed), spec in grid.items():
        if alpha == 100 or (method, seed) == ("fedavg", 1):
            run_one(spec, store)
        elif done := rounds[method, seed]:
            half(spec, store, done)
    return engine.run(grid, store=store, progress=False, hours=0)


def test_methods_are_compared_at_the_last_round_all_have_reached(page):
    reached = {key[1:]: record.rounds_done for key, record in page.items()}
    assert {n for key, n in reached.items() if key[0] == 100} == {12}, "another column is left as it is"
    assert [n for key, n in reached.items() if key[0] == 0.1] == [5, 5, 5, 0]
    curves = frames.curves(page, NAMES)
    last = curves.groupby(["alpha", "method", "seed"])["round"].max()
    assert last.to_dict() == {key: n for key, n in reached.items() if n}
    scores = frames.scores(page, NAMES, last=lambda c: frames.last(c, 1))["last"]
    assert scores.isna().sum() == 1 and np.isnan(scores["digits", 0.1, "fedprox", 2])
    text = frames.describe_runs(page, NAMES)
    assert "8 runs in 4 cells, each with seeds 1, 2." in text and text.endswith(
        "Half done: compared after 5 to 12 of 12 rounds, the last that all runs of a setting have reached. 1 of 8 runs "
        "have no result yet."
    )
    spread = frames.probe_means(page, NAMES, "spread")
    assert len(spread) == 8 and spread["tau"].isna().sum() == 1
    assert set(frames.probe_long(page, NAMES, "spread", {"tau": "tau"})["round"]) == {2, 4, 6, 8, 10, 12}


def test_a_table_and_its_gains_stand_half_done(page, capsys):
    here = Page("synthesis.transfer", "laptop", [1, 2])
    here.jobs, here.records = {key: record.spec for key, record in page.items()}, page
    here.table()
    here.gains(over="fedavg")
    assert "(in 1 of 2)" in capsys.readouterr().out


def test_where_nothing_is_half_done_nothing_changes(whole):
    records = [whole, simulate(SPEC.replace(seed=2))]
    assert all(a is b for a, b in zip(common_rounds(records), records, strict=True)) and how_far(records) == ""
    assert how_far([records[1].first(4), whole]).startswith("Half done: compared after 4 to 12 of 12 rounds")


def test_a_method_without_its_last_bias_is_compared_with_those_that_have_it(whole):
    def named(model: str, status: str, rounds: int) -> Record:
        return edited(whole.first(rounds), spec=whole.json["spec"] | {"model": model}, status=status)

    short, long = named("feddw_cnn_mnist(bias=False)", "partial", 4), named("feddw_cnn_mnist", "partial", 8)
    assert [r.rounds_done for r in common_rounds([long, short])] == [4, 4]
    wide = named("mlp(hidden=9)", "partial", 8)
    assert [r.rounds_done for r in common_rounds([wide, short])] == [8, 4], "another network holds nobody back"


def test_what_is_on_record_is_whole_or_half_done(tmp_path):
    store, specs = Store(tmp_path), {"half": SPEC.replace(rounds=3), "none": SPEC.replace(seed=2)}
    half(specs["half"], store, 2)
    assert list(on_record(specs, store)) == ["half"]


def test_a_run_that_diverged_stays_diverged_when_cut(whole):
    error = {"round": 9, "client": None, "message": "It diverged."}
    diverged = edited(whole, status="diverged", error=error)
    cut, _ = common_rounds([diverged, edited(whole.first(4), status="partial")])
    assert cut.status == "diverged" and cut.series["round"] == [1, 2, 3, 4] and cut.error == error


# ---------------------------------------------------------------- the command


def test_simulate_goes_on_where_the_clock_stopped_it(shell, tmp_path):
    fields = ENDLESS.to_json()
    options = [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", value)]
    for hours in (0.001, 0.004, 0.016, 0.064):  # a busy machine may need long to begin
        first = shell("simulate", *options, "--hours", hours, "--quiet")
        if "nothing to show" not in first.stdout:
            break
    assert re.search(r"accuracy \d+\.\d\d% after \d+ of 10000 rounds", first.stdout), first.stderr
    store = Store(tmp_path / "runs")
    done = store.get(ENDLESS.id).rounds_done
    assert f"after {done} of 10000 rounds" in shell("simulate", *options, "--quiet").stdout, "shown, not gone on with"
    assert shell("simulate", *options, "--hours", hours, "--quiet").returncode == 0
    assert store.get(ENDLESS.id).rounds_done > done
    planned = shell("audit", "--store", "runs", "--seconds", 5, "--jobs", 1, "--json")
    [row] = json.loads(planned.stdout)
    assert row["moved"] == "" and row["exact"] and 0 < row["rounds"] <= row["of"] == store.get(ENDLESS.id).rounds_done


def test_a_page_is_drawn_from_half_done_runs(shell, tmp_path, notebook):
    base = RunSpec(dataset="digits", model="mlp(hidden=16)", partition="shards", rounds=9, lr=0.05)
    specs, store = [base.replace(seed=seed) for seed in (1, 2, 3)], Store(tmp_path / "runs")
    for spec, rounds in zip(specs[:2], (3, 5), strict=True):
        half(spec, store, rounds, put=rounds == 3)
    call = ("run", notebook, "-p", "rounds", 9, "--out", "out")
    planned = shell("plan", notebook, "-p", "rounds", 9)
    assert "1 distinct run to train and 2 to go on with, of which 8 rounds are done" in planned.stdout
    planned = json.loads(shell("plan", notebook, "-p", "rounds", 9, "--json").stdout)
    assert planned["rounds_done"] == {specs[0].id: 3, specs[1].id: 5}
    [row] = planned["notebooks"]
    assert (row["runs"], row["missing"], row["half_done"]) == (3, 1, 2)
    assert row["seconds"] == pytest.approx(sum(engine.estimate(base) * share for share in (6 / 9, 4 / 9, 1)))

    early = shell(*call, "--hours", 0)
    assert early.returncode == 0 and "not to be seen yet, its runs being half done: mine/table01_tiny" in early.stderr
    assert sorted(store.ids()) == sorted(s.id for s in specs[:2]), "the killed one has a record now; no training"
    half(specs[2], store, 4)
    drawn = shell(*call, "--hours", 0)
    assert drawn.returncode == 0 and "1 notebook regenerated" in drawn.stdout
    assert (
        "Half done: compared after 3 of 9 rounds"
        in (tmp_path / "out/smoke,rounds=9/mine/table01_tiny.ipynb").read_text()
    )
    assert {store.get(s.id).rounds_done for s in specs} == {3, 4, 5}
    assert shell(*call).returncode == 0 and {store.get(s.id).rounds_done for s in specs} == {3, 4, 5}
    ended = shell(*call, "--finish")
    assert ended.returncode == 0 and {store.get(s.id).status for s in specs} == {"ok"}
    assert "Half done" not in (tmp_path / "out/smoke,rounds=9/mine/table01_tiny.ipynb").read_text()
    assert [numbers(store.get(s.id)) for s in specs] == [numbers(simulate(s)) for s in specs]


def test_audit_finds_a_half_done_run_whose_numbers_were_changed(shell, tmp_path):
    store = Store(tmp_path / "runs")
    record = half(SPEC, store, 6)
    same = json.loads(shell("audit", "--store", "runs", "--json").stdout)
    assert [(row["moved"], row["rounds"], row["of"]) for row in same] == [("", 6, 6)]
    store.put(edited(record, series=record.series | {"loss": [*record.series["loss"][:-1], 1.0]}))
    moved = shell("audit", "--store", "runs")
    assert moved.returncode == 1 and "MOVED: loss of round 6 was 1.0" in moved.stdout


# ---------------------------------------------------------------- two stores


def test_what_the_own_store_lacks_is_read_from_behind(tmp_path, whole):
    behind = Store(tmp_path / "behind")
    own = Store(tmp_path / "own", behind)
    assert own.get(SPEC.id) is None
    behind.put(whole)
    assert own.get(SPEC.id).json == whole.json and own.ids() == [] and not engine.missing([SPEC], own)
    more = SPEC.replace(probes="lap")
    assert engine.missing([more], own) == [more.with_probes(None)]
    both = engine.run(more, store=own, progress=False)
    assert set(both.probes) == {"lap", "spread(every=2)"} and own.ids() == [SPEC.id]
    assert behind.get(SPEC.id).json == whole.json and not (behind.work).exists(), "nothing is written there"


def test_of_two_records_the_one_with_more_counts(tmp_path, whole):
    behind = Store(tmp_path / "behind")
    own = Store(tmp_path / "own", behind)
    behind.put(whole)
    own.put(whole.first(5))
    assert own.get(SPEC.id).json == whole.json
    own.put(edited(whole, seconds=99.0))
    assert own.get(SPEC.id).json["seconds"] == 99.0, "of equals the own"
    own.put(edited(whole, seconds=99.0, probes={}))
    assert own.get(SPEC.id, SPEC).json == whole.json, "which lacks what is asked for"
    (own.path / f"{SPEC.id}.json").write_text("{}")
    with pytest.warns(UserWarning, match="Left aside: .* is cut short"):
        assert own.get(SPEC.id).json == whole.json
    behind.put(whole.first(5))
    own.put(whole)
    assert own.get(SPEC.id).json == whole.json


def test_where_the_stores_are(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDLIB_STORE", raising=False)
    assert (default_store().path, default_store().behind.path) == (ROOT / "build/runs", ROOT / "papers/runs")
    monkeypatch.setenv("FEDLIB_STORE", str(tmp_path))
    assert (default_store().path, default_store().behind.path) == (tmp_path, committed().path)
    monkeypatch.setenv("FEDLIB_STORE", str(ROOT / "papers/runs"))
    assert default_store().behind is None


def test_committing_copies_what_is_more(tmp_path, whole):
    evidence = Store(tmp_path / "evidence")
    own = Store(tmp_path / "own", evidence)
    own.put(whole.first(4))
    assert execute.commit([SPEC, SPEC], own, evidence) == 1 and evidence.get(SPEC.id).rounds_done == 4
    own.put(whole)
    assert [r.id for r in execute.uncommitted([SPEC], own, evidence)] == [SPEC.id]
    assert execute.commit([SPEC], own, evidence) == 1 and evidence.get(SPEC.id).json == whole.json
    own.put(edited(whole, seconds=99.0))
    assert execute.commit([SPEC, SPEC.replace(seed=9)], own, evidence) == 0, "the same again is no reason to write"
    own.put(whole)
    evidence.put(edited(whole.first(4), series=whole.first(4).series | {"loss": [1.0, 1.0, 1.0, 1.0]}))
    with pytest.raises(FedlibError, match="numbers moved: loss of round 1 was 1.0"):
        execute.commit([SPEC], own, evidence)


def test_a_half_done_run_is_handed_on_to_another_clone(tmp_path, whole):
    evidence = Store(tmp_path / "evidence")
    mine, yours = Store(tmp_path / "mine", evidence), Store(tmp_path / "yours", evidence)
    half(SPEC, mine, 5)
    assert execute.commit([SPEC], mine, evidence) == 1
    left, rounds = evidence.handed_on(SPEC.id).path, []
    sealed = left.read_bytes()
    assert sealed == mine.checkpoint(SPEC.id).path.read_bytes() and evidence.ids() == [SPEC.id]
    assert execute.rounds_done(SPEC, yours) == 5
    record = run_one(SPEC, yours, rounds.append)
    assert rounds[:2] == [5, 6] and numbers(record) == numbers(whole), "it goes on and comes out as if made in one go"
    assert left.read_bytes() == sealed, "only committing writes there"
    assert execute.commit([SPEC], yours, evidence) == 1 and not left.exists() and not evidence.get(SPEC.id).partial


def test_of_two_checkpoints_the_one_that_came_further_counts(tmp_path, whole):
    evidence = Store(tmp_path / "evidence")
    mine, yours = Store(tmp_path / "mine", evidence), Store(tmp_path / "yours", evidence)
    half(SPEC, mine, 7)
    execute.commit([SPEC], mine, evidence)
    half(SPEC, Store(yours.path), 3, put=False)
    assert yours.checkpoint(SPEC.id).load()["round"] == 7
    evidence.handed_on(SPEC.id).path.write_bytes(b"damaged")
    assert yours.checkpoint(SPEC.id).load()["round"] == 3
    assert numbers(run_one(SPEC, yours)) == numbers(whole)


def test_a_checkpoint_too_large_for_a_clone_is_not_handed_on(tmp_path, monkeypatch):
    evidence = Store(tmp_path / "evidence")
    mine = Store(tmp_path / "mine", evidence)
    half(SPEC, mine, 5)
    monkeypatch.setattr("fedlib.runs.store.LARGEST_HANDED_ON", 1000)
    assert execute.commit([SPEC], mine, evidence) == 1
    assert evidence.get(SPEC.id).partial and not evidence.handed_on(SPEC.id).path.exists()


@pytest.fixture
def clone(tmp_path):
    """A clone of the working copy without its records and pages, and a way to call its fedlib and its git."""
    folder = tmp_path / "clone"
    leave = shutil.ignore_patterns(".git", "build", ".venv", "runs", "notebooks", "tests", "__pycache__", "weights")
    shutil.copytree(ROOT, folder, ignore=leave)
    (folder / "papers/runs").mkdir()
    (folder / "papers/runs/.gitkeep").touch()
    write_notebook(folder / "notebooks/mine/table01_tiny.ipynb")
    kept = {name: value for name, value in os.environ.items() if "FEDLIB" not in name}
    env = kept | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}

    def call(*arguments, program=FEDLIB, code=0) -> str:
        done = subprocess.run([program, *map(str, arguments)], cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def git(*arguments) -> str:
        return call("-c", "user.name=a", "-c", "user.email=a@b", *arguments, program="git")

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "all")
    return folder, call, git


def test_only_commit_writes_among_the_committed_records(clone):
    folder, call, git = clone
    run = ("run", "mine/table01_tiny")
    call(*run, "-p", "seeds", "7,8")
    call("simulate", "--dataset", "digits", "--model", "mlp(hidden=4)", "--partition", "iid", "--rounds", 1, "--quiet")
    script = "import fedlib; fedlib.run(fedlib.RunSpec(dataset='digits', model='mlp', partition='iid', rounds=1))"
    call("-c", f"if __name__ == '__main__':\n    {script}", program=sys.executable)
    assert git("status", "--porcelain") == "" and len(list((folder / "build/runs").glob("*.json"))) == 4
    assert "3 of their runs are not in papers/runs" in call(*run, "--update", code=2)
    trained = {p.name: p.stat().st_mtime_ns for p in (folder / "build/runs").glob("*.json")}
    assert "3 records were put into papers/runs" in call(*run, "--commit", "--update")
    again = {p.name: p.stat().st_mtime_ns for p in (folder / "build/runs").glob("*.json")}
    assert again == trained, "they are copied, not trained again"
    changed = git("status", "--porcelain", "--untracked-files=all").splitlines()
    assert sorted(line[:13] for line in changed) == [" M notebooks/", *["?? papers/run"] * 3]
    shutil.rmtree(folder / "build")
    assert "0 distinct runs to train" in call("plan", "mine/table01_tiny")
    assert "same (to the last digit)" in call("audit", "--seconds", 5, "--jobs", 1)
