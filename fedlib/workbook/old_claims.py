"""Claims of pages that are not converted yet; goes with the last of them.

Their effects come as seed -> values, most with the cells they are of. Grades are computed from the page's own grid and
its grid at the paper's scale, as everywhere; a cell is known by the parts of its runs' keys that it names.
"""

import dataclasses
import re
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from IPython.display import display

from fedlib.runs.store import default_store
from fedlib.workbook import settings, tables
from fedlib.workbook.claims import MIME, Effect, Finding, decide, definitions, judge
from fedlib.workbook.evidence import LEARNED, STAND_IN, Grade, grade, share_learned
from fedlib.workbook.notebooks import Notebook, find
from fedlib.workbook.statistics import best_on_other_seeds as best_elsewhere
from fedlib.workbook.statistics import interval, mantel, nemenyi  # noqa: F401


class Effects(dict):
    """seed -> values, and the same values with their cells."""

    values_by_cell: pd.Series | None = None


class Compared(NamedTuple):
    """An effect on its way to a verdict."""

    id: str
    effects: Mapping
    reported: float | None
    note: str

    @property
    def finding(self) -> Finding:
        """What the seeds say by themselves, whatever they stand on."""
        means = [np.nanmean(v) for v in self.effects.values() if not np.isnan(np.asarray(v, float)).all()]
        return decide(means, STAND_IN)


def by_seed(values: pd.Series) -> Effects:
    """Any difference computed on an index with a level "seed", ready to compare."""
    found = Effects({int(seed): part.tolist() for seed, part in values.groupby("seed")})
    found.values_by_cell = values
    return found


def paired(scores: pd.DataFrame, metric: str, pairs, lower_is_better=False, censor: float | None = None) -> Effects:
    """Differences ours - base per seed, over all (ours, base) pairs and all cells where both methods ran.

    A method that is paired with several bases has to beat the one that is best on the other seeds of its cell. NaN
    means never reached: with ``censor`` one such value of a pair counts as ``censor``.
    """
    methods, found = set(scores.index.get_level_values("method")), []
    bases: dict = {}
    for ours, base in pairs:
        if {ours, base} <= methods:
            bases.setdefault(ours, []).append(base)
    for ours, against in bases.items():
        columns = {m: scores[metric].xs(m, level="method") for m in (ours, *against)}
        together = pd.concat(columns, axis=1, join="inner")
        gaps = {}
        for base in against:
            both = together[[ours, base]]
            if censor is not None:
                both = both.fillna(censor).where(both.notna().any(axis=1))
            gaps[base] = (both[base] - both[ours]) if lower_is_better else (both[ours] - both[base])
        gaps = pd.DataFrame(gaps)
        several = len(against) > 1 and gaps.index.unique("seed").size > 1
        found.append(-best_elsewhere(-gaps) if several else gaps.min(axis=1, skipna=False))
    return by_seed(pd.concat(found)) if found else Effects()


def margin(scores: pd.DataFrame, metric: str, method: str, limit: float, end: float) -> Effects:
    """How far below ``limit`` a method stays, per seed and cell; a run that never arrived counts as ``end``."""
    if method not in scores.index.get_level_values("method"):
        return Effects()
    values = scores[metric].xs(method, level="method")
    return by_seed(limit - (values.fillna(end) if end >= limit else values))


def compare(id: str, text: str, effects: Mapping, unit="points", reported: float | None = None, note="") -> Compared:
    """Ready for a verdict; the sentence and its unit are those of claims.yaml."""
    return Compared(id, effects, reported, note)


