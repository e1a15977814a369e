"""A page: its grid at any scale, the paper's cells beside ours, effects by cell and seed, claims one to one."""

import nbformat
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.workbook import HEADLINE, MIME, settings
from fedlib.workbook.first_cell import TRANSFER, headed, renew
from fedlib.workbook.page import Page

METHODS = {"fedavg": "fedavg", "fedprox": "fedprox(mu=0.001)", "fedawa": "awa(variant=released)"}


@pytest.fixture(scope="module")
def page():
    page = Page("fedawa.table8", "laptop", [1, 2, 3])
    page.run(page.grid(METHODS) | page.grid({"hundred": "awa"}, only=lambda data, alpha: data == "ag_news"))
    return page


def shown(call, *arguments, **named) -> list:
    InteractiveShell.instance()  # without a shell nothing is displayed
    with capture_output() as captured:
        call(*arguments, **named)
    InteractiveShell.clear_instance()
    return captured.outputs


def test_one_page_makes_the_grid_of_any_scale(page):
    assert {key[0] for key in page.jobs} == {"ag_news", "sogou_c"}
    assert {key[0] for key in page.paper_grid} == {"ag_news", "sogou_news"}
    assert ("ag_news", 0.1, "hundred", 1) in page.jobs and ("sogou_c", 0.5, "hundred", 1) not in page.jobs
    assert ("sogou_news", 0.5, "hundred", 1) in page.paper_grid, "compared with all columns of the paper"


def test_a_varied_setting_is_a_level_of_the_key():
    page = Page("fedlaw.table2", "laptop", [8])
    vary = {"0": {}, "0.001": {"optimizer": "sgd(momentum=0.9, weight_decay=0.001)"}}
    grid = page.grid(["fedavg", "gws"], columns="section4", vary={"level": vary})
    assert page.names == ("data", "alpha", "level", "method", "seed")
    assert grid["fashion_mnist", 1, "0.001", "gws", 8].optimizer == "sgd(momentum=0.9, weight_decay=0.001)"


def test_a_key_that_does_not_fit_the_names_is_refused():
    page = Page("fedlap.figure1", "smoke", [1])
    grid = page.grid_from(lambda scale: {("mnist", 1): RunSpec(**page.setting("mnist", scale))})
    with pytest.raises(FedlibError, match="does not fit the names"):
        page.run(grid)


def test_effects_are_by_cell_and_seed_beside_the_papers(page):
    effect = page.over("fedawa", "fedavg", data="ag_news")
    assert effect.values.index.names == ["data", "alpha", "seed"] and len(effect.values) == 6
    scores = page.scores["last 10"]
    by_hand = scores["ag_news", 0.5, "fedawa", 2] - scores["ag_news", 0.5, "fedavg", 2]
    assert effect.values["ag_news", 0.5, 2] == pytest.approx(by_hand)
    assert effect.reported["ag_news", 0.5] == pytest.approx(
        page.reported["ag_news", 0.5, "fedawa"] - page.reported["ag_news", 0.5, "fedavg"]
    )
    assert effect.methods == ("fedawa", "fedavg")
    assert page.over("fedawa", "fedavg", data="nowhere").values.empty, "a column that this scale does not run"
    best = page.best("fedawa", among=["fedavg", "fedprox"])
    assert set(best.methods) == {"fedawa", "fedavg", "fedprox"} and len(best.values) == 9


def test_the_level_is_ours_less_the_papers(page):
    level = page.level("fedavg")
    assert set(level.values.index.get_level_values("data")) == {"ag_news"}, "where the paper has the cell"
    ours = page.scores["last 10"]["ag_news", 0.1, "fedavg", 1]
    assert level.values["ag_news", 0.1, 1] == pytest.approx(ours - page.reported["ag_news", 0.1, "fedavg"])


def test_a_shown_frame_calls_panels_and_methods_what_the_page_calls_them(page):
    means = page.scores.loc[["ag_news"], ["last 10"]].groupby(["data", "method"], sort=False).mean()
    named = page.named(means)
    assert list(named.columns) == ["data", "method", "last 10"]
    assert set(named["data"]) == {"AG News"} and "FedAvg" in set(named["method"])
    assert page.named(named[["last 10"]]).columns.tolist() == ["last 10"], "a plain index is not made a column"


def test_one_table_has_ours_beside_the_papers_and_marks_the_best(page):
    table, rest = shown(page.table)[-2:]
    html = table.data["text/html"]
    assert html.count("<table>") == 1 and 'colspan="2"' in html and "text-align:right" in html
    assert f'<td style="text-align:right">{page.reported["ag_news", 0.5, "fedavg"]:.2f}</td>' in html
    assert html.count("<b>") >= 3 and "id=" not in html
    assert rest.data["text/html"].startswith("<details><summary>Reported in the paper, not run here")
    assert html.count(">reported<") == 2, "SogouC mini is not the paper's: no column of dashes"


