"""What a cell stands on: its runs beside the paper's own, and whether its base method has learned anything.

A grade is computed from specs, never written by hand. What the paper does not state is no difference.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedlib.core.registry import parse
from fedlib.core.spec import Measure, RunSpec
from fedlib.data import DATASETS
from fedlib.runs.measures import MEASURES
from fedlib.runs.partial import span
from fedlib.runs.record import Record

OWN, PART, REDUCED, STAND_IN = GRADES = ("own", "own, r of T rounds", "reduced", "stand-in")  # the best first
LEARNED = 0.15  # share of the way from chance to 100% below which a cell tells nothing
FREE = {"seed", "probes", "eval_every", "rounds", "turns", "seconds"}  # seeds and looking change no experiment


@dataclass(frozen=True)
class Grade:
    """How near a run is to the paper's own: one of GRADES, rounds done and due, and what differs."""

    kind: str
    done: int = 0
    due: int = 0
    differs: tuple[str, ...] = ()
    own: object = field(default=None, compare=False, repr=False)  # the paper's run that it was compared with

    @property
    def order(self) -> tuple[int, int, int]:
        """Smaller is nearer."""
        return GRADES.index(self.kind), len(self.differs), -self.done


def grade(job: RunSpec | Measure, theirs: Iterable, unstated: Iterable[str] = (), done: int | None = None) -> Grade:
    """The grade of a run or measurement beside that one of the paper's that is nearest to it.

    ``done`` is how many rounds there are of a run that is not finished.
    """
    alike = [own for own in theirs if set(fields_of(own)) == set(fields_of(job))]  # a run beside runs
    found = [_beside(job, own, set(unstated), done) for own in alike]
    return min(found, key=lambda g: g.order, default=Grade(STAND_IN, differs=("exhibit",)))


def _beside(job: RunSpec | Measure, own: RunSpec | Measure, unstated: set[str], done: int | None) -> Grade:
    here, there = fields_of(job), fields_of(own)
    rounds = (min(done or job.rounds, own.rounds), own.rounds) if isinstance(job, RunSpec) else (0, 0)
    differs = tuple(n for n in here if here[n] != there[n] and n not in FREE | unstated)
    if any(_another(name, here[name], there[name]) for name in differs):
        return Grade(STAND_IN, *rounds, differs, own)
    if differs:
        return Grade(REDUCED, *rounds, differs, own)
    return Grade(OWN if rounds[0] == rounds[1] else PART, *rounds, (), own)


def fields_of(job: RunSpec | Measure) -> dict:
    """What decides the numbers of a run or a measurement, by name."""
    if not isinstance(job, RunSpec):
        job = MEASURES.make(job.text)
    return {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}


def _another(name: str, here: Any, there: Any) -> bool:
    """Whether it is another data set, network or partition, and not the same made smaller."""
    if name == "model":
        return True
    if name not in ("dataset", "partition") or here is None or there is None:
        return False
    ((a, mine),), ((b, theirs),) = parse(here), parse(there)
    if name == "dataset":  # cifar100(part=subset) is CIFAR-100
        return a != b
    return a != b or mine | {"chunk": 0} != theirs | {"chunk": 0}  # shards of 25 images where there are fewer


class Evidence:
    """The grades of a page's cells and what their base method has learned.

    ``grid`` and ``theirs`` (the same page at the paper's scale) map keys to jobs, ``records`` keys to records;
    ``names`` names the parts of a key. A cell is a dict of some of these parts; what it does not name is pooled in it.
    """

    def __init__(
        self, grid: Mapping, theirs: Mapping, records: Mapping, names: Iterable[str], unstated: Iterable[str], base: str
    ):
        self.grid, self.theirs, self.records, self.names = grid, theirs, records, tuple(names)
        self.unstated, self.base = set(unstated), base

    @cached_property
    def grades(self) -> dict[tuple, Grade]:
        """Of every run of the grid."""
        return {key: self._grade(key) for key in self.grid}

    def _grade(self, key: tuple) -> Grade:
        record = self.records.get(key)
        done = record.json.get("rounds_done") if record is not None else None
        return grade(self.grid[key], self._candidates(self._part(key, "method")), self.unstated, done)

    def _candidates(self, method: Any) -> list:
        """The paper's own runs with this method, one seed of each."""
        alike = [k for k in self.theirs if method is None or self._part(k, "method") == method]
        first = {tuple(p for n, p in zip(self.names, k, strict=True) if n != "seed"): self.theirs[k] for k in alike}
        return list(first.values())

    def _part(self, key: tuple, name: str):
        return key[self.names.index(name)] if name in self.names else None

    def keys(self, cell: Mapping, methods: Iterable[str] | None = None) -> list[tuple]:
        """The runs behind a cell: those that agree with every part it names, with these ``methods`` (None: all)."""
        known = {name: value for name, value in cell.items() if name in self.names}
        found = [k for k in self.grid if all(self._part(k, name) == value for name, value in known.items())]
        return [k for k in found if methods is None or self._part(k, "method") in (None, *methods)]

    def of(self, cell: Mapping, methods: Iterable[str] | None = None) -> Grade:
        """The grade of a cell: that of its worst run."""
        return max((self.grades[k] for k in self.keys(cell, methods)), key=lambda g: g.order)

    def learned(self, cell: Mapping) -> float | None:
        """How far its base method has come from chance (0) to 100% (1); None where nothing is trained.

        Mean over seeds; of several columns that are pooled in the cell, the least.
        """
        found: dict = {}
        for key in self.keys(cell):
            record = self.records.get(key)
            if record is not None and record.json.get("series", {}).get("accuracy"):
                column = tuple(p for n, p in zip(self.names, key, strict=True) if n != "seed")
                found.setdefault(column, []).append(share_learned(record))
        bases = {c: v for c, v in found.items() if self._part((*c, None), "method") == self.base}
        if bases:
            return min(float(np.mean(v)) for v in bases.values())
        return max((float(np.mean(v)) for v in found.values()), default=None)  # no base: at least something must learn

    def informative(self, cell: Mapping) -> bool:
        """Whether its base method has learned enough for the cell to count, or nothing is trained at all."""
        share = self.learned(cell)
        return share is None or share >= LEARNED

    def rounds(self, cells: Iterable[Mapping], methods: Iterable[str] | None = None) -> str:
        """Such as ``60 of 200`` or ``62 to 140 of 200``: the rounds of the runs behind these cells, and the paper's."""
        found = [self.of(cell, methods) for cell in cells]
        return f"{span([g.done for g in found])} of {span([g.due for g in found])}"


def chance(spec: RunSpec) -> float:
    """The accuracy of guessing, in percent."""
    return 100 / len(DATASETS.make(spec.dataset).class_names)


def share_learned(record: Record) -> float:
    """(accuracy - chance) / (1 - chance) of a run, by the mean of its last ten evaluations."""
    guess = chance(record.spec)
    return float((record.accuracy[-10:].mean() - guess) / (100 - guess))