class PageEvidence:
    """What the cells of a page stand on, by the parts of its runs' keys."""

    def __init__(self, notebook: Notebook, paper: str, exhibit: str, scale: str):
        self.jobs = notebook.plan({"scale": scale} if "scale" in notebook.defaults else {})
        own = list((notebook.plan({"scale": "paper"}) if "scale" in notebook.defaults else self.jobs).values())
        self.theirs = list(
            {repr(dataclasses.replace(job, seed=0) if hasattr(job, "seed") else job): job for job in own}.values()
        )
        known = (settings.PAPERS / paper / "settings.yaml").exists()
        self.unstated, self.store = settings.unstated(paper, exhibit) if known else set(), default_store()

    @cached_property
    def records(self) -> dict:
        return {key: self.store.find(job.id) for key, job in self.jobs.items()}

    @cached_property
    def grades(self) -> dict:
        known: dict = {}
        for key, job in self.jobs.items():
            alike = repr(dataclasses.replace(job, seed=0) if hasattr(job, "seed") else job)
            if alike not in known:
                record = self.records[key]
                done = record.json.get("rounds_done") if record else None
                known[alike] = grade(job, self.theirs, self.unstated, done)
            known[key] = known[alike]
        return known

    def keys(self, cell: Mapping) -> list:
        """The runs whose keys have all parts of a cell; all of them where a page's cells are not parts of keys."""
        parts = lambda key: key if isinstance(key, tuple) else (key,)  # noqa: E731
        found = [key for key in self.jobs if all(any(p == part for p in parts(key)) for part in cell.values())]
        return found or list(self.jobs)

    def of(self, cell: Mapping, methods=None) -> Grade:
        return max((self.grades[key] for key in self.keys(cell)), key=lambda g: g.order)

    def informative(self, cell: Mapping) -> bool:
        shares: dict = {}
        for key in self.keys(cell):
            record = self.records[key]
            if record and record.json.get("series", {}).get("accuracy"):
                alike = dataclasses.replace(record.spec, seed=0, probes=None)
                shares.setdefault(alike, []).append(share_learned(record))
        base = [np.mean(v) for spec, v in shares.items() if spec.algorithm == "fedavg"]
        least = min if cell else max  # of an effect without cells nobody knows which ones to leave out
        return not shares or (least(base) if base else max(np.mean(v) for v in shares.values())) >= LEARNED

    def rounds(self, cells, methods=None) -> str:
        found = [self.of(cell) for cell in cells] or [self.of({})]
        span = lambda values: " to ".join(str(v) for v in sorted({min(values), max(values)}))  # noqa: E731
        return f"{span([g.done for g in found])} of {span([g.due for g in found])}"


def show_claims(claims: list[Compared], scale: str) -> None:
    """The verdicts, as ``Page.claims`` shows them."""
    if scale == "smoke":
        print("smoke scale: no verdicts")
        return
    paper, exhibit = claims[0].id.split(".")[:2]
    known = {
        id: claim for page in {c.id.split(".")[1] for c in claims} for id, claim in definitions(paper, page).items()
    }
    evidence, found = PageEvidence(_notebook(paper, exhibit), paper, exhibit, scale), []
    for claim in (c for c in claims if c.id in known):  # one that two pages had is in the other's list
        values = getattr(claim.effects, "values_by_cell", None)
        if values is None:
            pairs = [(int(s), v) for s, each in claim.effects.items() for v in np.atleast_1d(np.asarray(each, float))]
            values = pd.Series([v for _, v in pairs], pd.Index([s for s, _ in pairs], name="seed"), dtype=float)
        plain = dataclasses.replace(known[claim.id], kind="effect", margin=None)
        found.append(judge(plain, Effect(values, None, claim.reported, claim.note), evidence, _name))
    data = [{"paper": paper, "scale": scale, "exhibit": c.id.split(".")[1]} | dataclasses.asdict(c) for c in found]
    shown = {"text/html": tables.claims_html(found), "text/plain": tables.claims_plain(found)}
    display({MIME: data, **shown}, raw=True)


def _notebook(paper: str, exhibit: str) -> Notebook:
    short = lambda stem: re.sub(r"^(table|figure)0*(\d+).*", r"\1\2", stem)  # noqa: E731
    return next(nb for nb in find([paper]) if exhibit in (nb.path.stem, short(nb.path.stem)))


def _name(cell: Mapping) -> str:
    return ", ".join(f"{name} {value}" for name, value in cell.items())
