"""Records at hand: listed, shown, set beside each other; from the shell and from Python."""

import csv
import io
import json

import pytest

import fedlib
from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.runs.store import Store, committed
from fedlib.workbook.settings import own_grid

BASE = fedlib.RunSpec(dataset="digits", model="mlp(hidden=4)", partition="iid", clients=2, rounds=3, subset=200)


@pytest.fixture
def two(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_STORE", str(tmp_path / "runs"))
    return fedlib.run([BASE, BASE.replace(algorithm="lws", lr=0.05)], jobs=1, progress=False)


def test_a_record_by_the_beginning_of_its_id(two):
    assert fedlib.record(two[0].id[:8]).json == two[0].json
    with pytest.raises(FedlibError, match="There is no record"):
        fedlib.record("nothing")
    with pytest.raises(FedlibError, match="records begin with ''|There is no record ''"):
        fedlib.record("")


def test_runs_are_filtered_and_sorted(two, shell):
    found = json.loads(shell("runs", "--own", "--sort=accuracy", "--json").stdout)
    assert {row["id"] for row in found} == {record.id for record in two}
    assert found[0]["accuracy"] >= found[1]["accuracy"]
    rows = list(csv.DictReader(io.StringIO(shell("runs", "--own", "--algorithm=*lws*", "--csv").stdout)))
    assert [row["id"] for row in rows] == [two[1].id]
    assert shell("runs", "--own", "--dataset=mnist").stdout.splitlines()[-1] == "0 runs."


def test_what_runs_cost_is_added_up_by_paper_and_machine(two):
    from fedlib.cli.records import cost

    lap = Store(ROOT / "papers" / "runs").get(
        own_grid("fedlap", "mnist", "paper")["mnist", "no stragglers", "fedlap", 1].id
    )
    spent = cost([*two, lap])
    assert {name: part["runs"] for name, part in spent["paper"].items()} == {"FedLap": 1, "on no page": 2}
    hours = sum(record.json["seconds"] for record in (*two, lap)) / 3600
    for parts in spent.values():
        assert sum(part["core_hours"] for part in parts.values()) == pytest.approx(hours)
    assert all(name.startswith("cpu, ") for name in spent["machine"])


def test_show_has_the_curve_and_the_picture(two, shell, tmp_path):
    done = shell("show", two[0].id[:8], "--plot=c.png")
    assert done.returncode == 0 and "mlp(hidden=4)" in done.stdout and "used on   no page" in done.stdout, done.stderr
    assert (tmp_path / "c.png").stat().st_size > 1000
    assert shell("show", "nothing").returncode == 2


def test_diff_names_the_fields_that_differ(two, shell):
    found = json.loads(shell("diff", two[0].id, two[1].id, "--json").stdout)
    assert set(found["fields"]) == {"algorithm", "lr"} and found["accuracy"]["round"] == 3 and found["moved"]
    assert "The same run." in shell("diff", two[0].id, two[0].id).stdout


def test_records_that_cannot_be_read_are_said(two, tmp_path):
    from fedlib.runs.lookup import runs

    (tmp_path / "runs" / "broken.json").write_text("{")
    with pytest.warns(UserWarning, match="1 records were left out"):
        assert len(list(runs(Store(tmp_path / "runs")))) == 2


def test_clean_lists_and_removes_what_nothing_needs(two, shell, tmp_path):
    folder = tmp_path / "runs"
    (folder / "broken.json").write_text("{")
    (folder / ".work").mkdir(exist_ok=True)
    finished, going = (folder / ".work" / f"{id}.checkpoint" for id in (two[0].id, "0" * 16))
    for path in (finished, going):
        path.write_bytes(b"x")
    before = sorted(folder.rglob("*.json"))
    listed = shell("clean")
    assert listed.returncode == 0 and sorted(folder.rglob("*.json")) == before, listed.stderr
    assert "broken.json" in listed.stdout and f"{finished.name}  its run is finished" in listed.stdout
    assert two[0].id + ".json" not in listed.stdout and going.name not in listed.stdout
    assert shell("clean", "--yes").returncode == 0
    assert {path.stem for path in folder.glob("*.json")} == {record.id for record in two}
    assert going.exists() and not finished.exists()
    shell("clean", "--all", "--yes")
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_clean_never_touches_the_committed_records(shell):
    done = shell("clean", "--all", "--yes", FEDLIB_STORE=str(committed().path))
    assert done.returncode == 2 and "holds the committed records" in done.stderr
