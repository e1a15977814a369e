"""The fedlib command, called as a user calls it."""

import json
import re
import subprocess
import sys
import time

import pytest
from conftest import write_notebook

from fedlib import RunSpec
from fedlib.runs.audit import choose, draw
from fedlib.runs.compare import compare
from fedlib.runs.record import Record, checksum
from fedlib.runs.store import Store

TINY = {"dataset": "digits", "model": "mlp(hidden=16)", "partition": "shards", "rounds": "2", "lr": "0.05"}


def options(**changes) -> list[str]:
    return [part for name, text in (TINY | changes).items() for part in (f"--{name.replace('_', '-')}", text)]


def sentence(process, code=2) -> str:
    """What a failure says: nothing on stdout, one sentence on stderr, no traceback."""
    assert process.returncode == code and process.stdout == ""
    assert process.stderr.count("\n") == 1 and process.stderr.startswith("fedlib: ") and process.stderr.endswith(".\n")
    return process.stderr


def files(folder) -> list[str]:
    """What is in a store, besides the locks of its work folder."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


def test_help_is_quick_and_teaches(fresh_shell, shell):
    began = time.perf_counter()
    shown = fresh_shell("--help")
    seconds = time.perf_counter() - began
    assert shown.returncode == 0 and "fedlib run" in shown.stdout
    assert seconds < 2, "0.2 s on an idle machine; importing torch alone takes longer than this"
    for command in ("list", "plan", "run", "simulate", "algorithms", "models", "probes", "data", "audit"):
        assert f"fedlib {command}" in shell(command, "--help").stdout, "every help has an example"


def test_the_forked_command_of_these_tests_does_what_the_command_does(fresh_shell, shell):
    for arguments in (("params", "fedprox"), ("plan", "nothing"), ("simulate", *options(rounds="1"), "-q", "--fresh")):
        fresh, forked = fresh_shell(*arguments), shell(*arguments)
        assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
        assert fresh.stdout + fresh.stderr


def test_simulate_has_an_option_for_every_field(shell):
    text = shell("simulate", "--help").stdout
    for name in RunSpec.__dataclass_fields__:
        assert f"--{name.replace('_', '-')} " in text


def test_simulate_trains_once_and_prints_the_same_numbers_with_any_jobs(shell, tmp_path):
    first = shell("simulate", *options(), "--seed", 1, "--seed", 2, "--jobs", 2)
    assert first.returncode == 0 and "4/4" in first.stderr and len(first.stdout.splitlines()) == 2
    assert re.search(r"^[0-9a-f]{16}  fedavg on digits, shards, seed 1: accuracy \d+\.\d\d% after 2 ", first.stdout)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}
    again = shell("simulate", *options(), "--seed", 1, "--seed", 2, "--json", FEDLIB_TRAIN="0")
    assert again.stderr == "" and {path: path.stat().st_mtime_ns for path in stamps} == stamps
    fresh = shell("simulate", *options(), "--set", "seed", 1, "--json", "--fresh", "--quiet", "--jobs", 1)
    assert fresh.stderr == "" and json.loads(fresh.stdout) == json.loads(again.stdout)[0]
    row = json.loads(fresh.stdout)
    spec = RunSpec(dataset="digits", model="mlp(hidden=16)", partition="shards", rounds=2, lr=0.05, seed=1)
    assert row["id"] == spec.id and row["status"] == "ok" and row["round"] == [1, 2]
    assert row["summary"]["last"] == row["accuracy"][-1] and f"{100 * row['accuracy'][-1]:.2f}%" in first.stdout


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"dataset": "emnist"}, r"Unknown data set 'emnist' \(did you mean 'mnist'\?\); the known ones are: .*digits"),
        ({"model": "mlp(width=3)"}, "has no parameter 'width'"),
        ({"algorithm": "fedsgd"}, "Unknown algorithm 'fedsgd'"),
        ({"partition": "dirichlet(alpha=0)"}, "alpha.*positive.*got 0"),
        ({"partition": "dirichlet(alpha=-0.5)"}, "alpha.*positive.*got -0.5"),
        ({"partition": "iid", "clients": "5000"}, "clients.*number of samples.*5000"),
        ({"participation": "0.01"}, "participation=0.01 of 10 clients selects nobody"),
        ({"participation": "0"}, "selects nobody"),
        ({"rounds": "many"}, "rounds must be int; got 'many'"),
        ({"subset": "7"}, "subset"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(shell, tmp_path, changes, words):
    assert re.search(words, sentence(shell("simulate", *options(**changes))))
    assert files(tmp_path) == []


def test_a_field_that_does_not_exist_is_one_sentence(shell):
    said = sentence(shell("simulate", *options(), "-p", "epochs", 3))
    assert "A run has no field epochs (did you mean 'local_epochs'?); it has: algorithm," in said
    assert "A run needs model" in sentence(shell("simulate", "--dataset", "digits", "--partition", "iid"))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--algorithm", "fedavg", "--algorithm", "lws"], "--algorithm is given 2 times; give it once"),
        (["-p", "seed", "1", "--seed", "2"], "seed is given more than once"),
        (["--clients", "10.0"], "clients must be int; got 10.0"),
        (["--seed", "0.0"], "seed must be int; got 0.0"),
        (["--jobs", "0"], r"0 is not in the range .* See 'fedlib simulate --help'"),
        (["--lrr", "1"], r"Did you mean .*'--lr'"),
    ],
)
def test_what_was_taken_without_a_word_is_refused(shell, tmp_path, arguments, words):
    given = ["--dataset", "digits", "--model", "mlp", "--partition", "iid", *arguments]
    assert re.search(words, sentence(shell("simulate", *given)))
    assert files(tmp_path) == []


@pytest.mark.parametrize("module", ["fedlib", "fedlib.cli"])
def test_the_command_is_a_module_too(module, environment):
    done = subprocess.run([sys.executable, "-m", module, "lst"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "No such command 'lst'. Did you mean 'list'? See 'fedlib --help'." in done.stderr


@pytest.mark.parametrize("command", ["simulate", "compare", "audit"])
def test_wherever_runs_are_trained_they_can_be_given_a_share_of_a_card(shell, command):
    made = options(clients="2", rounds="1")
    if command == "audit":
        shell("simulate", *made, "-q")
        made = ["--store", "runs"]
    if command == "compare":
        made += ["--algorithm", "lws"]
    assert "no CUDA device here" in sentence(shell(command, *made, "--device", "cpu", "--gpus", "0.5"))


def test_a_run_that_diverged_is_a_failure(shell):
    diverged = shell("simulate", *options(lr="100000", rounds="1", algorithm="fedprox(mu=1e30)"), "--quiet", "--json")
    assert diverged.returncode == 1 and diverged.stderr == "fedlib: 1 of 1 run diverged.\n"
    assert json.loads(diverged.stdout)["status"] == "diverged"
    fine = shell("simulate", *options(rounds="1"), "--quiet")
    assert fine.returncode == 0 and "after 1 round (" in fine.stdout


def test_a_parameter_is_set_where_there_is_one(shell, notebook):
    other = write_notebook(notebook.with_name("table02_other.ipynb"))
    text = other.read_text().replace("rounds: int = 2", "turns: int = 2")
    other.write_text(text.replace("rounds=rounds", "rounds=turns"))
    planned = shell("plan", notebook, other, "-p", "rounds", 5, "--json")
    assert planned.returncode == 0 and planned.stderr == "fedlib: rounds is set in the 1 of 2 notebooks that have it.\n"
    assert json.loads(planned.stdout)["total"]["missing"] == 6, "the other one keeps its two rounds"
    both = sentence(shell("plan", notebook, "-p", "rounds", 5, "-p", "rounds", 6))
    assert "rounds is given more than once" in both


def test_a_record_cut_in_half_is_reported_and_left_alone(shell, tmp_path, notebook):
    assert shell("run", notebook, "-p", "seeds", 1, "--out", "out").returncode == 0
    [record] = (tmp_path / "runs").glob("*.json")
    half = record.read_text()[: record.stat().st_size // 2]
    record.write_text(half)
    commands = ("simulate", *options(seed="1")), ("run", notebook, "--out", "out2"), ("plan", notebook)
    for process in (shell(*command) for command in (*commands, ("audit", "--store", "runs"))):
        assert f"{record.name} is cut short or not a record; delete it and run again" in sentence(process)
    assert record.read_text() == half and not (tmp_path / "out2").exists()
    record.unlink()
    assert shell("simulate", *options(seed="1")).returncode == 0 and len(record.read_text()) > len(half)


def test_plan_and_run(shell, tmp_path, notebook):
    planned = json.loads(shell("plan", notebook, "--json").stdout)
    listed = shell("plan", notebook, "--runs").stdout.splitlines()
    assert planned["ids"] and "core time" in listed[0]
    assert {line.split()[0] for line in listed[1 : len(planned["ids"]) + 1]} == set(planned["ids"])
    assert planned["total"]["missing"] == len(planned["ids"]) == 3 and planned["total"]["seconds"] > 0
    assert planned["total"]["gpu_seconds"] == pytest.approx(planned["notebooks"][0]["gpu_seconds"]) != 0
    assert files(tmp_path) == ["notebooks/mine/table01_tiny.ipynb"], "a plan trains nothing"
    source = notebook.read_text()
    done = shell("run", notebook, "--out", "out", "--jobs", 2, "-p", "seeds", "1,2")
    assert done.returncode == 0 and "1 notebook regenerated in out/smoke,seeds=1,2/mine." in done.stdout
    executed = (tmp_path / "out/smoke,seeds=1,2/mine/table01_tiny.ipynb").read_text()
    assert "seeds = [1, 2]" in executed and notebook.read_text() == source
    planned = json.loads(shell("plan", notebook, "--json").stdout)
    assert planned["notebooks"][0]["runs"] == 3 and planned["total"]["missing"] == 1

    assert json.loads(shell("list", notebook, "--json").stdout)[0]["claims"] == []
    assert "seeds of mine/table01_tiny would differ" in sentence(shell("run", notebook, "--update", "-p", "seeds", 1))
    assert shell("run", notebook, "--update", "--scale", "smoke", "--out", "out").returncode == 0
    [row] = json.loads(shell("list", notebook, "--json").stdout)
    assert (row["paper"], row["notebook"], row["title"]) == ("mine", "mine/table01_tiny", "Three runs")
    assert [(claim["id"], claim["verdict"]) for claim in row["claims"]] == [("mine.table1.C1", "reproduced")]
    assert "✓ reproduced (own)           FedAvg learns something." in shell("list", notebook).stdout


def test_probes_are_printed_and_a_plan_knows_which_are_lacking(shell, notebook):
    shown = shell("simulate", *options(seed="1", probes="spread+cosines"), "--quiet").stdout
    assert re.search(r"\n    cosines: lists only, see --json\n    spread: tau [\d.]+\n$", shown)
    paths = [notebook.with_name(f"{name}.ipynb") for name in "ab"]
    for path, text in zip(paths, ("spread", "spread+histogram(rounds=(1, 90))"), strict=True):
        path.write_text(notebook.read_text().replace("seed=seed)", f"seed=seed, probes='{text}')"))
    planned = json.loads(shell("plan", *paths, "-p", "seeds", 1, "--json").stdout)
    assert [row["missing"] for row in planned["notebooks"]] == [0, 1] and planned["total"]["missing"] == 1


def test_unknown_parameters_fail_before_anything_runs(shell, tmp_path, notebook):
    other = write_notebook(notebook.with_name("table02_other.ipynb"))
    call = ("run", notebook, other, "--out", "out")
    said = sentence(shell(*call, "-p", "seed", 3))
    assert "has no parameter 'seed' (did you mean 'seeds'?); it takes: scale, seeds, lr, rounds" in said
    assert "Unknown scale 'huge'" in sentence(shell(*call, "--scale", "huge"))
    assert "lr must be of type float, such as 0.05; got 'fast'" in sentence(shell(*call, "-p", "lr", "fast"))
    assert "No notebook matches 'nothing'" in sentence(shell("run", "nothing"))
    assert files(tmp_path) == ["notebooks/mine/table01_tiny.ipynb", "notebooks/mine/table02_other.ipynb"]


def test_a_missing_run_is_not_trained_where_that_is_forbidden(shell, tmp_path, notebook):
    assert "FEDLIB_TRAIN=0 forbids training" in sentence(shell("run", notebook, FEDLIB_TRAIN="0"))
    assert len(files(tmp_path)) == 1


LISTED = {"algorithms": "fedprox", "models": "mlp", "probes": "hessian", "partitions": "hybrid", "proxies": "longtail"}
LISTED |= {"corruptions": "swap", "optimizers": "adam"}


@pytest.mark.parametrize("command, name", LISTED.items())
def test_what_there_is(shell, command, name):
    rows = {row["name"]: row for row in json.loads(shell(command, "--json").stdout)}
    assert rows[name]["parameters"] and all(row["about"].endswith(".") for row in rows.values()), "whole sentences"
    assert f"{name}(" in shell(command).stdout


def test_data_lists_and_gets(shell):
    rows = {row["name"]: row for row in json.loads(shell("data", "--json").stdout)["datasets"]}
    assert rows["digits"]["present"] and {"mnist", "fashion_mnist", "cifar10"} < set(rows)
    assert re.search(r"^digits +yes", shell("data").stdout, re.MULTILINE)
    assert re.fullmatch(r"digits: [\d,]+ \+ \d+ samples, from scikit-learn\.\n", shell("data", "get", "digits").stdout)
    assert "Unknown data set 'nist'" in sentence(shell("data", "get", "digits", "nist"))


def test_audit_finds_the_record_whose_numbers_were_changed(shell, tmp_path):
    (tmp_path / "runs").mkdir()
    assert "There is no record" in sentence(shell("audit", "--store", "runs"))
    assert shell("simulate", *options(), "--seed", 1, "--seed", 2).returncode == 0
    same = shell("audit", "--store", "runs", "--json")
    assert same.returncode == 0
    assert [(row["exact"], row["moved"], row["rounds"]) for row in json.loads(same.stdout)] == [(True, "", 2)] * 2

    store = Store(tmp_path / "runs")
    honest = store.get(store.ids()[0])
    store.put(edited(honest, bump(honest.json, 1e-6)))  # by someone who knows about the checksum, too
    moved = shell("audit", "--store", "runs")
    assert moved.returncode == 1 and f"the numbers of 1 record moved: {honest.id}" in moved.stderr
    assert re.search(f"^{honest.id} .*MOVED: loss of round 2 was", moved.stdout, re.MULTILINE)

    elsewhere = {"environment": honest.json["environment"] | {"cpu": "another"}}
    assert compare(edited(honest, elsewhere), honest).moved == ""
    assert compare(edited(honest, elsewhere | bump(honest.json, 1e-4, first=True)), honest).moved == ""
    for name, by in {"loss": 0.3, "train_loss": 0.02, "accuracy": 0.03}.items():
        apart = edited(honest, elsewhere | bump(honest.json, by, first=True, name=name))
        assert f"{name} of round 1 was" in compare(apart, honest).moved
    older = {"environment": {k: v for k, v in honest.json["environment"].items() if k != "cpu"}}
    assert not compare(edited(honest, older), honest).exact, "on which processor, it does not say"
    ended = {"status": "diverged", "error": {"round": 2, "client": 1, "message": "Client 1 diverged in round 2."}}
    assert "it ended in None" in compare(edited(honest, ended), honest).moved
    assert compare(edited(honest, elsewhere | ended), honest).moved == "", "where it diverges is a matter of rounding"

    path = tmp_path / "runs" / f"{honest.id}.json"
    path.write_text(path.read_text().replace('"loss":[', '"loss":[1', 1))
    assert "was edited: its checksum does not match" in sentence(shell("audit", "--store", "runs"))


def bump(record: dict, by: float, first=False, name="loss") -> dict:
    """The series with a slightly higher loss, or another number, in the first or last round."""
    values = list(record["series"][name])
    values[0 if first else -1] += by
    return {"series": record["series"] | {name: values}}


def edited(record: Record, changes: dict) -> Record:
    body = {name: value for name, value in (record.json | changes).items() if name != "checksum"}
    return Record(body | {"checksum": checksum(body)})


def test_audit_takes_the_first_rounds_of_long_runs_and_every_kind_of_run(shell, tmp_path):
    assert shell("simulate", *options(rounds="30", local_epochs="2"), "--seed", 1, "--seed", 2).returncode == 0
    assert shell("simulate", *options(algorithm="fedprox")).returncode == 0
    store = Store(tmp_path / "runs")
    for record in [store.get(id) for id in store.ids()]:
        if record.spec.rounds == 30:  # as if it had taken five minutes
            store.put(edited(record, {"seconds": 300.0}))
    records = [store.get(id) for id in store.ids()]
    assert {r.spec.algorithm for r in choose(records, 2)} == {"fedavg", "fedprox"}
    foreign = [edited(r, {"environment": r.json["environment"] | {"cpu": "another"}}) for r in records]
    near = [r for r in records if r.spec.seed == 2]
    drawn = draw([*near, *(r for r in foreign if r.id != near[0].id)], 2)
    assert drawn[0] is near[0] and drawn[1] in foreign, "half of them where every digit counts, the cheapest first"
    rows = json.loads(shell("audit", "--store", "runs", "--sample", 2, "--seconds", 60, "--jobs", 1, "--json").stdout)
    assert sorted((row["rounds"], row["of"], row["moved"]) for row in rows) == [(2, 2, ""), (3, 30, "")]
