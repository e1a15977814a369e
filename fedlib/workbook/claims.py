"""A claim is a sentence with a computable verdict that says what it stands on.

Sentences are data: ``papers/<paper>/claims.yaml``. A page computes effects, by cell and seed, positive on the claimed
side; cells are averaged within a seed and tested over seeds, apart for every grade of evidence.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from fedlib.core.errors import FedlibError
from fedlib.core.registry import require_one_of
from fedlib.workbook import statistics
from fedlib.workbook.evidence import GRADES, OWN, PART, REDUCED, STAND_IN, Evidence
from fedlib.workbook.settings import read

KINDS = ("effect", "all", "order", "correlation", "within", "level", "time")
WORDS = {  # what is said of an effect on the claimed side, and on the other
    OWN: ("reproduced", "not reproduced"),
    PART: ("holds so far", "does not hold so far"),
    REDUCED: ("agrees", "disagrees"),
    STAND_IN: ("agrees", "disagrees"),
}
LEVEL = ("matches", "differs")
OPEN, NONE, WEAKER = "open", "no evidence", "weaker"
VERDICTS = tuple(dict.fromkeys([w for pair in (*WORDS.values(), LEVEL) for w in pair] + [OPEN, NONE]))
VERDICTS = (VERDICTS[0], WEAKER, *VERDICTS[1:])
MARKS = dict.fromkeys(VERDICTS, "✗") | dict.fromkeys(
    ("reproduced", WEAKER, "holds so far", "agrees", "matches"), "✓"
) | {OPEN: "?", NONE: "–"}  # fmt: skip
LIMITS = {"points": 100.0}  # no difference of two accuracies is larger


@dataclass(frozen=True)
class Definition:
    """One entry of claims.yaml, whose head explains the fields."""

    id: str
    sentence: str
    where: str
    whose: str = "paper"
    unit: str = "points"
    kind: str = "effect"
    reported: float | None = None
    margin: float | None = None
    trained: bool = True


def definitions(paper: str, exhibit: str | None = None) -> dict[str, Definition]:
    """The claims of a paper by id, such as ``fedlws.table4.C1``, checked; with ``exhibit`` only those of its page."""
    known, found = {f.name for f in fields(Definition)} - {"id"}, {}
    for page, claims in read(paper, "claims.yaml").items():
        for number, entry in claims.items():
            id = f"{paper}.{page}.{number}"
            if unknown := sorted(set(entry) - known):
                raise FedlibError(f"{id} in claims.yaml has {', '.join(unknown)}; allowed: {', '.join(sorted(known))}.")
            if missing := sorted({"sentence", "where"} - set(entry)):
                raise FedlibError(f"{id} in claims.yaml needs {' and '.join(missing)}.")
            claim = Definition(id, **entry)
            require_one_of(f"kind of {id}", claim.kind, KINDS)
            require_one_of(f"whose of {id}", claim.whose, ("paper", "ours"))
            if (claim.margin is None) == (claim.kind in ("within", "level")):
                raise FedlibError(f"{id} in claims.yaml: a margin belongs to the kinds within and level, to no other.")
            if not claim.sentence[:1].isalnum() or not claim.sentence.endswith("."):
                raise FedlibError(f"{id} in claims.yaml: write a whole sentence; got {claim.sentence!r}.")
            if exhibit in (None, page):
                found[id] = claim
    return found


@dataclass(frozen=True)
class Effect:
    """What a page found on a claim: values by cell and seed, positive on the claimed side.

    ``methods`` are those whose runs are compared (None: all of the cell); ``reported`` is the paper's effect, one
    number or one by cell.
    """

    values: pd.Series
    methods: tuple[str, ...] | None = None
    reported: float | pd.Series | None = None
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """What the cells of one grade say."""

    verdict: str = NONE
    effect: float | None = None  # mean over seeds
    low: float | None = None  # 95% interval over seeds; None with fewer than two
    high: float | None = None
    p: float | None = None
    detectable: float | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A sentence, the verdict on it and all that the verdict stands on."""

    id: str
    sentence: str
    where: str
    whose: str
    kind: str
    unit: str
    verdict: str = NONE
    grade: str | None = None  # of the cells that decide: the best that has informative ones
    rounds: str = ""  # such as "60 of 200", where not all were run
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    seeds: list = field(default_factory=list)
    reported: float | None = None
    detectable: float | None = None
    count: str = ""  # such as "17 of 20 cells"
    cells: list = field(default_factory=list)  # that decide
    uninformative: list = field(default_factory=list)  # left out, since their base method has learned too little
    beside: list = field(default_factory=list)  # what lower grades say
    remarks: list = field(default_factory=list)

    @classmethod
    def of(cls, shown: dict) -> "Claim":
        """From what a notebook shows of it, which is more."""
        return cls(**{f.name: shown[f.name] for f in fields(cls)})

    @property
    def number(self) -> str:
        return self.id.split(".")[-1]

    @property
    def stands_on(self) -> str:
        """The grade as a reader sees it."""
        return f"own, {self.rounds} rounds" if self.grade == PART else self.grade or ""


