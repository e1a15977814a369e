"""The scoreboard: gathered from executed notebooks, by evidence, and current on the pages that show it."""

from dataclasses import asdict

import pytest

from fedlib.core.errors import FedlibError
from fedlib.workbook import headlines, report
from fedlib.workbook.claims import Claim, adjusted
from fedlib.workbook.evidence import OWN, STAND_IN
from fedlib.workbook.notebooks import find


def claim(number: str, paper="fedlap", verdict="not reproduced", grade=OWN, whose="paper", p=0.001, **more) -> dict:
    known = Claim(f"{paper}.figure1.{number}", "A | is above B.", "Figure 1", whose, "effect", "points", verdict, grade)
    where = {"paper": paper, "exhibit": "figure1", "scale": "laptop", "notebook": "fedlap/figure01_no_stragglers"}
    return where | asdict(known) | {"p": p, "effect": -1.25, "low": -2.0, "high": -0.5, "reported": 3.0} | more


def board() -> list[dict]:
    rows = [claim("C1"), claim("C2", verdict="agrees", grade=STAND_IN, p=0.03)]
    rows += [claim("C3", verdict="open", grade=STAND_IN, p=0.5, detectable=0.5)]
    rows += [claim("C4", verdict="no evidence", grade=None, p=None, effect=None, low=None)]
    return adjusted([*rows, claim("C5", paper="synthesis", verdict="agrees", grade=STAND_IN, whose="ours")])


def test_claims_are_counted_by_paper_grade_and_whose():
    lines = report.summary(board()).splitlines()
    assert "| FedLap | 4 | 1 not reproduced | – | 2 open | 1 |" in lines, "one does not survive the correction"
    assert "| Synthesis | 1 | – | – | 1 agrees | 0 |" in lines
    assert lines.index("| FedLap | 4 | 1 not reproduced | – | 2 open | 1 |") < lines.index(
        "| Our own questions | claims | " + " | ".join(report.STANDS.values()) + " | no evidence |"
    )


def test_counts_with_and_without_the_correction():
    said = report.sentence(board())
    assert said.startswith("4 claims of the papers: 1 not reproduced, 2 open, 1 no evidence (without correction: ")
    assert said.endswith("1 agrees, 1 open, 1 no evidence); 1 questions of our own: 1 agrees")


def test_every_claim_is_listed_with_what_it_stands_on():
    listed = report.every(board())
    assert r"A \| is above B." in listed and listed.index("## FedLap") < listed.index("## Synthesis: our own questions")
    assert "| ✗ not reproduced (own) | -1.25 [-2.00, -0.50] points | +3.00 |" in listed
    assert "| ✓ agrees (stand-in)† |" in listed and "an effect of 0.50 would have shown" in listed


def test_a_guide_marks_every_claim_under_what_it_stands_on():
    [nb] = find(["fedlap/figure01*"])
    row = report.guide([nb], board()).splitlines()[2]
    assert row.startswith("| [Figure 1](../../notebooks/fedlap/figure01_no_stragglers.ipynb): test accuracy when")
    assert row.endswith("| C1 ✗ |  | C2 ✓†, C3 ? | C4 – | C5 ✓ |")
    lws = report.guide((nb for nb in find() if nb.paper == "fedlws"), []).splitlines()
    assert "[Table 1]" in lws[2] and "[Figure 11]" in lws[-4] and "[Appendix D]" in lws[-3], "tables, figures, others"
    whole = report.guide(find(["fedlap/readings"]), []).splitlines()[2]
    assert whole.startswith("| [Readings of the term](../../notebooks/fedlap/readings.ipynb) |"), "a page of no exhibit"


def test_the_table_replaces_the_one_before_it_and_nothing_else():
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.replaced(page, "new") == page.replace("old", "new")
    with pytest.raises(FedlibError, match="no place for the scoreboard"):
        report.replaced("a page without markers", "new")


@pytest.mark.parametrize("path", report.pages(), ids=lambda path: path.parent.name)
def test_every_page_has_what_the_committed_notebooks_say(path):
    page = path.read_text(encoding="utf-8")
    assert page == report.replaced(page, report.pages()[path]), "run: fedlib report --update"


def test_the_first_picture_shows_the_papers_main_claims_as_they_stand():
    drawn = headlines.picture(report.gather(find()))
    assert headlines.PATH.read_text(encoding="utf-8") == drawn, "run: fedlib report --update"
    assert drawn.count("<circle") == 5 and "FedDW" in drawn
