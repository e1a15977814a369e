"""Every environment variable is read in one place, and a wrong one is a sentence that names it."""

import os
import re
from pathlib import Path

import pytest

from fedlib.core import environment
from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.runs import engine
from fedlib.runs.store import Store, default_store

ROOT = Path(__file__).resolve().parents[1]


def test_no_other_file_reads_them():
    """Some are written for the processes to come, with ``= …`` behind them."""
    read = re.compile(r'(?:environ\.get\(|environ\.pop\(|environ\[|getenv\(|envvar=)"(FEDLIB_\w+)"(?!\] = )')
    assert read.findall('environ.get("FEDLIB_A") environ["FEDLIB_B"] environ["FEDLIB_C"] = ""') == [
        "FEDLIB_A",
        "FEDLIB_B",
    ]
    found = {path.name: read.findall(path.read_text()) for path in (ROOT / "fedlib").rglob("*.py")}
    assert {name for name, variables in found.items() if variables} == set()


@pytest.mark.parametrize(
    "text, trains", [("0", False), (" 0 ", False), ("no", False), ("False", False), ("off", False)]
)
def test_training_is_forbidden_however_one_says_so(monkeypatch, tmp_path, text, trains):
    monkeypatch.setenv("FEDLIB_TRAIN", text)
    assert environment.may_train() is trains
    with pytest.raises(FedlibError, match="FEDLIB_TRAIN=0 forbids"):
        engine.run(RunSpec(dataset="digits", model="mlp", partition="iid"), store=tmp_path)


@pytest.mark.parametrize("text", ["", "1", "yes", " true"])
def test_training_is_allowed(monkeypatch, text):
    monkeypatch.setenv("FEDLIB_TRAIN", text)
    assert environment.may_train()


@pytest.mark.parametrize(
    "name, read, text",
    [
        *(("FEDLIB_JOBS", environment.jobs, text) for text in ("0", "-1", "1.5", "many", "9" * 400, "²", "1e3")),
        *(("FEDLIB_TRAIN", environment.may_train, text) for text in ("maybe", "2", "nope")),
        *(("FEDLIB_CUDA_GRAPHS", environment.cuda_graphs, text) for text in ("maybe", "2")),
        *(
            ("FEDLIB_CHECKPOINT_SECONDS", environment.checkpoint_seconds, text)
            for text in ("abc", "nan", "-1", "inf", "1e999")
        ),
        *(("FEDLIB_DEVICE", environment.device, text) for text in ("gpu", "cuda:9", "0")),
        *(("FEDLIB_HOURS", environment.hours, text) for text in ("soon", "nan", "-1", "inf")),
        *(("FEDLIB_STORE", default_store, text) for text in ("~nobody-of-this-name/x", "x" * 5000, __file__)),
        *(
            ("FEDLIB_DATA", environment.data, text)
            for text in ("~nobody-of-this-name/x", "/".join("x" * 5000), __file__)
        ),
        *(("FEDLIB_PLUGINS", environment.plugins, text) for text in ("~nobody-of-this-name/x", "y" * 5000, ".")),
    ],
)
def test_what_makes_no_sense_is_a_sentence_with_the_name_of_the_variable(monkeypatch, name, read, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(FedlibError, match=f"{name} ") as caught:
        read()
    assert len(str(caught.value)) < 300 and str(caught.value).endswith(".")


def test_what_makes_sense(monkeypatch, tmp_path):
    for name in ("STORE", "DATA", "JOBS", "TRAIN", "CHECKPOINT_SECONDS", "PLUGINS", "CUDA_GRAPHS"):
        monkeypatch.delenv(f"FEDLIB_{name}", raising=False)
    assert environment.store() is environment.data() is None and environment.plugins() == []
    assert environment.jobs() == os.cpu_count() and environment.checkpoint_seconds() == 20
    assert not environment.cuda_graphs(), "nobody has measured them"
    monkeypatch.setenv("FEDLIB_JOBS", " 3 ")
    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "0.05")
    monkeypatch.setenv("FEDLIB_STORE", "~/runs")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert environment.jobs() == 3 and environment.store() == tmp_path / "runs"
    assert Store(tmp_path).checkpoint("0").every == 0.05


def test_one_run_through_a_store_named_by_its_path(tmp_path):
    spec = RunSpec(dataset="digits", model="mlp(hidden=4)", partition="iid", rounds=1, subset=100)
    record = engine.run(spec, store=str(tmp_path), progress=False)
    found = engine.run(spec, store=Store(tmp_path))
    assert found.json == record.json and (tmp_path / f"{spec.id}.json").exists()
    assert repr(found) == f"Record({spec.id}: fedavg on digits, ok, {found.accuracy[-1]:.2f}% after round 1)"
    for odd in ("fedavg", [1], 5, {"a": None}):
        with pytest.raises(FedlibError, match="fedlib.run takes a RunSpec or Measure"):
            engine.run(odd, store=tmp_path)
