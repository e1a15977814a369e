"""Claims as pages had them before they were data; goes with the last page that is not converted."""

import html
import math
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import pandas as pd
from IPython.display import display
from scipy import optimize, stats
from scipy.spatial.distance import squareform

from fedlib.workbook.tables import html_table

MIME = "application/vnd.fedlib.claims+json"
MARKS = {"reproduced": "✓", "not reproduced": "✗", "undecided": "?", "not run": "–"}


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper and what our runs say about it; positive effects are on the claimed side."""

    id: str  # paper.exhibit.C1
    text: str
    unit: str
    effect: float | None  # mean over seeds of the mean paired difference
    low: float | None  # 95% t-interval over seeds; None with fewer than two seeds
    high: float | None
    seeds: list = field(default_factory=list)
    reported: float | None = None
    verdict: str = "not run"
    detectable: float | None = None
    note: str = ""

    @classmethod
    def of(cls, shown: dict) -> "Claim":
        """From what a notebook shows of it, which is more."""
        return cls(**{f.name: shown[f.name] for f in fields(cls)})

    @property
    def number(self) -> str:
        return self.id.split(".")[-1]


def interval(values, level: float = 0.95) -> tuple[float, float, float]:
    """Mean and t-interval of independent values; the bounds are NaN for a single value."""
    values = np.asarray(values, float)
    mean = values.mean()
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = stats.t.ppf(0.5 + level / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def detectable_effect(values, power: float = 0.8) -> float:
    """The true effect whose two-sided 95% t-interval would lie above zero in 80% of repetitions.

    Solved on the noncentral t distribution for as many seeds as ``values`` and their observed spread.
    """
    n = len(values)
    bar = stats.t.ppf(0.975, n - 1)
    shift = optimize.brentq(lambda c: stats.nct.sf(bar, n - 1, c) - power, 0, 10 * bar)
    return shift * np.std(values, ddof=1) / math.sqrt(n)


def mantel(a, b, permutations: int = 999) -> tuple[float, float]:
    """Do two distance matrices (condensed) agree: Spearman's correlation of their entries, and a one-sided p-value.

    The entries of a matrix are not independent, so the clients of one are permuted (Mantel's test), always alike.
    """
    matrix, rng = squareform(a), np.random.default_rng(0)
    ranks = stats.rankdata(b)
    orders = [np.arange(len(matrix)), *(rng.permutation(len(matrix)) for _ in range(permutations))]
    found = [np.corrcoef(stats.rankdata(squareform(matrix[np.ix_(o, o)])), ranks)[0, 1] for o in orders]
    return found[0], float(np.mean(np.array(found) >= found[0] - 1e-12))


def paired(scores: pd.DataFrame, metric: str, pairs, lower_is_better=False, censor: float | None = None) -> dict:
    """Differences ours - base per seed, over all (ours, base) pairs and all cells where both methods ran.

    A method that is paired with several bases has to beat the best of them, for every seed the one that is best on the
    other seeds of its cell (``best_elsewhere``); with one seed the smallest difference counts.
    ``scores`` is indexed by method, seed and whatever else makes a cell. NaN means never reached: with ``censor``
    one such value of a pair counts as ``censor`` (the difference is then a lower bound); a pair without any value,
    or with a missing one where nothing is censored, stays NaN, and ``compare`` counts it as unmeasured.
    """
    methods, effects = set(scores.index.get_level_values("method")), {}
    bases: dict = {}
    for ours, base in pairs:
        if {ours, base} <= methods:
            bases.setdefault(ours, []).append(base)
    for ours, against in bases.items():
        columns = {m: scores[metric].xs(m, level="method") for m in (ours, *against)}
        together = pd.concat(columns, axis=1, join="inner")  # the cells where all of them ran
        gaps = {}
        for base in against:
            both = together[[ours, base]]
            if censor is not None:
                both = both.fillna(censor).where(both.notna().any(axis=1))
            gaps[base] = (both[base] - both[ours]) if lower_is_better else (both[ours] - both[base])
        gaps = pd.DataFrame(gaps)
        several = len(against) > 1 and gaps.index.unique("seed").size > 1
        differences = -best_elsewhere(-gaps) if several else gaps.min(axis=1, skipna=False)
        for seed, values in differences.groupby("seed"):
            effects.setdefault(int(seed), []).extend(values.tolist())
    return effects


def by_seed(values: pd.Series) -> dict:
    """seed -> the values of its cells: any difference computed on an index with a level "seed", ready to compare."""
    return {int(seed): part.tolist() for seed, part in values.groupby("seed")}


def best_elsewhere(wide: pd.DataFrame) -> pd.Series:
    """Every row's value in the column that is best on the mean of the other seeds of its cell; NaN with one seed.

    Taking a seed's best column by its own values would find an effect where there is none.
    """
    cell, found = [n for n in wide.index.names if n != "seed"], []
    for key, row in wide.iterrows():
        where = dict(zip(wide.index.names, key if isinstance(key, tuple) else (key,), strict=True))
        others = wide.index.get_level_values("seed") != where["seed"]
        for name in cell:
            others &= wide.index.get_level_values(name) == where[name]
        means = wide[others].mean()
        found.append(row[means.idxmax()] if means.notna().any() else np.nan)
    return pd.Series(found, index=wide.index)


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


def margin(scores: pd.DataFrame, metric: str, method: str, limit: float, end: float) -> dict:
    """How far below ``limit`` a method stays, per seed and cell; a run that never arrived counts as ``end``.

    Where even ``end`` would be within the limit the run was too short to tell: NaN.
    """
    if method not in scores.index.get_level_values("method"):
        return {}
    values = scores[metric].xs(method, level="method")
    room = limit - (values.fillna(end) if end >= limit else values)
    return by_seed(room)


def compare(id: str, text: str, effects: dict, unit="points", reported: float | None = None, note: str = "") -> Claim:
    """The verdict on ``text`` from ``effects``: seed -> paired differences, positive on the claimed side.

    Cells are averaged within a seed; the 95% t-interval is taken over seeds. ``reproduced``: wholly above zero.
    ``not reproduced``: wholly below zero, or its upper bound below half the ``reported`` effect. Otherwise, and
    always with a single seed, ``undecided``, with the effect that could have been detected.
    """
    if not effects:
        return Claim(id, text, unit, None, None, None, reported=reported, note=note)
    cells = {seed: np.asarray(values, float) for seed, values in sorted(effects.items())}
    unmeasured, total = (int(sum(f(v) for v in cells.values())) for f in (lambda v: np.isnan(v).sum(), len))
    cells = {seed: np.nanmean(v) for seed, v in cells.items() if not np.isnan(v).all()}
    notes = [note, f"{unmeasured} of {total} comparisons have no value" if unmeasured else ""]
    if reported is not None and reported < 0:
        notes.append("the paper's own numbers here are on the other side")
    means, seeds = list(cells.values()), list(cells)
    verdict, detectable = "undecided", None
    effect, low, high = interval(means) if means else (math.nan,) * 3
    if low > 0:
        verdict = "reproduced"
        if reported is not None and high < reported / 2:
            notes.append("less than half the reported effect")
    elif high < 0 or (reported is not None and high < reported / 2):
        verdict = "not reproduced"
    elif len(set(means)) > 1:  # without any spread there is nothing to reckon with
        detectable = detectable_effect(means)
    return Claim(
        id,
        text,
        unit,
        *(_rounded(v) for v in (effect, low, high)),
        seeds,
        reported,
        verdict,
        _rounded(detectable),
        "; ".join(filter(None, notes)),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(float(value), 3) + 0.0  # + 0.0 turns -0.0 into 0.0


def show_claims(claims: list[Claim], scale: str) -> None:
    """Display the claims as data (for the scoreboard), HTML and text."""
    data = []
    for claim in claims:
        paper, exhibit, _ = claim.id.split(".")
        data.append({"paper": paper, "exhibit": exhibit, "scale": scale} | asdict(claim))
    display({MIME: data, "text/html": _html(claims), "text/plain": _plain(claims)}, raw=True)


def cells(claim: Claim) -> tuple[str, str, str, str, str]:
    """Verdict, effect, interval, seeds and remarks as a reader sees them."""
    number = lambda v: "–" if v is None else f"{v:+.2f}"  # noqa: E731
    effect = f"{number(claim.effect)} {claim.unit}" if claim.effect is not None else "–"
    bounds = f"[{number(claim.low)}, {number(claim.high)}]" if claim.low is not None else "–"
    remarks = [f"reported {claim.reported:+g}"] if claim.reported is not None else []
    if claim.detectable is not None:
        remarks.append(f"an effect of {claim.detectable:.2f} would have shown")
    if claim.verdict == "undecided" and len(claim.seeds) == 1:
        remarks.append("one seed has no interval")
    remarks += [claim.note] if claim.note else []
    seeds = ", ".join(map(str, claim.seeds)) or "–"
    return f"{MARKS[claim.verdict]} {claim.verdict}", effect, bounds, seeds, "; ".join(remarks)


def _html(claims: list[Claim]) -> str:
    heads = ("claim", "", "verdict", "effect", "95% interval", "seeds", "remarks")
    rows = [(f"<b>{c.number}</b>", html.escape(c.text), *map(html.escape, cells(c))) for c in claims]
    return html_table(heads, rows)


def _plain(claims: list[Claim]) -> str:
    lines = []
    for claim in claims:
        verdict, effect, bounds, seeds, remarks = cells(claim)
        lines.append(f"{claim.id}  {verdict}: {claim.text}")
        lines.append(f"    effect {effect}, 95% interval {bounds}, seeds {seeds}" + f" ({remarks})" * bool(remarks))
    return "\n".join(lines)
