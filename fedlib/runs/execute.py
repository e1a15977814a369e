"""One run through the store: read, resumed or made, and kept if its numbers are those it had before."""

import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from filelock import Timeout

from fedlib.core.device import describe_machine, one_thread
from fedlib.core.errors import FedlibError
from fedlib.core.spec import Measure, RunSpec
from fedlib.federation.federation import cohorts
from fedlib.federation.simulation import run_rounds
from fedlib.federation.state import RunState
from fedlib.runs import saved
from fedlib.runs.checkpoint import Checkpoint
from fedlib.runs.compare import compare
from fedlib.runs.measures import MEASURES
from fedlib.runs.record import Record
from fedlib.runs.store import Store


def execute(
    job: RunSpec | Measure,
    checkpoint: Checkpoint | None = None,
    on_round: Callable[[int], Any] | None = None,
    **options: Any,
) -> Record:
    """The record of a run or a measurement, made now; ``options`` of a run are those of ``simulate``."""
    if isinstance(job, RunSpec):
        return simulate(job, checkpoint, on_round, **options)
    began = time.perf_counter()
    with one_thread():
        result = MEASURES.make(job.text).measure(on_round or (lambda done: None))
    return Record.of_measure(job, result, describe_machine(), time.perf_counter() - began)


def simulate(
    spec: RunSpec, checkpoint: Checkpoint | None = None, on_round: Callable[[int], Any] | None = None,
    callback: Callable[[int, dict], None] | None = None, save: str | Path | None = None,
) -> Record:  # fmt: skip
    """Run ``spec`` and return its record. ``checkpoint`` (see store) makes it resumable; ``on_round(done)`` is told
    after every round.

    ``callback(round, metrics)`` gets what every round has logged (``fedlib.CSVLog``, ``fedlib.TensorBoardLog``);
    ``save`` names a .safetensors file for the global model, which ``fedlib.load_model`` reads.
    """
    if save:
        saved.check(spec, save)
    state, model = run_rounds(spec, checkpoint, on_round, callback)
    record = recorded(spec, state)
    if save and record.status == "ok":
        saved.save_model(model, record, save)
    return record


def recorded(spec: RunSpec, state: RunState) -> Record:
    """The record of a run at the round it has come to; one that moved lists the other machines it was on."""
    *others, last = state.environments
    machine = last | ({"also": others} if others else {})
    measured = spec, state.series, state.partition, cohorts(spec), machine, state.seconds, state.error, state.probes
    return Record.of_run(*measured, rounds=state.round)


def half_done(spec: RunSpec, checkpoint: Checkpoint) -> Record | None:
    """The record of an unfinished run from its checkpoint alone, without its data."""
    state = RunState.loaded(checkpoint.load(), spec)
    return recorded(spec, state) if state else None


def run_one(
    spec: RunSpec, store: Store, on_round: Callable[[int], Any] | None = None, patience: float = -1,
    deadline: float | None = None, again: bool = False, **options: Any,
) -> Record:  # fmt: skip
    """One run through the store: read if there, else resumed or started, under the lock of its id.

    Where another process is making it, ``patience`` says for how many seconds to wait (-1: as long as it takes). After
    ``deadline`` (as time.time() counts) it stops at the next end of a round, and what there is becomes its record.
    ``again`` makes it even if there is a record, whose numbers must come out; ``options`` are those of ``simulate``.
    """
    with store.lock(spec.id, patience):
        before = store.find(spec.id, spec)
        if before and not before.partial and before.has(spec) and not again:  # another process was faster
            return before
        checkpoint = store.checkpoint(spec.id, deadline)
        record = execute(complete(spec, before), checkpoint, on_round, **options)
        if record.rounds_done:
            keep(record, before, store)
        if not record.partial:
            checkpoint.clear()
    return record


def show_half_done(spec: RunSpec, store: Store) -> None:
    """Write the record of a run that was killed, from its checkpoint, so that what it has can be seen."""
    checkpoint, path = store.checkpoint(spec.id), store.path / f"{spec.id}.json"
    if not checkpoint.path.exists() or (path.exists() and path.stat().st_mtime >= checkpoint.path.stat().st_mtime):
        return
    try:
        with store.lock(spec.id, 0):
            if record := half_done(spec, checkpoint):
                keep(record, store.find(spec.id, spec), store)
    except Timeout:  # another process is at it and will write one itself
        return
    except FedlibError as error:
        warnings.warn(str(error), stacklevel=2)


def rounds_done(spec: RunSpec, store: Store) -> int:
    """How many rounds of an unfinished run there are, in its record or its checkpoint."""
    found = store.find(spec.id, spec), half_done(spec, store.checkpoint(spec.id))
    return max((record.rounds_done for record in found if record and record.partial), default=0)


def complete(spec: RunSpec, before: Record | None) -> RunSpec:
    """A record that lacks a probe is run again with all it ever had."""
    return spec.with_probes(before.spec.probes) if before else spec


def keep(record: Record, before: Record | None, store: Store) -> None:
    """Write a record; the numbers of the one before it, if any, must have come out again. One with less is not kept."""
    if before and (moved := compare(before, record).moved):
        raise FedlibError(
            f"{record.id}.json was made again, but the numbers moved: {moved}. The old record was kept; delete it if "
            "the new numbers are right."
        )
    if before is None or record.rounds_done >= before.rounds_done:
        store.put(record)


def uncommitted(specs: Iterable, store: Store, evidence: Store) -> list[Record]:
    """The records of ``specs`` that are in ``store`` and that the ``evidence`` lacks or has less of."""
    found = []
    for spec in {spec.id: spec for spec in specs}.values():
        record, there = store.find(spec.id, spec), evidence.find(spec.id)
        if record and not (there and there.rounds_done >= record.rounds_done and there.has(record.spec)):
            found.append(record)
    return found


def commit(specs: Iterable, store: Store, evidence: Store) -> int:
    """Put those records among the evidence, with the checkpoints of half-done ones; returns how many there were."""
    records = uncommitted(specs, store, evidence)
    for record in records:
        keep(record, evidence.find(record.id), evidence)
        evidence.hand_on(record, store.checkpoint(record.id))
    return len(records)
