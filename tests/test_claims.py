"""A verdict follows from paired differences alone, and says what it could not decide."""

import math

import numpy as np
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from scipy import stats
from scipy.spatial.distance import pdist

from fedlib.workbook import claims as claims_module
from fedlib.workbook.claims import (
    MIME,
    best_elsewhere,
    compare,
    detectable_effect,
    interval,
    mantel,
    margin,
    nemenyi,
    paired,
    show_claims,
)


def verdict(effects, **kw):
    return compare("p.table1.C1", "A beats B.", effects, **kw).verdict


def by_seed(*means):
    return {seed: [mean] for seed, mean in enumerate(means, 1)}


def frame(rows):
    return pd.DataFrame(rows, columns=["cell", "method", "seed", "x"]).set_index(["cell", "method", "seed"])


def test_interval_is_the_t_interval():
    mean, low, high = interval([1.0, 2.0, 4.5])
    expected = stats.t.interval(0.95, 2, loc=2.5, scale=stats.sem([1.0, 2.0, 4.5]))
    assert mean == 2.5
    assert (low, high) == pytest.approx(expected)


def test_the_four_verdicts():
    assert verdict(by_seed(1.0, 1.1, 0.9)) == "reproduced"
    assert verdict(by_seed(-1.0, -1.1, -0.9)) == "not reproduced"
    assert verdict(by_seed(1.0, -1.1, 0.3)) == "undecided"
    assert verdict({}) == "not run"


def test_upper_bound_below_half_the_reported_effect():
    around_zero = by_seed(0.1, -0.1, 0.02)  # upper bound about 0.26
    assert verdict(around_zero) == "undecided"
    assert verdict(around_zero, reported=0.5) == "undecided"
    assert verdict(around_zero, reported=0.6) == "not reproduced"


def test_small_but_certain_effect_is_reproduced_and_said_to_be_small():
    claim = compare("p.table1.C1", "A beats B.", by_seed(0.10, 0.11, 0.12), reported=4)
    assert claim.verdict == "reproduced" and "less than half" in claim.note


def test_one_seed_decides_nothing():
    claim = compare("p.table1.C1", "A beats B.", {1: [5.0, 5.0, 5.0, 5.1]})
    assert (claim.verdict, claim.low, claim.detectable, claim.seeds) == ("undecided", None, None, [1])


def test_cells_are_averaged_within_a_seed_before_the_interval():
    # Twenty cells that agree within a seed are still only two independent values.
    claim = compare("p.table1.C1", "A beats B.", {1: [1.0] * 20, 2: [3.0] * 20})
    assert claim.effect == 2.0
    assert claim.verdict == "undecided"


def test_detectable_effect_has_the_power_it_claims():
    values = [0.2, -0.4, 0.5]
    effect, spread = detectable_effect(values), np.std(values, ddof=1)
    draws = np.random.default_rng(0).normal(effect, spread, (20_000, 3))
    half = stats.t.ppf(0.975, 2) * draws.std(axis=1, ddof=1) / math.sqrt(3)
    assert np.mean(draws.mean(axis=1) - half > 0) == pytest.approx(0.8, abs=0.01)


def test_pairs_are_formed_within_a_cell_and_a_seed():
    rows = [("a", "m", 1, 5.0), ("a", "base", 1, 3.0), ("b", "m", 1, 9.0), ("b", "base", 1, 8.0)]
    rows += [("a", "m", 2, 4.0), ("a", "base", 2, 5.0), ("b", "m", 2, 1.0)]  # b/base/2 was not run
    assert paired(frame(rows), "x", [("m", "base")]) == {1: [2.0, 1.0], 2: [-1.0]}
    assert paired(frame(rows), "x", [("m", "base")], lower_is_better=True) == {1: [-2.0, -1.0], 2: [1.0]}
    assert paired(frame(rows), "x", [("m", "absent")]) == {}


def test_a_method_has_to_beat_every_base_it_is_paired_with():
    rows = [("a", "m", 1, 5.0), ("a", "weak", 1, 1.0), ("a", "strong", 1, 6.0)]
    assert paired(frame(rows), "x", [("m", "weak"), ("m", "strong")]) == {1: [-1.0]}
    assert paired(frame(rows), "x", [("m", "weak"), ("strong", "m")]) == {1: [4.0, 1.0]}, "two methods, two cells"


def test_the_base_to_beat_is_the_best_of_the_other_seeds():
    """Each seed's own best would be so partly by chance: with equally good bases it would refuse what is true."""
    rows = [("a", "m", s, 5.0) for s in (1, 2, 3)]
    rows += [("a", "b", s, x) for s, x in zip((1, 2, 3), (9.0, 3.0, 3.0), strict=True)]
    rows += [("a", "c", s, 4.0) for s in (1, 2, 3)]
    # Seed 1: the others prefer c (4 against 3). Seeds 2 and 3: b has (9 + 3) / 2, so b.
    assert paired(frame(rows), "x", [("m", "b"), ("m", "c")]) == {1: [1.0], 2: [2.0], 3: [2.0]}


def test_where_the_paper_itself_says_otherwise_the_claim_says_so():
    claim = compare("p.table1.C1", "A beats B.", by_seed(1.0, 1.1, 0.9), reported=-0.3)
    assert claim.verdict == "reproduced" and "on the other side" in claim.note


def test_a_difference_worked_out_by_hand_is_sorted_by_seed():
    x = frame([("a", "m", 2, 5.0), ("b", "m", 2, 7.0), ("a", "m", 1, 1.0)])["x"]
    assert claims_module.by_seed(x) == {1: [1.0], 2: [5.0, 7.0]}


