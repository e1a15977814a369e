"""The scoreboard: gathered from executed notebooks, and current on the pages that show it."""

import pytest

from fedlib.core.errors import FedlibError
from fedlib.workbook.notebooks import find, report

BASE = {
    "paper": "fedlap", "exhibit": "figure1", "scale": "laptop", "id": "fedlap.figure1.C1", "text": "A | is above B.",
    "unit": "points", "effect": -1.25, "low": -2.0, "high": -0.5, "seeds": [1, 2, 3], "reported": 3, "detectable": None,
    "verdict": "not reproduced", "note": "", "notebook": "fedlap/figure01_x",
}  # fmt: skip
OTHER = BASE | {"paper": "mine", "verdict": "undecided", "detectable": 0.5}


def test_claims_are_counted_by_paper_and_listed_once():
    counted, listed = report.summary([BASE, OTHER, OTHER]), report.every([BASE, OTHER, OTHER])
    for row in ("| FedLap | 0 | 1 | 0 | 0 |", "| mine | 0 | 0 | 2 | 0 |", "| all | 0 | 1 | 2 | 0 |"):
        assert row in counted
    assert listed.startswith("3 claims: 1 not reproduced, 2 undecided.\n\n## FedLap\n")
    assert listed.count("(../notebooks/fedlap/figure01_x.ipynb)") == 3 and r"A \| is above B." in listed
    assert listed.index("## FedLap") < listed.index("reported +3 |") < listed.index("## Mine")
    assert "-1.25 points | [-2.00, -0.50] | 1, 2, 3 | reported +3 |" in listed
    assert "reported +3; an effect of 0.50 would have shown" in listed.partition("## Mine")[2]


def test_the_table_replaces_the_one_before_it_and_nothing_else():
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.replaced(page, "new") == page.replace("old", "new")
    with pytest.raises(FedlibError, match="no place for the scoreboard"):
        report.replaced("a page without markers", "new")


@pytest.mark.parametrize("path", report.pages(), ids=lambda path: path.parent.name)
def test_every_page_has_what_the_committed_notebooks_say(path):
    page = path.read_text(encoding="utf-8")
    assert page == report.replaced(page, report.pages()[path]), "run: fedlib report --update"


def test_a_guide_lists_tables_first_and_each_claim_under_its_verdict():
    rows = report.guide(nb for nb in find() if nb.paper == "fedlap").splitlines()
    assert rows[0].startswith("| Exhibit | ✓ reproduced | ✗ not reproduced |") and len(rows) == 2 + 4
    assert rows[2].startswith("| [Figure 1](../../notebooks/fedlap/figure01_no_stragglers.ipynb): test accuracy when")
    lws = report.guide(nb for nb in find() if nb.paper == "fedlws").splitlines()
    assert "[Table 1]" in lws[2] and "[Figure 11]" in lws[-1]
    for claim in report.gather(nb for nb in find() if nb.name == "fedlap/figure02_mnist_stragglers"):
        column = 2 + list(report.MARKS).index(claim["verdict"])
        assert claim["id"].rpartition(".")[2] in rows[3].split(" | ")[column - 1]
