"""Half-done runs side by side: cut to the last round that all of them have reached, and what to say about it."""

from collections.abc import Collection, Iterable

from fedlib.core.registry import parse
from fedlib.core.spec import RunSpec
from fedlib.runs.record import Record

# Runs that share these are compared on a page: methods, seeds and whatever else is set at the clients or the server.
SETTING = ("dataset", "subset", "skip", "augment", "corruption", "partition", "clients", "participation", "stragglers")


def common_rounds(records: list[Record]) -> list[Record]:
    """The records; where a setting has half-done runs, all of its runs up to where the shortest of these is.

    A run without any evaluation yet holds nobody back. Where nothing is half done, nothing changes.
    """
    reached: dict[tuple, int] = {}
    for record in records:
        if record.partial and not record.waiting:
            key = setting(record)
            reached[key] = min(record.rounds_done, reached.get(key, record.rounds_done))
    return [record.first(reached[key]) if (key := setting(record)) in reached else record for record in records]


def setting(record: Record) -> tuple:
    """What its run is compared in; a last layer without bias is a part of a method (FedDW), not another network."""
    if not isinstance(record.spec, RunSpec):
        return ()
    ((network, options),) = parse(record.spec.model)
    model = network, tuple((name, value) for name, value in options.items() if name != "bias")
    return *(getattr(record.spec, name) for name in SETTING), model


def how_far(records: Iterable[Record]) -> str:
    """Sentences on how far half-done runs are, such as "62 to 140 of 200 rounds"; nothing if there are none."""
    runs = {r.id: r for r in records if isinstance(r.spec, RunSpec) and r.status != "diverged"}.values()
    begun = [record for record in runs if not record.waiting]
    sentences = []
    if any(record.partial for record in begun):
        rounds = f"{span([r.rounds_done for r in begun])} of {span([r.spec.rounds for r in begun])} rounds"
        sentences.append(f"Half done: compared after {rounds}, the last that all runs of a setting have reached.")
    if len(begun) < len(runs):
        sentences.append(f"{len(runs) - len(begun)} of {len(runs)} runs have no result yet.")
    return " ".join(sentences)


def span(values: Collection[float], form: str = "", most: float = 0) -> str:
    """Such as ``62 to 140``, or one number where they are no farther apart than ``most``."""
    low, high = min(values), max(values)
    return f"{low:{form}} to {high:{form}}" if high - low > most else f"{low:{form}}"
