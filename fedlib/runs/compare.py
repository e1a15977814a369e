"""Two records of one run: whether a number moved."""

from dataclasses import asdict, dataclass
from typing import Any

from fedlib.core.spec import Measure, RunSpec
from fedlib.runs.record import Record

# On another kind of processor sums are rounded differently, and the paths part. How far a number may be off after the
# first round, relative to the larger of it and 1: local training has amplified little yet, what the server learns from
# few images or of BatchNorm's statistics more. Of 56 records one was off by 0.02 in loss, the others by less than
# 0.001; accuracy was by up to 0.009.
KIND = ("torch", "capability", "cpu", "device", "card", "cuda", "cudnn")  # what makes two machines alike
TOLERANCE = {"train_loss": 1e-3, "loss": 0.05, "accuracy": 0.02}


@dataclass(frozen=True)
class Outcome:
    """What became of one record."""

    id: str
    run: str
    rounds: int  # how many were run again
    of: int
    exact: bool  # compared bit for bit, or the first round within TOLERANCE
    moved: str = ""  # the first number that moved, in words
    skipped: str = ""  # why it could not be run

    def to_json(self) -> dict:
        return asdict(self)


def compare(old: Record, new: Record) -> Outcome:
    """Both records over the rounds they share."""
    same = alike(old.json["environment"], new.json["environment"])
    return Outcome(old.id, label(old.spec), new.rounds_done, old.rounds_done, same, moved=_moved(old, new, same))


def alike(before: dict, now: dict) -> bool:
    """Whether two machines, or all that a run was on, are of one kind. Where no processor is noted it is another."""
    every = [before, now, *before.get("also", ()), *now.get("also", ())]
    return all(one.get(name) == now.get(name) for one in every for name in KIND)


def _moved(old: Record, new: Record, exact: bool) -> str:
    if old.json["partition"] != new.json["partition"]:
        return "the partition is another one"
    if new.spec.rounds == old.spec.rounds and old.json["cohorts"] != new.json["cohorts"]:
        return "other clients take part"
    shared = min(old.rounds_done, new.rounds_done)
    ends = [r.error if r.error and r.error["round"] <= shared else None for r in (old, new)]
    if exact and ends[0] != ends[1]:  # elsewhere it may diverge later
        return f"it ended in {ends[1]}"
    if not exact:
        return _first_moved(old.series, new.series, [name for name in TOLERANCE if name in old.series], 1, TOLERANCE)
    moved = _first_moved(old.series, new.series, sorted(old.series.keys() | new.series.keys()))
    for text, section in old.probes.items():
        again = new.probes.get(text, section)
        if section["revision"] == again["revision"]:  # else it is measured in another way now
            moved = moved or _first_moved(section["series"], again["series"], sorted(section["series"]))
    return moved


def _first_moved(
    old: dict, new: dict, names: list[str], most: int | None = None, tolerance: dict[str, float] | None = None
) -> str:
    """The first number that moved in the rounds both have, or in the ``most`` first of them, in words."""
    places = {number: n for n, number in enumerate(new.get("round", []))}
    shared = [(n, places[number]) for n, number in enumerate(old.get("round", [])) if number in places]
    for n, m in shared[:most]:
        for name in names:
            values: list[Any] = [side[name][at] if name in side else None for side, at in ((old, n), (new, m))]
            before, after = values
            near = tolerance and None not in values and abs(before - after) <= tolerance[name] * max(1, abs(before))
            if before != after and not near:
                return f"{name} of round {old['round'][n]} was {before} and is {after}"
    return ""


def label(spec: RunSpec | Measure) -> str:
    """A run or measurement in a few words."""
    if isinstance(spec, Measure):
        return spec.text
    return f"{spec.algorithm} on {spec.dataset}, {spec.model}, seed {spec.seed}"
