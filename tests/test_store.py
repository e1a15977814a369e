"""Records are whole or refused; specs keep their ids."""

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from filelock import Timeout

from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.core.series import summary
from fedlib.core.spec import RunSpec
from fedlib.runs.execute import execute, simulate
from fedlib.runs.files import write_atomically
from fedlib.runs.record import MOST, Record, checksum
from fedlib.runs.store import STALE, Store, default_store

SPEC = RunSpec(dataset="digits", model="mlp(hidden=4)", partition="iid", clients=2, rounds=1, seed=1)


@pytest.fixture(scope="module")
def record() -> Record:
    return simulate(SPEC)


def test_round_trip(tmp_path, record):
    store = Store(tmp_path)
    assert store.get(SPEC.id) is None
    store.put(record)
    again = store.get(SPEC.id)
    assert again.json == record.json and again.spec == SPEC and store.ids() == [SPEC.id]
    assert [p.name for p in tmp_path.iterdir()] == [f"{SPEC.id}.json"], "nothing half-written stays"


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda text: text[: len(text) // 2], "cut short"),
        (lambda text: "", "cut short"),
        (lambda text: "[]", "cut short"),
        (lambda text: text.replace('"status":"ok"', '"status":"OK"'), "edited"),
    ],
)
def test_a_damaged_record_is_noticed_and_counts_as_missing(tmp_path, record, damage, says):
    store = Store(tmp_path)
    store.put(record)
    path = tmp_path / f"{SPEC.id}.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(FedlibError, match=says):
        store.get(SPEC.id)
    with pytest.warns(UserWarning, match=f"Made again, because .*{says}"):
        assert store.find(SPEC.id) is None


def test_a_record_of_a_plugin_that_is_not_loaded_says_so(tmp_path, record):
    body = {k: v for k, v in record.json.items() if k != "checksum"}
    body["spec"] = body["spec"] | {"algorithm": "cosine"}
    path = tmp_path / f"{SPEC.id}.json"
    path.write_text(json.dumps(body | {"checksum": checksum(body)}))
    with pytest.raises(FedlibError, match=f"{path} cannot be read: Unknown algorithm 'cosine'.*FEDLIB_PLUGINS"):
        Store(tmp_path).get(SPEC.id)


def test_an_empty_variable_names_no_store(monkeypatch):
    monkeypatch.setenv("FEDLIB_STORE", "")
    assert default_store().path == ROOT / "build" / "runs"


def sealed(record: Record, path: Path, change: dict, without: str = "") -> None:
    """Write a record with other parts and a checksum that fits them."""
    body = {k: v for k, v in (record.json | change).items() if k not in ("checksum", without)}
    path.write_text(json.dumps(body | {"checksum": checksum(body)}))


PARTS = "id spec revisions status error summary series partition cohorts environment seconds".split()
ROUNDS = {"round": [1], "accuracy": [0.5]}


@pytest.mark.parametrize("part", PARTS)
def test_a_record_without_a_part_is_refused(tmp_path, record, part):
    sealed(record, tmp_path / f"{SPEC.id}.json", {}, without=part)
    with pytest.raises(FedlibError, match=f"not a record that a run has left: see its {part}; delete it"):
        Store(tmp_path).get(SPEC.id)


@pytest.mark.parametrize(
    "part, value",
    [
        ("id", 7), ("spec", "digits"), ("revisions", None), ("status", "fine"), ("status", "diverged"),
        ("error", "none"), ("error", {"round": 1}), ("summary", {"last": "high"}), ("series", []), ("partition", {}),
        ("series", ROUNDS | {"loss": []}), ("series", ROUNDS | {"loss": 3}), ("series", ROUNDS | {"loss": ["low"]}),
        ("series", ROUNDS | {"round": ["1"]}), ("series", {"round": [2, 1], "accuracy": [0.5, 0.5]}), ("cohorts", 1),
        ("environment", "here"), ("seconds", "long"), ("probes", []), ("probes", {"spread": []}),
        ("probes", {"spread": {"revision": 1, "series": {"round": 1}}}), ("rounds_done", 1),
    ],
)  # fmt: skip
def test_a_record_with_a_part_of_another_kind_is_refused(tmp_path, record, part, value):
    sealed(record, tmp_path / f"{SPEC.id}.json", {part: value})
    named = "error" if value == "diverged" else part
    with pytest.raises(FedlibError, match=f"see its {named}; delete it"):
        Store(tmp_path).get(SPEC.id)


