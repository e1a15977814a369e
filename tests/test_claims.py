"""A verdict says no more than its evidence: the design's table, with numbers that once were judged wrongly."""

import numpy as np
import pandas as pd
import pytest

from fedlib.core.errors import FedlibError
from fedlib.workbook import claims as module
from fedlib.workbook.claims import WORDS, Claim, Definition, Effect, adjusted, decide, definitions, judge
from fedlib.workbook.evidence import OWN, PART, REDUCED, STAND_IN, Grade
from fedlib.workbook.first_cell import linked
from fedlib.workbook.notebooks import find
from fedlib.workbook.settings import PAPERS
from fedlib.workbook.tables import claims_html, claims_plain, mean_text, verdict_text

BELOW = (REDUCED, STAND_IN)


def seeds(mean: float, half: float, count: int = 3) -> list[float]:
    """Values whose mean and 95% t-interval are these."""
    from scipy import stats

    steps = np.linspace(-1, 1, count)
    spread = half * np.sqrt(count) / (stats.t.ppf(0.975, count - 1) * steps.std(ddof=1))
    return list(mean + spread * steps)


def test_seeds_have_the_interval_they_are_made_for():
    found = decide(seeds(-0.78, 0.76))
    assert (found.effect, found.low, found.high) == (-0.78, -1.54, -0.02)


@pytest.mark.parametrize("grade", WORDS)
def test_the_table_of_verdicts(grade):
    good, bad = WORDS[grade]
    assert decide(seeds(1, 0.5), grade).verdict == good
    assert decide(seeds(-1, 0.5), grade).verdict == bad
    assert decide(seeds(0.2, 0.5), grade).verdict == "open"
    assert decide([], grade).verdict == "no evidence"


@pytest.mark.parametrize("grade", (PART, *BELOW))
def test_only_the_papers_own_setting_to_its_end_reproduces_or_does_not(grade):
    for effect in (1, -1, 0.2):
        for reported in (None, 5.0):
            assert "reproduced" not in decide(seeds(effect, 0.5), grade, reported=reported).verdict


def test_half_the_reported_effect_decides_at_own_only():
    around_zero = seeds(0.01, 0.25)
    assert decide(around_zero, OWN, reported=0.5).verdict == "open"
    found = decide(around_zero, OWN, reported=0.6)
    assert (found.verdict, found.remarks) == ("not reproduced", ("half the reported effect is excluded",))
    assert found.p < 0.05, "against half of it, not against zero"
    for grade in (PART, *BELOW):
        assert decide(around_zero, grade, reported=0.6).verdict == "open"


def test_a_certain_but_small_effect_is_weaker():
    tiny = seeds(0.035, 0.034)  # under one test image: +0.04 [0.00, 0.07]
    assert decide(tiny, OWN, reported=0.665).verdict == "weaker"
    assert decide(tiny, STAND_IN, reported=0.665).verdict == "agrees"
    assert decide(tiny, OWN).verdict == "reproduced", "no reported effect to be weaker than"


def test_where_the_papers_number_contradicts_its_sentence_the_claim_is_about_the_number():
    same = decide(seeds(-0.78, 0.76), OWN, reported=-0.78)  # FedLAW Table 3, C5b
    assert (same.verdict, same.effect, same.low, same.high) == ("reproduced", -0.78, -1.54, -0.02)
    assert "judged by the number" in same.remarks[0]
    other = decide(seeds(1.94, 0.9), OWN, reported=-0.58)  # C5g
    assert (other.verdict, other.effect) == ("not reproduced", 1.94)


def test_one_seed_and_ties_decide_nothing():
    one, tie = decide([5.0]), decide([-0.56, -0.56, -0.56])  # a tie on 355 images
    assert (one.verdict, one.low, one.p, one.remarks) == ("open", None, None, ("one seed has no interval",))
    assert (tie.verdict, tie.effect, tie.low, tie.p) == ("open", -0.56, None, None)
    assert decide([0.0, 0.0], margin=1.0, kind="within").verdict == "open"


def test_no_interval_beyond_the_possible():
    bimodal = decide([0.1, 68.0, 35.4])  # was [-42, 111]
    assert bimodal.verdict == "open" and -100 <= bimodal.low and bimodal.high <= 100
    wide = decide([99.0, 60.0, -20.0])
    assert wide.high == 100 and "the seeds lie between -20.0 and +99.0" in wide.remarks
    r = decide([0.99, 0.97, 0.6], kind="correlation", unit="correlation")
    assert -1 <= r.low < r.effect < r.high <= 1
    assert decide([1.0, 1.0, 0.98], kind="correlation").high <= 1, "exactly one has no Fisher z"
    assert mean_text([10.0, 79.9, 79.6], limits=(0, 100)) == "56.5 (10.0 to 79.9)"  # was 56.5 ± 98.2
    assert mean_text([80.0, 81.0, 82.0], limits=(0, 100)) == "81.0 ± 2.5"


