"""Intervals, tests and choices that few seeds allow."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.spatial.distance import pdist

from fedlib.workbook.statistics import best_on_other_seeds, detectable_effect, interval, mantel, nemenyi, paired


def frame(rows):
    return pd.DataFrame(rows, columns=["cell", "method", "seed", "x"]).set_index(["cell", "method", "seed"])["x"]


def test_interval_is_the_t_interval():
    mean, low, high = interval([1.0, 2.0, 4.5])
    expected = stats.t.interval(0.95, 2, loc=2.5, scale=stats.sem([1.0, 2.0, 4.5]))
    assert mean == 2.5
    assert (low, high) == pytest.approx(expected)


def test_detectable_effect_has_the_power_it_claims():
    values = [0.2, -0.4, 0.5]
    effect, spread = detectable_effect(values), np.std(values, ddof=1)
    draws = np.random.default_rng(0).normal(effect, spread, (20_000, 3))
    half = stats.t.ppf(0.975, 2) * draws.std(axis=1, ddof=1) / math.sqrt(3)
    assert np.mean(draws.mean(axis=1) - half > 0) == pytest.approx(0.8, abs=0.01)


def test_pairs_are_formed_within_a_cell_and_a_seed():
    rows = [("a", "m", 1, 5.0), ("a", "base", 1, 3.0), ("b", "m", 1, 9.0), ("b", "base", 1, 8.0)]
    rows += [("a", "m", 2, 4.0), ("a", "base", 2, 5.0), ("b", "m", 2, 1.0)]  # b/base/2 was not run
    assert paired(frame(rows), "m", "base").to_dict() == {("a", 1): 2.0, ("a", 2): -1.0, ("b", 1): 1.0}
    assert paired(frame(rows), "m", "base", lower_is_better=True)["a"].tolist() == [-2.0, 1.0]
    assert paired(frame(rows), "m", "absent").empty
    assert paired(frame(rows[:0]), "m", "base").empty


def test_a_run_that_diverged_is_unmeasured_and_one_that_was_not_run_is_left_out():
    rows = [("a", "m", 1, 5.0), ("a", "base", 1, math.nan), ("b", "m", 1, 9.0)]
    (value,) = paired(frame(rows), "m", "base")
    assert math.isnan(value)


def test_the_base_to_beat_is_the_best_of_the_other_seeds():
    """Each seed's own best would be so partly by chance: with equally good bases it would refuse what is true."""
    rows = [("a", "m", s, 5.0) for s in (1, 2, 3)]
    rows += [("a", "b", s, x) for s, x in zip((1, 2, 3), (9.0, 3.0, 3.0), strict=True)]
    rows += [("a", "c", s, 4.0) for s in (1, 2, 3)]
    # Seed 1: the others prefer c (4 against 3). Seeds 2 and 3: b has (9 + 3) / 2, so b.
    assert paired(frame(rows), "m", ["b", "c"]).tolist() == [1.0, 2.0, 2.0]
    assert paired(frame(rows), ["b", "c"], "m").tolist() == [-1.0, -2.0, -2.0], "of ours too"


def test_never_reached_counts_one_past_the_end_only_against_a_run_that_did():
    never = math.nan
    rows = [("a", "m", 1, 10.0), ("a", "base", 1, never), ("b", "m", 1, never), ("b", "base", 1, never)]
    rows += [("a", "m", 2, 30.0), ("a", "base", 2, 20.0), ("b", "m", 2, never), ("b", "base", 2, 40.0)]
    found = paired(frame(rows), "m", "base", lower_is_better=True, censor=101)
    assert found["a"].tolist() == [91.0, -10.0] and found["b"][2] == -61.0 and math.isnan(found["b"][1])


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
    assert best_on_other_seeds(wide).tolist() == [1.0, 0.0, 0.0]
    assert best_on_other_seeds(wide.iloc[:1]).isna().all(), "one seed cannot choose for itself"
    two = pd.concat([wide, wide.rename(index={"iid": "uneven"}).assign(a=-1.0)])
    assert best_on_other_seeds(two)["uneven"].tolist() == [1.0, 2.0, 3.0], "each cell chooses for itself"
    diverged = wide.assign(b=[1.0, np.nan, 3.0])
    assert best_on_other_seeds(diverged).isna().tolist() == [False, False, False]
    assert best_on_other_seeds(diverged.assign(a=-1.0)).isna().tolist() == [False, True, False], (
        "not replaced by another"
    )


def test_choosing_elsewhere_finds_nothing_in_noise():
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([range(200), [1, 2, 3]], names=["data", "seed"])
    noise = pd.DataFrame(rng.normal(size=(600, 5)), index=index)
    assert abs(best_on_other_seeds(noise).mean()) < 0.1 < noise.max(axis=1).mean()


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
