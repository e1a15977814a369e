"""What few seeds can and cannot decide: intervals, tests, the best of several, ranks."""

import math
from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize, stats
from scipy.spatial.distance import squareform


def interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float, float]:
    """Mean and t-interval of independent values; the bounds are NaN for a single value."""
    values = np.asarray(values, float)
    mean = values.mean()
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = stats.t.ppf(0.5 + level / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def fisher_z(correlations: ArrayLike) -> np.ndarray:
    """Correlations on the scale on which they are nearly normal; exactly ±1 is taken as ±0.9999."""
    return np.arctanh(np.clip(correlations, -0.9999, 0.9999))


def decided_by(values: np.ndarray) -> bool:
    """Whether there is anything to reckon with: two seeds at least, and not all the same."""
    return len(values) > 1 and float(np.ptp(values)) > 1e-9


def p_value(values: np.ndarray, against: float = 0.0) -> float:
    """Two-sided p of the t-test that the mean is ``against``."""
    return float(stats.ttest_1samp(values, against).pvalue)


def detectable_effect(values: np.ndarray, power: float = 0.8) -> float:
    """The true effect whose two-sided 95% t-interval would lie above zero in 80% of repetitions.

    Solved on the noncentral t distribution for as many seeds as ``values`` and their observed spread.
    """
    n = len(values)
    bar = stats.t.ppf(0.975, n - 1)
    shift = optimize.brentq(lambda c: stats.nct.sf(bar, n - 1, c) - power, 0, 10 * bar)
    return shift * np.std(values, ddof=1) / math.sqrt(n)


def mantel(a: ArrayLike, b: ArrayLike, permutations: int = 999) -> tuple[float, float]:
    """Do two distance matrices (condensed) agree: Spearman's correlation of their entries, and a one-sided p-value.

    The entries of a matrix are not independent, so the clients of one are permuted (Mantel's test), always alike.
    """
    matrix, rng = squareform(a), np.random.default_rng(0)
    ranks = stats.rankdata(b)
    orders = [np.arange(len(matrix)), *(rng.permutation(len(matrix)) for _ in range(permutations))]
    found = [np.corrcoef(stats.rankdata(squareform(matrix[np.ix_(o, o)])), ranks)[0, 1] for o in orders]
    return found[0], float(np.mean(np.array(found) >= found[0] - 1e-12))


def nemenyi(scores: pd.DataFrame, level: float = 0.05) -> tuple[pd.Series, float, float]:
    """(mean rank of every column, the best first; Friedman's p; how far two mean ranks lie apart to differ).

    Rows are blocks, such as a data set, in which every column is ranked, the largest value first. Two columns whose
    mean ranks differ by less than the critical difference are not told apart (Nemenyi's test; Demsar, 2006).
    """
    scores = scores.dropna(axis=1)
    blocks, columns = scores.shape
    ranks = scores.rank(axis=1, ascending=False).mean().sort_values(kind="stable")
    p = stats.friedmanchisquare(*scores.to_numpy().T).pvalue
    q = stats.studentized_range.ppf(1 - level, columns, np.inf) / math.sqrt(2)
    return ranks, float(p), float(q * math.sqrt(columns * (columns + 1) / (6 * blocks)))


def best_on_other_seeds(wide: pd.DataFrame, place: int = 1) -> pd.Series:
    """Every row's value in the column that is best on the mean of the other seeds of its cell; NaN with one seed.

    ``place`` 2 takes the second best.

    Taking a seed's best column by its own values would find an effect where there is none.
    """
    cell, found = [n for n in wide.index.names if n != "seed"], []
    for key, row in wide.iterrows():
        where = dict(zip(wide.index.names, key if isinstance(key, tuple) else (key,), strict=True))
        others = wide.index.get_level_values("seed") != where["seed"]
        for name in cell:
            others &= wide.index.get_level_values(name) == where[name]
        means = wide[others].mean()
        found.append(row[means.nlargest(place).index[-1]] if means.notna().any() else np.nan)
    return pd.Series(found, index=wide.index, dtype=float)


def paired(
    scores: pd.Series,
    ours: str | Collection[str],
    bases: str | Collection[str],
    lower_is_better: bool = False,
    censor: float | None = None,
) -> pd.Series:
    """``ours`` minus the best of ``bases``, by cell and seed; positive where ours is better.

    ``scores`` is indexed by method, seed and whatever else makes a cell; both sides are one method or several, of which
    for every seed that one counts which is best on the other seeds of its cell; cells that lack a method are left out.
    NaN means never reached (or diverged): with ``censor`` one such value of a pair counts as ``censor``.
    """
    sides = [[side] if isinstance(side, str) else list(side) for side in (ours, bases)]
    cell = [name for name in scores.index.names if name != "method"]
    ran = scores.reset_index("method").groupby(cell)["method"].agg(set)  # a run that diverged is there, without a value
    wide = scores.unstack("method", sort=False).reindex(columns=sides[0] + sides[1])
    wide = wide[[set(wide.columns) <= ran[key] for key in wide.index]]
    if wide.empty:
        return pd.Series(index=wide.index, dtype=float)
    if censor is not None:
        wide = wide.fillna(censor).where(wide.notna().any(axis=1))
    sign = -1 if lower_is_better else 1
    first, second = (sign * wide[side] for side in sides)
    choose = lambda side: side.iloc[:, 0] if side.shape[1] == 1 else best_on_other_seeds(side)  # noqa: E731
    return choose(first) - choose(second)