def test_underpowered_is_said_where_the_reported_effect_could_not_have_shown():
    found = decide(seeds(0.3, 1.5), STAND_IN, reported=1.0)
    assert found.verdict == "open" and found.detectable > 1 and "underpowered" in found.remarks
    assert "underpowered" not in decide(seeds(0.3, 1.5), STAND_IN, reported=5.0).remarks


def test_within_a_margin_is_a_test_of_equivalence():
    words = {"level": ("matches", "differs"), "within": ("reproduced", "not reproduced")}
    for kind, (same, other) in words.items():
        assert decide(seeds(-0.4, 0.3), margin=1.0, kind=kind).verdict == same
        assert decide(seeds(-1.6, 0.3), margin=1.0, kind=kind).verdict == other
        assert decide(seeds(-0.9, 0.3), margin=1.0, kind=kind).verdict == "open"
    assert decide(seeds(-0.4, 0.3), margin=1.0, kind="level").p < 0.05
    assert decide(seeds(-0.4, 0.3), STAND_IN, margin=1.0, kind="within").verdict == "agrees"


class Told:
    """Evidence by table: the grade and what was learned of every value of the level ``data``."""

    def __init__(self, **cells):
        self.cells = cells

    def of(self, cell, methods):
        return Grade(self.cells[cell["data"]][0], 60, 200)

    def informative(self, cell):
        return self.cells[cell["data"]][1]

    def rounds(self, cells, methods):
        return "60 of 200"


def effect(**cells) -> pd.Series:
    rows = {(data, seed): value for data, values in cells.items() for seed, value in enumerate(values, 1)}
    return pd.Series(rows).rename_axis(["data", "seed"])


CLAIM = Definition("p.table1.C1", "A beats B.", "Table 1")


def judged(values, evidence, claim=CLAIM, **kw) -> Claim:
    return judge(claim, Effect(values, **kw), evidence, lambda cell: cell["data"])


def test_the_best_grade_decides_and_lower_ones_stand_beside_it():
    values = effect(a=seeds(-1, 0.5), b=seeds(3, 0.5), c=seeds(4, 0.5))
    claim = judged(values, Told(a=(OWN, True), b=(REDUCED, True), c=(STAND_IN, True)))
    assert (claim.verdict, claim.grade, claim.cells, claim.effect) == ("not reproduced", OWN, ["a"], -1)
    assert [(f["grade"], f["verdict"], f["effect"]) for f in claim.beside] == [
        (REDUCED, "agrees", 3),
        (STAND_IN, "agrees", 4),
    ]


def test_a_cell_near_chance_counts_in_no_verdict_and_is_listed():
    values = effect(a=seeds(-15.5, 2), b=seeds(3, 0.5))
    claim = judged(values, Told(a=(OWN, False), b=(STAND_IN, True)))
    assert (claim.verdict, claim.grade, claim.uninformative) == ("agrees", STAND_IN, ["a"])
    nothing = judged(effect(a=seeds(-15.5, 2)), Told(a=(OWN, False)))
    assert (nothing.verdict, nothing.effect, nothing.uninformative) == ("no evidence", None, ["a"])
    first_round = Definition("p.table1.C1", "The factor is below one.", "Table 1", trained=False)
    assert judged(effect(a=seeds(-15.5, 2)), Told(a=(OWN, False)), first_round).verdict == "not reproduced"


def test_cells_are_averaged_within_a_seed_before_the_interval():
    # Twenty cells that agree within a seed are still only two independent values.
    values = effect(**{f"c{n}": [1.0, 3.0] for n in range(20)})
    claim = judged(values, Told(**{f"c{n}": (STAND_IN, True) for n in range(20)}))
    assert (claim.effect, claim.verdict, claim.seeds) == (2.0, "open", [1, 2])


def test_first_rounds_say_how_many():
    claim = judged(effect(a=seeds(1, 0.5)), Told(a=(PART, True)))
    assert verdict_text(claim) == "✓ holds so far (own, 60 of 200 rounds)"


def test_what_the_paper_says_of_every_cell_is_counted():
    every = Definition("p.table1.C1", "A beats B in every column.", "Table 1", kind="all")
    values = effect(a=seeds(1, 0.5), b=seeds(2, 0.5), c=seeds(-1, 0.5))
    assert judged(values, Told(**dict.fromkeys("abc", (REDUCED, True))), every).count == "2 of 3 cells"