def decide(
    means: ArrayLike, grade: str = OWN, kind: str = "effect", reported: float | None = None,
    margin: float | None = None, unit: str = "points",
) -> Finding:  # fmt: skip
    """The verdict from one value for every seed, positive on the claimed side (design: "Evidence and verdicts").

    One seed, or seeds without any spread, decide nothing. Where the reported effect is below zero the claim is about
    the number: what is on its side counts for it.
    """
    means = np.asarray(means, float)
    if not len(means):
        return Finding()
    forth, back = (statistics.fisher_z, np.tanh) if kind == "correlation" else (lambda v: v, lambda v: v)
    side = -1 if reported is not None and reported < 0 and margin is None else 1
    values = side * forth(means)
    effect, low, high = statistics.interval(values)
    good, bad = LEVEL if kind == "level" else WORDS[grade]
    verdict, p, detectable, remarks = OPEN, None, None, []
    if side < 0:
        remarks.append("the paper's own number is on the other side of its sentence: judged by the number")
    if not statistics.decided_by(values):
        remarks.append("one seed has no interval" if len(means) == 1 else "no spread over the seeds, so no interval")
    elif margin is not None:
        verdict, p = _equivalence(values, margin, good, bad)
    else:
        claimed = abs(float(forth(reported))) if reported is not None else None
        p = statistics.p_value(values)
        if low > 0:
            verdict = WEAKER if grade == OWN and claimed is not None and high < claimed / 2 else good
        elif high < 0:
            verdict = bad
        elif grade == OWN and claimed is not None and high < claimed / 2:
            verdict, p = bad, statistics.p_value(values, claimed / 2)
            remarks.append("half the reported effect is excluded")
        else:
            detectable = statistics.detectable_effect(values)
            if claimed is not None and detectable > claimed:
                remarks.append("underpowered")
            detectable = float(back(detectable))
    if len(means) > 1 and not statistics.decided_by(values):
        low = high = math.nan
    low, high = sorted((side * low, side * high)) if not math.isnan(low) else (low, high)
    effect, low, high = (float(back(v)) for v in (side * effect, low, high))
    if (limit := LIMITS.get(unit)) and max(abs(low), abs(high)) > limit:
        low, high = max(low, -limit), min(high, limit)
        remarks.append(f"the seeds lie between {means.min():+.1f} and {means.max():+.1f}")
    return Finding(verdict, *map(_rounded, (effect, low, high)), _rounded(p, 5), _rounded(detectable), tuple(remarks))


def _equivalence(values: np.ndarray, margin: float, good: str, bad: str) -> tuple[str, float]:
    """Whether the mean is within ``margin`` of zero, by the 95% interval; and the p-value of that."""
    mean, low, high = statistics.interval(values)
    if low > margin or high < -margin:
        return bad, statistics.p_value(values, math.copysign(margin, mean))
    sides = [stats.ttest_1samp(values, m, alternative=a).pvalue for m, a in ((margin, "less"), (-margin, "greater"))]
    return (good if -margin < low and high < margin else OPEN), min(1.0, 2 * float(max(sides)))


