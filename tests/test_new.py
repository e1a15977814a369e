"""``fedlib new`` makes a page of a new paper that lists, plans, runs, reports and builds without editing code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedlib.core.paths import ROOT


@pytest.fixture
def clone(tmp_path):
    """A copy of the workbook with the pages of one paper, and a way to call its command."""
    here = tmp_path / "clone"
    kept = shutil.ignore_patterns("__pycache__", "runs", "*.safetensors")
    for folder in ("fedlib", "papers", "docs", "notebooks/library"):
        shutil.copytree(ROOT / folder, here / folder, ignore=kept)
    shutil.copytree(ROOT / "fedlib" / "runs", here / "fedlib" / "runs", ignore=kept, dirs_exist_ok=True)
    shutil.copy(ROOT / "README.md", here)

    def call(*arguments):
        variables = {n: v for n, v in os.environ.items() if "FEDLIB" not in n} | {"PYTHONPATH": str(here)}
        variables |= {"OMP_NUM_THREADS": "1", "FEDLIB_STORE": str(tmp_path / "runs")}
        command = [sys.executable, "-m", "fedlib", *arguments]
        return subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True)

    return here, call


def test_a_new_paper_lists_plans_runs_and_reports(clone):
    here, call = clone
    made = call("new", "mypaper", "table1")
    assert made.returncode == 0 and "notebooks/mypaper/table01.ipynb" in made.stdout, made.stderr
    assert "mypaper/table01" in call("list", "mypaper").stdout
    assert "6 distinct runs to train" in (planned := call("plan", "mypaper")).stdout, planned.stderr
    done = call("run", "mypaper", "--jobs=1", "--commit", "--update")
    assert done.returncode == 0, done.stderr
    reported = call("report", "--update")
    assert reported.returncode == 0, reported.stderr
    assert "mypaper: FedProx is more accurate" in (here / "papers" / "claims.md").read_text()
    assert "Table 1" in (here / "papers" / "mypaper" / "README.md").read_text()


def test_a_second_page_of_the_same_paper_and_what_is_refused(clone):
    _, call = clone
    call("new", "mypaper", "table1")
    assert call("new", "mypaper", "figure02_curves").returncode == 0
    assert "6 distinct runs" in (planned := call("plan", "mypaper")).stdout, planned.stderr  # both have the same runs
    again = call("new", "mypaper", "table1")
    assert again.returncode == 2 and "already" in again.stderr
    wrong = call("new", "My Paper", "table1")
    assert wrong.returncode == 2 and "small letters" in wrong.stderr


@pytest.mark.slow
def test_a_new_paper_is_on_the_site(clone, tmp_path):
    pytest.importorskip("sphinx")
    here, call = clone
    shutil.copytree(ROOT / "notebooks", here / "notebooks", dirs_exist_ok=True)
    os.symlink(ROOT / "papers" / "runs", here / "papers" / "runs")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, here)
    call("new", "mypaper", "table1")
    assert call("run", "mypaper", "--jobs=1", "--out", str(tmp_path / "pages")).returncode == 0
    target = Path(tmp_path / "pages" / "laptop" / "mypaper" / "table01.ipynb")
    shutil.copy(target, here / "notebooks" / "mypaper" / "table01.ipynb")
    built = call("site")
    assert built.returncode == 0, built.stderr[-2000:]
    assert (here / "build" / "site" / "notebooks" / "mypaper" / "table01.html").exists()