def test_the_reported_effect_is_that_of_the_cells_that_decide():
    values = effect(a=seeds(1, 0.5), b=seeds(3, 0.5))
    theirs = pd.Series({("a",): 2.0, ("b",): 8.0, ("elsewhere",): 5.0})
    told = Told(a=(OWN, True), b=(STAND_IN, True))
    assert judged(values, told, reported=theirs).reported == 2.0
    assert judged(effect(b=seeds(3, 0.5)), told, reported=theirs[2:]).reported == 5.0, "its own columns, else"
    assert judged(values, told, Definition("p.table1.C1", "A.", "Table 1", reported=4.0)).reported == 4.0


def test_unmeasured_comparisons_are_said():
    claim = judged(effect(a=[1.0, 1.1, 0.9], b=[2.0, np.nan, 2.1]), Told(a=(REDUCED, True), b=(REDUCED, True)))
    assert "1 of 6 comparisons have no value" in claim.remarks
    nothing = judged(effect(a=[np.nan, np.nan]), Told(a=(REDUCED, True)))
    assert nothing.verdict == "no evidence"
    assert judged(effect(a=[1.0])[:0], Told()).verdict == "no evidence", "a column that this scale does not run"


def test_decisions_that_do_not_survive_carry_a_dagger_within_paper_and_grade():
    row = {"paper": "p", "grade": OWN, "verdict": "reproduced"}
    claims = [row | {"p": p} for p in (0.001, 0.04, 0.3, 0.6)] + [row | {"p": 0.04, "grade": STAND_IN}]
    claims += [row | {"p": None}, row | {"p": 0.04, "verdict": "open"}]
    found = adjusted(claims)
    assert [c["dagger"] for c in found] == [False, True, True, True, False, False, False]
    assert found[0]["adjusted_p"] == pytest.approx(0.005) and found[5]["adjusted_p"] is None
    assert found[4]["adjusted_p"] == 0.04, "another grade is another family"


def test_a_page_shows_sentence_grade_and_what_was_left_out():
    claim = judged(effect(a=seeds(1, 0.5), b=[0.1, 0.2]), Told(a=(STAND_IN, True), b=(OWN, False)))
    text, html = claims_plain([claim]), claims_html([claim])
    assert "p.table1.C1  ✓ agrees (stand-in): A beats B." in text
    assert "left out, hardly above chance: b" in text and "+1.00 [+0.50, +1.50] points" in html
    assert "id=" not in html and "reproduced" not in html


# claims.yaml


@pytest.mark.parametrize("path", sorted(PAPERS.glob("*/claims.yaml")), ids=lambda p: p.parent.name)
def test_every_claims_file_is_sound(path):
    assert all("…" not in claim.sentence for claim in definitions(path.parent.name).values())


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"sentence": "A."}, "needs where"),
        ({"sentence": "A.", "where": "Table 1", "text": ""}, "has text; allowed"),
        ({"sentence": "A.", "where": "Table 1", "kind": "guess"}, "Unknown kind"),
        ({"sentence": "A.", "where": "Table 1", "whose": "mine"}, "Unknown whose"),
        ({"sentence": "… at alpha 1.", "where": "Table 1"}, "whole sentence"),
        ({"sentence": "A.", "where": "Table 1", "kind": "level"}, "a margin belongs"),
    ],
)
def test_a_claim_that_is_written_wrongly_is_refused(monkeypatch, entry, message):
    monkeypatch.setattr(module, "read", lambda paper, name: {"table1": {"C1": entry}})
    with pytest.raises(FedlibError, match=message):
        definitions("p")


def test_claims_and_effects_match_one_to_one_over_all_pages():
    shown = [claim["id"] for nb in find() for claim in nb.claims]
    assert len(shown) == len(set(shown)), "a claim is judged once"
    written = {
        id: claim for path in PAPERS.glob("*/claims.yaml") for id, claim in definitions(path.parent.name).items()
    }
    assert set(shown) <= set(written)
    converted = find()
    gathered = [nb.name for nb in converted if not nb.claims]
    assert gathered == ["synthesis/headlines"], "only it shows the claims of other pages and has none of its own"
    done = {(c["paper"], c["exhibit"]) for nb in converted for c in nb.claims}
    judged = {c["id"] for nb in converted for c in nb.claims}
    assert {id for id in written if tuple(id.split(".")[:2]) in done} == judged
    for nb in converted:
        for claim in nb.claims:
            kept = written[claim["id"]]
            assert (claim["sentence"], claim["whose"], claim["kind"]) == (kept.sentence, kept.whose, kept.kind), nb.name


def test_the_first_cell_says_what_the_page_stands_on():
    for nb in find():
        line = next((text for text in nb.node.cells[0].source.splitlines() if text.startswith("> ")), "")
        assert line == f"> {linked(nb.node)}", f"run: fedlib run {nb.name} --update"


def test_no_claim_below_own_is_called_reproduced():
    for claim in (claim for nb in find() for claim in nb.claims):
        assert claim["grade"] == OWN or "reproduced" not in str([claim["verdict"], claim["beside"]])
