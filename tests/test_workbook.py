"""Notebooks: found, planned without a kernel, executed, cleaned; what is committed is executed and clean."""

import json

import nbformat
import pytest
from conftest import write_notebook

from fedlib.core.errors import FedlibError
from fedlib.workbook import MIME
from fedlib.workbook import notebooks as workbook
from fedlib.workbook.notebooks import Notebook, cleaned, execute_all, find, shown, typed, update

COMMITTED = find()


def test_names_globs_papers_and_paths_select(tmp_path):
    folder = tmp_path / "notebooks"
    names = ("one/figure01_x", "one/table02_y", "two/figure01_z")
    a, b, c = (write_notebook(folder / f"{name}.ipynb") for name in names)
    assert [nb.path for nb in find((), folder)] == [a, b, c]
    assert [nb.path for nb in find(["one"], folder)] == [a, b]
    assert [nb.path for nb in find(["figure01*"], folder)] == [a, c]
    assert [nb.name for nb in find(["two/figure01_z", "two", str(c)], folder)] == ["two/figure01_z"]
    assert [nb.path for nb in find(["one/fig"], folder)] == [a], "the beginning of a name"
    assert [nb.path for nb in find(["figure01"], folder)] == [a, c]
    with pytest.raises(FedlibError, match=r"No notebook matches 'three'; 'fedlib list' names them all"):
        find(["three"], folder)
    with pytest.raises(FedlibError, match=r"No notebook matches 'one/figrue01' \(did you mean 'one/figure01'\?\)"):
        find(["one/figrue01"], folder)
    with pytest.raises(FedlibError, match="there is none in "):
        find(["one"], tmp_path / "elsewhere")


@pytest.mark.parametrize(
    "text, default, value",
    [
        ("paper", "laptop", "paper"), ("3", 1, 3), ("1", 0.5, 1.0), ("1e-3", 0.5, 0.001), ("true", False, True),
        ("[4, 5]", [1], [4, 5]), ("4,5", [1], [4, 5]), ("4", [1], [4]), ("'a','b'", ["c"], ["a", "b"]), ("7", None, 7),
        ("word", None, "word"), (2, 1, 2), ("mine", [], ["mine"]), ("a(x=1)+b", [], ["a(x=1)+b"]),
        ("'a','b'", [], ["a", "b"]),
    ],
)  # fmt: skip
def test_values_take_the_type_of_the_default(text, default, value):
    result = typed("x", text, default)
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(
    "text, default", [("1.5", 1), ("yes", True), ("1", True), ("True", 1), ("x", 0.5), ("1,x", [1])]
)
def test_values_of_another_type_are_refused(text, default):
    with pytest.raises(FedlibError, match=f"x must be of type {type(default).__name__}, such as"):
        typed("x", text, default)


def test_parameters_are_checked_and_only_changes_kept(notebook):
    nb = Notebook(notebook)
    assert nb.defaults == {"scale": "smoke", "seeds": [1, 2, 3], "lr": 0.05, "rounds": 2}
    assert nb.changes({"seeds": "1,2,3", "rounds": "3", "scale": "smoke"}) == {"rounds": 3}
    with pytest.raises(FedlibError, match=r"has no parameter 'seed' \(did you mean 'seeds'\?\); it takes: scale, se"):
        nb.changes({"seed": "3"})
    with pytest.raises(FedlibError, match="seeds must not be empty: nothing would be left to run"):
        nb.changes({"seeds": "[]"})
    with pytest.raises(FedlibError, match="Unknown scale 'huge'; allowed: smoke, laptop, paper"):
        nb.changes({"scale": "huge"})


def test_a_plan_applies_the_parameters_between_the_two_cells(notebook):
    nb = Notebook(notebook)
    assert {seed: spec.lr for seed, spec in nb.plan().items()} == {1: 0.05, 2: 0.05, 3: 0.05}
    assert {seed: spec.rounds for seed, spec in nb.plan({"seeds": [7], "rounds": 5}).items()} == {7: 5}
    with pytest.raises(FedlibError, match="mine/table01_tiny: the grid cell fails: lr must be a positive number"):
        nb.plan({"lr": -1.0})


def test_a_plan_needs_its_cells(notebook):
    node = nbformat.read(notebook, as_version=4)
    del node.cells[2]
    nbformat.write(node, notebook)
    with pytest.raises(FedlibError, match="needs one cell tagged 'grid'; it has 0"):
        Notebook(notebook).plan()


BROKEN = {
    "nothing": b"",
    "no JSON": b"{",
    "binary": bytes(range(256)),
    "a list": b"[]",
    "null": b"null",
    "a later format": b'{"cells": [], "metadata": {}, "nbformat": 99, "nbformat_minor": 0}',
    "odd cells": b'{"cells": [1], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
    "a deep one": b"[" * 100_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=list(BROKEN))
def test_what_is_no_notebook_is_named_in_one_sentence(notebook, content):
    notebook.write_bytes(content)
    for use in (lambda nb: nb.plan(), lambda nb: nb.defaults, lambda nb: nb.claims, lambda nb: nb.title):
        with pytest.raises(FedlibError, match="table01_tiny.ipynb cannot be read as a notebook: .*[.]$"):
            use(Notebook(notebook))


