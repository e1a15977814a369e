"""Methods beside each other in one line: paired intervals, a tidy frame, files; nothing is trained twice."""

import json

import pandas as pd
import pytest

import fedlib
from fedlib.core.errors import FedlibError
from fedlib.workbook.statistics import interval

SETTING = ["--dataset=digits", "--model=mlp(hidden=8)", "--partition=dirichlet(alpha=0.3)", "--clients=4", "--rounds=3"]
BASE = fedlib.RunSpec(
    dataset="digits", model="mlp(hidden=8)", partition="dirichlet(alpha=0.3)", clients=4, rounds=3, lr=0.05
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    store = str(tmp_path_factory.mktemp("runs"))
    return fedlib.compare(BASE, ["lws", "fedprox(mu=1)"], seeds=(1, 2, 3), last=1, jobs=1, store=store, progress=False)


def test_intervals_are_over_pairs_of_seeds(found):
    assert list(found.table.index) == ["fedavg", "lws", "fedprox(mu=1)"]
    leads = [found.records["lws", s].accuracy[-1] - found.records["fedavg", s].accuracy[-1] for s in (1, 2, 3)]
    assert found.table.loc["lws", ["over_base", "low", "high"]].tolist() == pytest.approx(list(interval(leads)))
    assert found.table.loc["fedavg", ["over_base", "low"]].isna().all()
    assert "over fedavg, 95% interval" in repr(found) and len(repr(found).splitlines()) == 4


def test_the_frame_is_tidy(found):
    frame = fedlib.frame(found.records)
    assert len(frame) == 3 * 3 * 3 and frame.equals(found.frame)
    one = found.records["lws", 2]
    assert frame[frame.id == one.id].accuracy.tolist() == pytest.approx(one.accuracy.tolist())
    assert len(fedlib.frame(one)) == 3


def test_pictures_by_their_ending(found, tmp_path):
    for ending in ("png", "svg"):
        found.plot(tmp_path / f"curves.{ending}")
        assert (tmp_path / f"curves.{ending}").stat().st_size > 1000
    with pytest.raises(FedlibError, match="ends in .png"):
        found.plot(tmp_path / "curves.doc")
    with pytest.raises(FedlibError, match="takes a list"):
        fedlib.compare(BASE, "lws")


def test_from_the_shell_and_again_without_training(shell, tmp_path):
    options = ["--algorithm=lws", "--algorithm=fedprox(mu=1)", "--seeds=1-2", "--jobs=1", "-q"]
    done = shell("compare", *SETTING, *options, "--csv=c.csv", "--plot=c.svg")
    assert done.returncode == 0 and done.stdout.splitlines()[0].startswith("method"), done.stderr
    assert len(pd.read_csv(tmp_path / "c.csv")) == 3 * 2 * 3 and (tmp_path / "c.svg").exists()
    again = shell("compare", *SETTING, *options, "--json", FEDLIB_TRAIN="0")
    assert again.returncode == 0, again.stderr
    assert [row["method"] for row in json.loads(again.stdout)["table"]] == ["fedavg", "lws", "fedprox(mu=1)"]
    wrong = shell("compare", *SETTING, "--algorithm=lws", "--seeds=a-b")
    assert wrong.returncode == 2 and "such as 1-3" in wrong.stderr and "Traceback" not in wrong.stderr
