"""Re-runs committed records and says whether the numbers moved."""

import tempfile
from collections import defaultdict

from fedlib.core.device import describe_machine
from fedlib.core.errors import FedlibError
from fedlib.core.paths import require_clone
from fedlib.core.series import summary
from fedlib.core.spec import RunSpec
from fedlib.data import load
from fedlib.runs import engine
from fedlib.runs.compare import Outcome, alike, compare, label
from fedlib.runs.record import Record
from fedlib.runs.store import Store, committed


def audit(
    sample: int = 4,
    seconds: float = 120,
    jobs: int = 1,
    store: Store | None = None,
    progress: bool = True,
    gpus: float | None = None,
) -> list[Outcome]:
    """Re-run ``sample`` records, each for as many of its first rounds as its share of ``seconds`` allows.

    Every record of the store, by default the committed one, is read and checked against its checksum, its spec and its
    own summary first. A round depends on nothing after it, so the first rounds of a long run are a run of their own.
    """
    if store is None:
        require_clone("Auditing the committed records")
        store = committed()
    records = [r for r in map(store.get, store.ids()) if r and isinstance(r.spec, RunSpec)]  # times are not repeatable
    if not records:
        raise FedlibError(f"There is no record in {store.path} to audit; 'fedlib run' makes them.")
    for record in records:
        if record.summary != summary(record.series.get("accuracy", [])):
            raise FedlibError(f"{record.id}.json: its summary does not follow from its series; delete it, run again.")
    skipped = [Outcome(r.id, label(r.spec), 0, r.rounds_done, False, skipped=why) for r, why in _without_data(records)]
    here = {outcome.id for outcome in skipped}
    records = draw([r for r in records if r.id not in here and (r.series or not r.partial)], sample)
    if not records:
        why = skipped[0].skipped if skipped else "none has come to an evaluation."
        raise FedlibError(f"No record could be audited: {why}")
    pieces = [shortened(record, seconds * jobs / len(records)) for record in records]
    with tempfile.TemporaryDirectory() as folder:
        again = engine.run(pieces, jobs, Store(folder), progress, finish=True, gpus=gpus)
    return [compare(old, new) for old, new in zip(records, again, strict=True)] + skipped


def draw(records: list[Record], sample: int) -> list[Record]:
    """Half of them, if there are so many, made on a machine of this kind, where every digit counts; then all others."""
    near = choose([r for r in records if alike(r.json["environment"], describe_machine())], sample // 2)
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
    spec, done = record.spec, record.rounds_done
    per_round = max(record.json["seconds"], 0.1) / done
    return spec.replace(rounds=min(done, max(spec.eval_every, int(seconds / per_round))))


def _without_data(records: list[Record]) -> list[tuple[Record, str]]:
    """The records whose data set cannot be had here, with the reason."""
    reasons = {}
    for name in {record.spec.dataset for record in records}:
        try:
            load(name)
        except FedlibError as error:
            reasons[name] = str(error)
    return [(record, reasons[record.spec.dataset]) for record in records if record.spec.dataset in reasons]