@pytest.mark.parametrize(
    "source, says",
    [
        ("grid = {1: 2}", "the grid holds RunSpecs and Measures; got 2"),
        ("grid = {}", "with these parameters the grid is empty"),
        ("grid = []", "must make a dict named grid"),
        ("import sys; sys.exit(0)", "the grid cell fails: SystemExit: 0"),
        ("1 / 0", "the grid cell fails: ZeroDivisionError"),
        ("grid = (", "the grid cell fails: SyntaxError"),
    ],
)
def test_a_grid_of_anything_else_is_one_sentence(notebook, source, says):
    node = nbformat.read(notebook, as_version=4)
    node.cells[2].source = source
    nbformat.write(node, notebook)
    with pytest.raises(FedlibError, match=f"mine/table01_tiny: .*{says}.*[.]$"):
        Notebook(notebook).plan()


@pytest.mark.parametrize("default", ["list(range(3))", "x", "1 + 1", "[1, x]"])
def test_a_default_that_is_computed_is_one_sentence(notebook, default):
    node = nbformat.read(notebook, as_version=4)
    node.cells[1].source = f"seeds: list = {default}"
    nbformat.write(node, notebook)
    with pytest.raises(FedlibError, match="the default of seeds is .*; write out a number, a text"):
        Notebook(notebook).changes({"seeds": "1"})


def test_executed_notebooks_show_their_claims_and_come_back_clean(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_STORE", str(tmp_path / "runs"))
    source = nbformat.read(notebook, as_version=4)
    bad = write_notebook(notebook.with_name("table02_fails.ipynb"), last="records['nobody']")
    out = tmp_path / "out"
    with pytest.raises(FedlibError) as failure:
        execute_all([(Notebook(notebook), {}), (Notebook(bad), {"seeds": [1]})], 1, out, lambda notebook, path: None)
    # The failure names notebook, cell and error; the other notebook was still made.
    assert "mine/table02_fails failed in cell 7 (\"records['nobody']\") with KeyError: 'nobody'" in str(failure.value)
    assert sorted(p.name for p in out.rglob("*.*")) == ["table01_tiny.ipynb", "table02_fails.failed.ipynb"]

    executed = out / "smoke" / "mine" / "table01_tiny.ipynb"
    [claim] = Notebook(executed).claims
    assert (claim["id"], claim["seeds"], claim["scale"]) == ("mine.table1.C1", [1, 2, 3], "smoke")
    assert claim["verdict"] == "reproduced" and claim["effect"] > 0

    update(Notebook(notebook), executed)
    text, node = notebook.read_text(), nbformat.read(notebook, as_version=4)
    assert [(c.id, c.source) for c in node.cells[1:]] == [(c.id, c.source) for c in source.cells[1:]]
    assert node.cells[0].source == "# Three runs\n\n> three seeds\n\nOn digits.", "what the page stands on"
    assert "papermill" not in text and "timestamp" not in text and str(tmp_path) not in text
    assert [c.execution_count for c in node.cells if c.cell_type == "code"] == [1, 2, 3, 4, 5, 6]
    stream, result = node.cells[5].outputs
    assert stream.text == "first\nsecond\n" and result.execution_count == 5
    update(Notebook(notebook), notebook)
    assert notebook.read_text() == text, "cleaning twice changes nothing"
    assert [p.name for p in notebook.parent.iterdir() if p.suffix != ".ipynb"] == []


def test_cleaning_removes_the_injected_cell(notebook):
    node = nbformat.read(notebook, as_version=4)
    cell = nbformat.v4.new_code_cell("rounds = 9", metadata={"tags": ["injected-parameters"]})
    node.cells.insert(2, cell)
    assert "rounds = 9" not in [c.source for c in cleaned(node).cells]


def test_durations_read_well():
    assert [workbook.duration(s) for s in (4.4, 89, 600, 5400, 36000)] == ["4 s", "89 s", "10 min", "1.5 h", "10.0 h"]


@pytest.mark.parametrize("nb", COMMITTED, ids=lambda nb: nb.name)
def test_committed_notebooks_are_executed_and_clean(nb):
    """nbval skips cells that were never executed, so an empty notebook would pass unchecked."""
    node = nbformat.read(nb.path, as_version=4)
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert shown(nb.node, MIME), "no claims are shown"
    assert json.loads(nb.path.read_text()) == json.loads(nbformat.writes(cleaned(node)))
    assert nb.defaults["scale"] == "laptop"


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("nb", COMMITTED, ids=lambda nb: nb.name)
def test_every_notebook_has_a_plan_at_every_scale(nb, scale):
    specs = nb.plan(nb.changes({"scale": scale}))
    assert specs
    if scale == "laptop":  # at other scales settings may fall together; here only panels may show the same run
        assert len({(key[0], spec.id) for key, spec in specs.items()}) == len(specs)