@pytest.mark.parametrize("rounds", [0, 1, -3, 99])
def test_a_half_done_record_has_some_of_its_rounds(tmp_path, record, rounds):
    sealed(record, tmp_path / f"{SPEC.id}.json", {"status": "partial", "rounds_done": rounds})
    with pytest.raises(FedlibError, match=f"has {rounds} rounds of 1; delete it"):
        Store(tmp_path).get(SPEC.id)


def test_what_is_no_file_is_no_record_and_nobody_waits_for_it(tmp_path, record):
    store, path = Store(tmp_path), tmp_path / f"{SPEC.id}.json"
    path.mkdir()
    with pytest.raises(FedlibError, match="is cut short or not a record"):
        store.get(SPEC.id)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(FedlibError, match="is cut short or not a record"):
        store.get(SPEC.id)
    path.unlink()
    for text in ("[" * 100_000, '{"checksum": "", "a": ' * 5_000, '{"checksum": 1}', "null", '"' + "\xff" * 9 + '"'):
        path.write_text(text)
        with pytest.raises(FedlibError, match="is cut short or not a record|was edited"):
            store.get(SPEC.id)
    with open(path, "wb") as file:
        file.truncate(MOST + 1)  # a file of zeros that takes no space
    with pytest.raises(FedlibError, match="is cut short or not a record"):
        store.get(SPEC.id)


def test_what_a_killed_writer_left_is_tidied_away(tmp_path):
    store = Store(tmp_path)
    store.work.mkdir()
    old, new = (tmp_path / f".{name}.json.1.partial" for name in ("old", "new"))
    work = store.work / ".a.checkpoint.2.partial"
    for path in (old, new, work):
        path.touch()
    for path in (old, work):
        os.utime(path, (0, time.time() - STALE - 9))
    store.tidy()
    assert not old.exists() and not work.exists() and new.exists(), "somebody may be at the new one"


def test_a_lock_leaves_nothing_and_keeps_others_out(tmp_path):
    store, inside, entered = Store(tmp_path), [], []

    def enter(name: int) -> None:
        for _ in range(30):
            with store.lock("x"):
                inside.append(name)
                entered.append(len(inside))
                inside.remove(name)

    threads = [threading.Thread(target=enter, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entered) == 120 and set(entered) == {1}, "never two at once, though the file comes and goes"
    assert list(store.work.iterdir()) == []
    with store.lock("x"), pytest.raises(Timeout), store.lock("x", 0.1):
        pass


def test_a_record_under_another_name_or_version_is_refused(tmp_path, record):
    store = Store(tmp_path)
    store.put(record)
    (tmp_path / f"{SPEC.id}.json").rename(tmp_path / "0123456789abcdef.json")
    with pytest.raises(FedlibError, match="holds the run"):
        store.get("0123456789abcdef")
    body = {k: v for k, v in record.json.items() if k != "checksum"} | {"format": 99}
    (tmp_path / f"{SPEC.id}.json").write_text(json.dumps(body | {"checksum": checksum(body)}))
    with pytest.raises(FedlibError, match="format 99"):
        store.get(SPEC.id)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_store_gives_a_sentence(tmp_path, record):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(FedlibError, match="Cannot write"):
        Store(tmp_path).put(record)


def test_a_store_that_cannot_be_written_gives_a_sentence(tmp_path, record):
    (tmp_path / "file").write_text("")
    with pytest.raises(FedlibError, match="Cannot write"):
        write_atomically(tmp_path / "file" / "x.json", b"")
    with pytest.raises(FedlibError, match="Cannot write"), Store(tmp_path / "file").lock("x"):
        pass


def test_summary_by_hand():
    series = [i / 100 for i in (50, 90, *range(10, 20))]
    assert summary(series) == {"last": 0.19, "last10": 0.145, "best": 0.9, "best10": pytest.approx(0.264)}
    assert summary([]) is None


BASE = dict(dataset="digits", model="lenet", partition="iid")


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(dataset="mnits"), "Unknown data set 'mnits'"),
        (dict(partition="dirichlet(alpha=0)"), "alpha"),
        (dict(partition="dirichlet(alpha=-1)"), "alpha"),
        (dict(participation=0.0), "selects nobody"),
        (dict(participation=0.01), "selects nobody"),
        (dict(participation=1.5), "choose a share"),
        (dict(rounds=0), "at least 1"),
        (dict(rounds=2.5), "must be int"),
        (dict(lr=float("nan")), "finite"),
        (dict(lr=-1.0), "positive"),
        (dict(stragglers=2.0), "share"),
        (dict(client_holdout=1.0), "share"),
        (dict(transform="zoom"), "unit, half"),
        (dict(optimizer="lion"), "adam, sgd"),
        (dict(model="lenet+mlp"), "one model"),
        (dict(seed=-1), "negative"),
        (dict(algorithm="law"), "set proxy"),
    ],
)
def test_bad_parameters_fail_at_once(changes, says):
    with pytest.raises(FedlibError, match=says):
        RunSpec(**BASE | changes)


