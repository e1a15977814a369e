"""The scoreboard: gathered from executed notebooks, and current in the README."""

import pytest

from fedlib import report
from fedlib.errors import FedlibError
from fedlib.workbook import ROOT, find

BASE = {
    "paper": "fedlap", "exhibit": "figure1", "scale": "laptop", "id": "fedlap.figure1.C1", "text": "A | is above B.",
    "unit": "points", "effect": -1.25, "low": -2.0, "high": -0.5, "seeds": [1, 2, 3], "reported": 3, "detectable": None,
    "verdict": "not reproduced", "note": "", "notebook": "fedlap/figure01_x",
}  # fmt: skip
OTHER = BASE | {"paper": "mine", "verdict": "undecided", "detectable": 0.5}


def test_claims_are_counted_by_paper_and_listed_once():
    text = report.markdown([BASE, OTHER, OTHER])
    for row in ("| FedLap | 0 | 1 | 0 | 0 |", "| mine | 0 | 0 | 2 | 0 |", "| all | 0 | 1 | 2 | 0 |"):
        assert row in text
    assert report.sentence([BASE, OTHER, OTHER]) == "3 claims: 1 not reproduced, 2 undecided"
    assert text.count("notebooks/fedlap/figure01_x.ipynb") == 3 and r"A \| is above B." in text
    assert "-1.25 points | [-2.00, -0.50] | 1, 2, 3 | reported +3 |" in text
    assert "reported +3; an effect of 0.50 would have shown" in text


def test_the_table_replaces_the_one_before_it_and_nothing_else():
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.replaced(page, "new") == page.replace("old", "new")
    with pytest.raises(FedlibError, match="no place for the scoreboard"):
        report.replaced("a page without markers", "new")


def test_the_readme_has_what_the_committed_notebooks_say():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert page == report.replaced(page, report.markdown(report.gather(find()))), "run: fedlib report --update"