def test_runs_that_grow_have_a_table_of_their_own_and_count_in_no_average():
    page = Page("fedlws.table1", "laptop", [1, 2, 3])
    small = page.grid({"fedavg": "fedavg"})
    own = page.grid_from(
        lambda scale: settings.begun("fedlws", "fashion_mnist", scale, page.seeds, {"fedavg": "fedavg"})
    )
    page.run(small | own)
    tables = [html for out in shown(page.table) if (html := out.data.get("text/html", "")).count("<table>")]
    first, second = (html for html in tables if not html.startswith("<details>"))
    assert "Average" in first and "fashion_mnist_own" not in first
    assert (
        settings.GROWING.replace("'", "&#x27;") in second and "fashion_mnist_own" in second and "Average" not in second
    )


def test_a_figure_says_in_words_what_it_shows(page):
    figure, caption, numbers = shown(page.gains, over="fedavg")
    assert figure.metadata["image/png"]["alt"] == caption.data["text/plain"]
    assert "diamonds what the paper reports" in caption.data["text/plain"]
    assert numbers.data["text/html"].startswith("<details>")


def test_claims_and_effects_match_one_to_one():
    page = Page("fedlws.table4", "laptop", [1, 2])
    layer, model = "fedavg+lws", "model"
    page.run(page.grid({"fedavg": "fedavg", model: "lws(beta=0.1, granularity=model)", layer: "lws(beta=0.1)"}))
    found = {}
    for letter, where in {"": {}, "a": {"alpha": 100}, "b": {"alpha": 0.1}}.items():
        pairs = {"C1": (model, "fedavg"), "C2": (layer, model), "C3": (layer, "fedavg")}
        found |= {number + letter: page.over(*pair, **where) for number, pair in pairs.items()}
    with pytest.raises(FedlibError, match="fedlws.table4.C3b has no effect on this page"):
        page.claims({number: effect for number, effect in found.items() if number != "C3b"})
    with pytest.raises(FedlibError, match="fedlws.table4.C9 is not in claims.yaml"):
        page.claims(found, C9=found["C1"])
    (output,) = shown(page.claims, found)
    first = output.data[MIME][0]
    assert (first["id"], first["grade"], first["whose"]) == ("fedlws.table4.C1", "stand-in", "paper")
    assert first["cells"] == ["FashionMNIST, alpha 100", "FashionMNIST, alpha 0.1"]
    assert "(stand-in) · FedAvg " in output.data[HEADLINE] and "% here, " in output.data[HEADLINE]
    assert output.data[HEADLINE].endswith("chance 10% · seeds 1, 2 · 60 of 200 rounds")


def test_smoke_computes_and_announces_nothing(capsys):
    page = Page("fedlap.figure1", "smoke", [1, 2])
    page.names, page._builders = ("panel", "method", "seed"), [lambda scale: {}]
    nothing = pd.Series(index=pd.MultiIndex.from_tuples([], names=["panel", "seed"]), dtype=float)
    page.claims({f"C{n}": nothing for n in range(1, 8)})
    assert capsys.readouterr().out == "smoke scale: no verdicts\n"


def test_the_headline_takes_the_place_of_the_one_before_it():
    cell = "# Title\n\nCitation.\n\n**What it says.** Much."
    once = headed(cell, "2 agree")
    assert once == "# Title\n\n> 2 agree\n\nCitation.\n\n**What it says.** Much."
    assert headed(once, "3 agree") == once.replace("2 agree", "3 agree") and headed(cell, "") == cell


@pytest.mark.parametrize(
    ("grade", "link"), [("own", ""), ("reduced", f" · {TRANSFER}"), ("stand-in", f" · {TRANSFER}")]
)
def test_a_page_on_small_runs_leads_to_whether_they_transfer_without_being_executed(tmp_path, grade, link):
    data = {MIME: [{"grade": None}, {"grade": grade}], HEADLINE: "2 open"}
    output = nbformat.v4.new_output("display_data", data)
    cells = [nbformat.v4.new_markdown_cell("# Title\n\nText."), nbformat.v4.new_code_cell("1", outputs=[output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path := tmp_path / "page.ipynb")
    assert renew(path) and not renew(path), "the second time there is nothing to do"
    node = nbformat.read(path, as_version=4)
    assert node.cells[0].source == f"# Title\n\n> 2 open{link}\n\nText." and node.cells[1].outputs == [output]