def judge(claim: Definition, effect: Effect, evidence: Evidence, name: Callable[[Mapping], str] = str) -> Claim:
    """The verdict on a claim: from the best grade that has informative cells; the others are shown beside it."""
    values = effect.values
    levels = [n for n in values.index.names if n != "seed"]
    grades: dict[str, list] = {}
    left_out = []
    for key, part in values.groupby(levels, sort=False) if levels else [((), values)]:
        cell = dict(zip(levels, key, strict=True))
        if not claim.trained or evidence.informative(cell):
            grades.setdefault(evidence.of(cell, effect.methods).kind, []).append((cell, part))
        else:
            left_out.append(name(cell))
    found = [_finding(claim, effect, g, grades[g]) for g in GRADES if g in grades]
    measured = [f for f in found if f["verdict"] != NONE] or found[:1]
    best = measured[0] if measured else {"reported": _mean_reported(claim, effect, [])}
    cells = [cell for cell, _ in grades.get(best.get("grade"), [])]
    rounds = evidence.rounds(cells, effect.methods) if best.get("grade") == PART else ""
    remarks = [*best.pop("remarks", []), *filter(None, [effect.note])]
    return Claim(
        *(getattr(claim, n) for n in ("id", "sentence", "where", "whose", "kind", "unit")), **best, rounds=rounds,
        cells=[name(cell) for cell in cells if cell], uninformative=left_out, beside=measured[1:], remarks=remarks,
    )  # fmt: skip


def _finding(claim: Definition, effect: Effect, grade: str, cells: list) -> dict:
    values = pd.concat([part for _, part in cells])
    reported = _mean_reported(claim, effect, [cell for cell, _ in cells])
    scale = statistics.fisher_z if claim.kind == "correlation" else (lambda v: v)
    means = scale(values.dropna()).groupby("seed").mean()
    means = np.tanh(means) if claim.kind == "correlation" else means
    found = asdict(decide(means, grade, claim.kind, reported, claim.margin, claim.unit))
    remarks = list(found.pop("remarks"))
    if (missing := int(values.isna().sum())) and len(values) > missing:
        remarks.append(f"{missing} of {len(values)} comparisons have no value")
    count = ""
    if claim.kind == "all":
        each = [part.mean() for _, part in cells if part.notna().any()]
        count = f"{sum(v > 0 for v in each)} of {len(each)} cells"
    seeds = [int(seed) for seed in means.index]
    return found | {"grade": grade, "reported": reported, "seeds": seeds, "count": count, "remarks": remarks}


def _mean_reported(claim: Definition, effect: Effect, cells: list[dict]) -> float | None:
    """The paper's effect in these cells; where it has none of them, in all of its own."""
    found = claim.reported if effect.reported is None else effect.reported
    if isinstance(found, pd.Series):
        keys = [tuple(cell.values()) for cell in cells]
        here = found[[key in keys for key in found.index]]
        found = (here if len(here) else found).mean()
    return _rounded(found)


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None or math.isnan(value) else round(float(value), digits) + 0.0  # + 0.0: no -0.0


def adjusted(claims: list[dict]) -> list[dict]:
    """The claims with p-values adjusted within paper and grade (Benjamini-Hochberg); ``dagger`` marks decisions that
    do not survive at 5%."""
    found = [claim | {"adjusted_p": None, "dagger": False} for claim in claims]
    families: dict = {}
    for claim in found:
        if claim["p"] is not None:
            families.setdefault((claim["paper"], claim["grade"]), []).append(claim)
    for family in families.values():
        for claim, p in zip(family, stats.false_discovery_control([c["p"] for c in family]), strict=True):
            claim |= {"adjusted_p": round(float(p), 5), "dagger": bool(p > 0.05 and claim["verdict"] != OPEN)}
    return found
