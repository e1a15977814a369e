"""A method in a file of one's own is a method like any other: the README's example, as it is printed there."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUN = ["simulate", "--dataset", "digits", "--model", "mlp(hidden=16)", "--partition", "dirichlet(alpha=0.1)"]
RUN += ["--clients", "5", "--rounds", "2", "--subset", "200", "--json"]


@pytest.fixture
def plugin(tmp_path) -> Path:
    found = re.search(r"<!-- tested: (\S+) -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / found[1]
    path.write_text(found[2])
    assert len(found[2].splitlines()) <= 18, "it is to be short"
    return path


def test_the_example_runs_alone_and_composed_and_in_workers(plugin, shell):
    done = shell(*RUN, "--algorithm", "cosine(sharpness=2)+lws", "--seed", 1, "--seed", 2, FEDLIB_PLUGINS=str(plugin))
    assert done.returncode == 0, done.stderr
    assert len(list((plugin.parent / "runs").glob("*.json"))) == 2
    assert all('"cosine"' in path.read_text() for path in (plugin.parent / "runs").glob("*.json")), "what it logged"


def test_another_file_makes_other_runs(plugin, shell):
    assert shell(*RUN, "--algorithm", "cosine", FEDLIB_PLUGINS=str(plugin)).returncode == 0
    plugin.write_text(plugin.read_text().replace("exp(self", "exp(2 * self"))
    assert shell(*RUN, "--algorithm", "cosine", FEDLIB_PLUGINS=str(plugin)).returncode == 0
    assert len(list((plugin.parent / "runs").glob("*.json"))) == 2


def test_a_bad_file_is_named_in_one_sentence(plugin, shell):
    plugin.write_text("1 / 0")
    done = shell("algorithms", FEDLIB_PLUGINS=str(plugin))
    assert done.returncode and "cosine.py cannot be loaded: ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr
    done = shell("algorithms", FEDLIB_PLUGINS="missing.py")
    assert "'missing.py', which is no file" in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_ends_the_process_is_named_too(plugin, shell):
    plugin.write_text("import sys\nsys.exit(0)")
    done = shell("algorithms", FEDLIB_PLUGINS=str(plugin))
    assert done.returncode == 2 and "cosine.py cannot be loaded: SystemExit: 0." in done.stderr


def test_annotations_from_the_future_are_read(plugin, shell):
    plugin.write_text("from __future__ import annotations\n" + plugin.read_text())
    done = shell(*RUN, "--algorithm", "cosine(sharpness=2)", FEDLIB_PLUGINS=str(plugin))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_one_command_sets_it_beside_every_method(plugin, shell, tmp_path):
    names = re.search(r"fedlib run synthesis/all_methods -p also \"(.*)\"", (ROOT / "README.md").read_text())[1]
    run = ["run", "synthesis/all_methods", "--scale", "smoke", "--out", tmp_path / "out", "-p", "also", names]
    done = shell(*run, FEDLIB_PLUGINS=str(plugin))
    assert done.returncode == 0, done.stderr
    page = json.loads(next((tmp_path / "out").rglob("all_methods.ipynb")).read_text())
    shown = json.dumps([cell.get("outputs") for cell in page["cells"]])
    assert "cosine+lws" in shown, "its rows are in the tables"