def test_never_reached_counts_one_past_the_end_only_against_a_run_that_did():
    never = math.nan
    rows = [("a", "m", 1, 10.0), ("a", "base", 1, never), ("b", "m", 1, never), ("b", "base", 1, never)]
    rows += [("a", "m", 2, 30.0), ("a", "base", 2, 20.0), ("b", "m", 2, never), ("b", "base", 2, 40.0)]
    effects = paired(frame(rows), "x", [("m", "base")], lower_is_better=True, censor=101)
    assert effects[1][0] == 91.0 and math.isnan(effects[1][1])
    assert effects[2] == [-10.0, -61.0]
    claim = compare("p.figure1.C1", "A is sooner.", effects, unit="rounds")
    assert claim.effect == pytest.approx((91.0 - 35.5) / 2)
    assert "1 of 4 comparisons have no value" in claim.note


def test_a_run_too_short_to_reach_a_limit_tells_nothing():
    rows = [("a", "m", 1, 12.0), ("b", "m", 1, math.nan), ("a", "other", 1, 1.0)]
    assert margin(frame(rows), "x", "m", limit=20, end=101) == {1: [8.0, -81.0]}
    short = margin(frame(rows), "x", "m", limit=20, end=4)
    assert short[1][0] == 8.0 and math.isnan(short[1][1])
    assert margin(frame(rows), "x", "absent", limit=20, end=101) == {}


def test_nothing_measured_is_undecided_not_a_crash():
    claim = compare("p.figure1.C1", "A is sooner.", {1: [math.nan], 2: [math.nan]})
    assert (claim.verdict, claim.effect, claim.seeds) == ("undecided", None, [])
    assert "2 of 2 comparisons" in claim.note


def test_display_carries_data_html_and_text():
    claims = [
        compare("p.figure2.C1", "A < B & more.", by_seed(1.0, 1.1, 0.9), reported=2),
        compare("p.figure2.C2", "C.", {}),
    ]
    InteractiveShell.instance()  # without a shell nothing is displayed
    with capture_output() as captured:
        show_claims(claims, "laptop")
    InteractiveShell.clear_instance()
    (output,) = captured.outputs
    first, second = output.data[MIME]
    assert first["id"] == "p.figure2.C1" and first["paper"] == "p" and first["exhibit"] == "figure2"
    assert (first["scale"], first["verdict"], first["effect"], first["seeds"]) == (
        "laptop",
        "reproduced",
        1.0,
        [1, 2, 3],
    )
    assert second["verdict"] == "not run" and second["effect"] is None
    assert {"text", "unit", "low", "high", "reported", "detectable"} <= set(first)
    assert "A &lt; B &amp; more." in output.data["text/html"]
    assert "id=" not in output.data["text/html"]  # nothing random on the page
    assert "p.figure2.C1  ✓ reproduced: A < B & more." in output.data["text/plain"]


def test_mantel_tells_agreement_from_chance():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(12, 2))
    near, far = pdist(points), pdist(rng.normal(size=(12, 2)))
    rho, p = mantel(near, near**3)  # ranks agree
    assert rho == pytest.approx(1) and p <= 0.005
    rho, p = mantel(near, -near)
    assert rho == pytest.approx(-1) and p > 0.5
    assert mantel(near, far)[1] > 0.05


def test_the_best_column_is_chosen_on_other_seeds():
    index = pd.MultiIndex.from_product([["iid"], [1, 2, 3]], names=["data", "seed"])
    wide = pd.DataFrame({"a": [9.0, 0.0, 0.0], "b": [1.0, 2.0, 3.0]}, index=index)
    # Seed 1 by itself would take a (9); the others say b. Seeds 2 and 3 are misled by seed 1's a.
    assert best_elsewhere(wide).tolist() == [1.0, 0.0, 0.0]
    assert best_elsewhere(wide.iloc[:1]).isna().all(), "one seed cannot choose for itself"
    two = pd.concat([wide, wide.rename(index={"iid": "uneven"}).assign(a=-1.0)])
    assert best_elsewhere(two)["uneven"].tolist() == [1.0, 2.0, 3.0], "each cell chooses for itself"
    diverged = wide.assign(b=[1.0, np.nan, 3.0])
    assert best_elsewhere(diverged).isna().tolist() == [False, False, False]
    assert best_elsewhere(diverged.assign(a=-1.0)).isna().tolist() == [False, True, False], "not replaced by another"


def test_choosing_elsewhere_finds_nothing_in_noise():
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([range(200), [1, 2, 3]], names=["data", "seed"])
    noise = pd.DataFrame(rng.normal(size=(600, 5)), index=index)
    assert abs(best_elsewhere(noise).mean()) < 0.1 < noise.max(axis=1).mean()


def test_nemenyi_ranks_and_tells_apart():
    """Ranks by hand; the critical difference by Demsar's printed q of 2.569 for four methods (2006, Table 5a)."""
    scores = pd.DataFrame({"b": [2.0, 5.0, 1.0], "a": [3.0, 5.0, 2.0], "d": [0.0, 0.0, 0.0], "c": [1.0, 1.0, 3.0]})
    ranks, p, difference = nemenyi(scores)
    assert list(ranks.index) == ["a", "b", "c", "d"]
    assert ranks.tolist() == pytest.approx([(1 + 1.5 + 2) / 3, (2 + 1.5 + 3) / 3, (3 + 3 + 1) / 3, 4])
    assert difference == pytest.approx(2.569 * (4 * 5 / (6 * 3)) ** 0.5, abs=2e-3)
    assert p == pytest.approx(stats.friedmanchisquare(*scores.to_numpy().T).pvalue)
    unfinished = scores.assign(e=float("nan"))
    assert list(nemenyi(unfinished)[0].index) == ["a", "b", "c", "d"], "what did not finish has no rank"
