"""Many runs: only what the store lacks is trained."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from fedlib.core import environment
from fedlib.core.device import device
from fedlib.core.errors import FedlibError, quoted
from fedlib.core.spec import Measure, RunSpec
from fedlib.runs.estimate import estimate
from fedlib.runs.execute import show_half_done
from fedlib.runs.partial import common_rounds, how_far
from fedlib.runs.processes import train_all
from fedlib.runs.record import Record
from fedlib.runs.store import Store, default_store


def run(
    specs: RunSpec | Measure | Iterable | Mapping, jobs: int | None = None, store: Store | str | None = None,
    progress: bool = True, engine: Callable[..., None] | None = None, hours: float | None = None,
    finish: bool = False, gpus: float | None = None,
) -> Any:  # fmt: skip
    """The records of ``specs`` (a dict, a list or one run or measurement), in the same shape. Missing ones are made.

    With ``hours`` runs are made in the order given until the time is up, half-done ones go on, and what there is then
    is returned; with 0 nothing is trained. FEDLIB_HOURS sets the default. Without, half-done runs are returned as they
    are, unless ``finish``. Either way they are cut to the rounds that all runs of their setting have reached.
    With FEDLIB_TRAIN=0 a missing run raises instead. FEDLIB_JOBS sets the default number of workers. CUDA cards are
    shared out: a run gets ``gpus`` of one, a quarter if not given. ``engine`` trains elsewhere than in processes of
    this machine, such as ``Ray("auto")``.
    """
    if isinstance(specs, (RunSpec, Measure)):
        return run([specs], jobs, store, progress, engine, hours, finish, gpus)[0]
    if engine and gpus is not None:
        raise FedlibError("gpus shares out the cards of this machine; an engine has its own, such as Ray(gpus=0.25).")
    store = Store(store) if isinstance(store, str | os.PathLike) else store or default_store()
    if hours is None and not finish:
        hours = environment.hours()
    if hours is not None and not 0 <= hours < float("inf"):
        raise FedlibError(f"hours must be a number of hours, 0 or more; got {hours}.")
    wanted = list(specs.values() if isinstance(specs, Mapping) else specs if isinstance(specs, Iterable) else [specs])
    if odd := [spec for spec in wanted if not isinstance(spec, RunSpec | Measure)]:
        raise FedlibError(f"fedlib.run takes a RunSpec or Measure, or a list or dict of them; got {quoted(odd[0])}.")
    todo = missing(wanted, store, finish or hours is not None)
    if todo and not environment.may_train():
        raise FedlibError(
            f"{len(todo)} of {len(wanted)} runs or their probes are not in {store.path} and FEDLIB_TRAIN=0 forbids "
            "training; unset it to train them."
        )
    if hours is None:
        now, deadline = sorted(todo, key=estimate, reverse=True) if len(todo) > 1 else todo, None
    else:  # measurements are short and have no rounds to stop at: they are always made
        now, deadline = [s for s in todo if hours > 0 or isinstance(s, Measure)], time.time() + 3600 * hours
    if now:
        jobs = environment.jobs() if jobs is None else jobs
        if jobs < 1:
            raise FedlibError(f"At least one job is needed to train; got {jobs}: leave out jobs, or FEDLIB_JOBS.")
        if environment.device() and not engine:
            device()  # a card that is asked for and not here is one error, not one for every run
        (engine or partial(train_all, gpus=gpus))(now, jobs, store, progress, deadline)
    if hours is not None:
        for spec in todo:
            show_half_done(spec, store)
    records = common_rounds([store.get(spec.id, spec) or Record.not_begun(spec) for spec in wanted])
    if progress and (text := how_far(records)):
        print(text, file=sys.stderr)
    return dict(zip(specs, records, strict=True)) if isinstance(specs, Mapping) else records


def missing(specs: Iterable, store: Store | None = None, finish: bool = False) -> list[RunSpec]:
    """The distinct specs without a sound record that has their probes, in order; half-done ones count if ``finish``."""
    store = store or default_store()
    distinct: dict = {}
    for spec in specs:
        twin = distinct.setdefault(spec.id, spec)
        distinct[spec.id] = twin.with_probes(spec.probes) if spec.probes else twin

    def lacks(spec: RunSpec | Measure, record: Record | None) -> bool:
        return record is None or (finish if record.partial else not record.has(spec))

    return [spec for spec in distinct.values() if lacks(spec, store.find(spec.id, spec))]
