"""Re-runs committed records and says whether the numbers moved."""

import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass

from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.federation.simulation import environment
from fedlib.runs import engine
from fedlib.runs.store import Record, Store, default_store, summary

# On another kind of processor sums are rounded differently, and the paths part. How far a number may be off after the
# first round, relative to the larger of it and 1: local training has amplified little yet, what the server learns from
# few images or of BatchNorm's statistics more. Of 56 records one was off by 0.02 in loss, the others by less than
# 0.001; accuracy was by up to 0.009.
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


def audit(
    sample: int = 4, seconds: float = 120, jobs: int = 1, store: Store | None = None, progress=True
) -> list[Outcome]:
    """Re-run ``sample`` records, each for as many of its first rounds as its share of ``seconds`` allows.

    Every record of the store is read and checked against its checksum, its spec and its own summary first.
    A round depends on nothing after it, so the first rounds of a long run are a run of their own.
    """
    store = store or default_store()
    records = [r for r in map(store.get, store.ids()) if isinstance(r.spec, RunSpec)]  # times are not repeatable
    if not records:
        raise FedlibError(f"There is no record in {store.path} to audit; 'fedlib run' makes them.")
    for record in records:
        if record.summary != summary(record.series.get("accuracy", [])):
            raise FedlibError(f"{record.id}.json: its summary does not follow from its series; delete it, run again.")
    skipped = [Outcome(r.id, label(r.spec), 0, r.spec.rounds, False, skipped=why) for r, why in _without_data(records)]
    here = {outcome.id for outcome in skipped}
    records = draw([r for r in records if r.id not in here], sample)
    if not records:
        raise FedlibError(f"No record could be audited: {skipped[0].skipped}")
    pieces = [shortened(record, seconds * jobs / len(records)) for record in records]
    with tempfile.TemporaryDirectory() as folder:
        again = engine.run(pieces, jobs, Store(folder), progress=progress)
    return [compare(old, new) for old, new in zip(records, again, strict=True)] + skipped


def draw(records: list[Record], sample: int) -> list[Record]:
    """Half of them, if there are so many, made on a machine of this kind, where every digit counts; then all others."""
    near = choose([r for r in records if alike(r.json["environment"], environment())], sample // 2)
    return near + choose([r for r in records if r not in near], sample - len(near))


def choose(records: list[Record], sample: int) -> list[Record]:
    """The cheapest of every kind of run, then the next of every kind, until there are enough."""
    kinds = defaultdict(list)
    for record in sorted(records, key=lambda r: (r.json["seconds"], r.id)):
        kinds[record.spec.dataset, record.spec.model, record.spec.algorithm].append(record)
    ranked = [(rank, r.json["seconds"], r.id, r) for kind in kinds.values() for rank, r in enumerate(kind)]
    return [record for *_, record in sorted(ranked, key=lambda r: r[:3])[:sample]]


def shortened(record: Record, seconds: float) -> RunSpec:
    """The run of ``record``, cut to the rounds that fit into ``seconds``, but to no less than one evaluation."""
    spec = record.spec
    per_round = max(record.json["seconds"], 0.1) / spec.rounds
    return spec.replace(rounds=min(spec.rounds, max(spec.eval_every, int(seconds / per_round))))


def compare(old: Record, new: Record) -> Outcome:
    """Both records over the rounds they share."""
    same = alike(old.json["environment"], new.json["environment"])
    return Outcome(old.id, label(old.spec), new.spec.rounds, old.spec.rounds, same, moved=_moved(old, new, same))


def alike(before: dict, now: dict) -> bool:
    """Whether two machines are of one kind. Records from before the processor was noted are from another one."""
    names = ("torch", "capability", "cpu", "device", "card", "cuda", "cudnn")
    return all(before.get(name) == now.get(name) for name in names)


def _moved(old: Record, new: Record, exact: bool) -> str:
    if old.json["partition"] != new.json["partition"]:
        return "the partition is another one"
    if new.spec.rounds == old.spec.rounds and old.json["cohorts"] != new.json["cohorts"]:
        return "other clients take part"
    if exact and new.spec.rounds == old.spec.rounds and old.error != new.error:  # elsewhere it may diverge later
        return f"it ended in {new.error}"
    if exact and old.series.keys() != new.series.keys():
        return f"the series are {', '.join(new.series)} and were {', '.join(old.series)}"
    if not exact:
        return _first_moved(old.series, new.series, [name for name in TOLERANCE if name in old.series], 1, TOLERANCE)
    moved = _first_moved(old.series, new.series, sorted(old.series))
    for text, section in old.probes.items():
        again = new.probes.get(text, section)
        if section["revision"] == again["revision"]:  # else it is measured in another way now
            moved = moved or _first_moved(section["series"], again["series"], sorted(section["series"]))
    return moved


def _first_moved(old: dict, new: dict, names: list[str], most: int | None = None, tolerance=None) -> str:
    """The first number that moved in the rounds both have, or in the ``most`` first of them, in words."""
    places = {number: n for n, number in enumerate(new.get("round", []))}
    shared = [(n, places[number]) for n, number in enumerate(old.get("round", [])) if number in places]
    for n, m in shared[:most]:
        for name in names:
            before, after = old[name][n], new[name][m] if name in new else None
            if before != after and not (tolerance and abs(before - after) <= tolerance[name] * max(1, abs(before))):
                return f"{name} of round {old['round'][n]} was {before} and is {after}"
    return ""


def label(spec: RunSpec) -> str:
    return f"{spec.algorithm} on {spec.dataset}, {spec.model}, seed {spec.seed}"


def _without_data(records: list[Record]) -> list[tuple[Record, str]]:
    """The records whose data set cannot be had here, with the reason."""
    from fedlib.data import load

    reasons = {}
    for name in {record.spec.dataset for record in records}:
        try:
            load(name)
        except FedlibError as error:
            reasons[name] = str(error)
    return [(record, reasons[record.spec.dataset]) for record in records if record.spec.dataset in reasons]