def test_more_clients_than_samples():
    with pytest.raises(FedlibError, match="clients"):
        simulate(RunSpec(**BASE | dict(clients=10_000)))


def test_json_round_trip_and_what_decides_the_id():
    spec = RunSpec(**BASE, algorithm="fedprox(mu=0.01)", lr=1)
    assert RunSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.id == RunSpec(**BASE, algorithm="fedavg + fedprox", lr=1.0).id, "written differently, the same run"
    assert len({spec.id, spec.replace(lr=0.5).id, spec.replace(seed=2).id, spec.replace(algorithm="fedavg").id}) == 4
    with pytest.raises(FedlibError, match="no field colour"):
        RunSpec.from_json({**BASE, "colour": 1})
    with pytest.raises(FedlibError, match="needs dataset"):
        RunSpec.from_json({"model": "lenet", "partition": "iid"})


def test_a_measurement_is_a_record_too(tmp_path):
    from fedlib.core.spec import Measure
    from fedlib.runs.engine import missing, run

    measure = Measure("aggregation_time(model=lenet, shape=(1, 28, 28), clients=3, methods=('fedavg', 'lws'), turns=2)")
    assert Measure(measure.text) == measure and measure.id != Measure("aggregation_time(model=lenet)").id
    with pytest.raises(FedlibError, match="Unknown measurement"):
        Measure("weather")
    store = Store(tmp_path)
    record = run({"a": measure}, jobs=1, store=store, progress=False)["a"]
    assert record.result["parameters"] == 28_938 and set(record.result["seconds"]) == {"fedavg", "lws"}
    assert all(len(turns) == measure.rounds == 2 and min(turns) > 0 for turns in record.result["seconds"].values())
    assert store.get(measure.id).spec == measure and not missing([measure], store)


def test_seconds_of_a_local_epoch_are_those_of_the_method():
    """MOON, which also runs two frozen models, takes longer than FedAvg on the same batches."""
    from fedlib.core.spec import Measure

    methods, data = ("fedavg", "moon", "dw"), "digits(shape=(3, 32, 32))"
    measure = Measure(f"epoch_time(model=simple_cnn, dataset={data!r}, methods={methods!r}, subset=400)")
    result = execute(measure).result
    seconds = result["seconds"]
    assert {method: len(turns) for method, turns in seconds.items()} == {"fedavg": 3, "moon": 3, "dw": 3}
    assert min(seconds["moon"]) > 1.2 * min(seconds["fedavg"]) > 0
    # What FedDW itself does: a term at every step and soft labels at the end, both less than the epoch they belong to.
    for hook in ("gradient", "end"):
        assert max(result[hook]["fedavg"]) == 0 < min(result[hook]["dw"]) < min(seconds["dw"])


def test_a_round_costs_time_and_bytes():
    from fedlib.core.spec import Measure

    methods = ("fedavg", "scaffold", "fedper", "local", "fedproto", "fednova", "dw", "law(epochs=40)")
    text = f"round_cost(model='mlp(hidden=16)', proxy='balanced(size=20)', methods={methods!r})"
    result = execute(Measure(text)).result
    model, head = 4 * result["parameters"], 4 * (16 * 10 + 10)
    up, down = result["up"], result["down"]
    assert up["fedavg"] == down["fedavg"] == up["law(epochs=40)"] == model
    assert up["scaffold"] == down["scaffold"] == 2 * model  # a control variate as long as the model
    assert up["fedper"] == down["fedper"] == model - head
    assert up["local"] == down["local"] == 0
    assert up["fedproto"] == 4 * (10 * 16 + 10) and up["fednova"] == model + 4 and down["fednova"] == model
    assert up["dw"] == model + 4 * (100 + 10) and down["dw"] == model + 4 * 100
    assert {len(turns) for kind in ("local", "server") for turns in result[kind].values()} == {3}
    assert min(result["server"]["law(epochs=40)"]) > 3 * min(result["server"]["fedavg"])
