"""Records at hand: one by its id or the beginning of it, or all that fit."""

import fnmatch
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from fedlib.core.errors import FedlibError, meant, quoted
from fedlib.core.spec import RunSpec
from fedlib.runs.record import Record
from fedlib.runs.store import Store, default_store


def record(id: str, store: Store | None = None) -> Record:
    """The record whose id is, or begins with, ``id``: one's own or one of the workbook's."""
    store = store or default_store()
    ids = known_ids(store)
    found = [id] if id in ids else [one for one in ids if id and one.startswith(id)]
    if len(found) != 1 or (record := store.get(found[0])) is None:
        what = f"{len(found)} records begin with" if found else "There is no record"
        raise FedlibError(f"{what} {quoted(id)}{'' if found else meant(id, ids)}; 'fedlib runs' lists them.")
    return record


def known_ids(store: Store, own: bool = False) -> list[str]:
    """Of the store, and of what stands behind it unless ``own``."""
    behind = store.behind.ids() if store.behind and not own else []
    return sorted({*store.ids(), *behind})


def on_record(grid: Mapping, store: Store | None = None) -> dict:
    """Those of a grid of which there is a record, of the whole run or of its first rounds."""
    known = set(known_ids(store or default_store()))
    return {key: job for key, job in grid.items() if job.id in known}


def runs(store: Store | None = None, own: bool = False, **globs: str) -> Iterator[Record]:
    """The records of runs whose fields fit, such as ``algorithm="*lws*"``; what cannot be read is left out, and said.

    ``status`` is ok, diverged or partial; any field of a run can be named besides.
    """
    store, unreadable = store or default_store(), []
    for id in known_ids(store, own):
        try:
            found = store.get(id)
        except FedlibError as error:
            unreadable.append(error)
            continue
        if found and isinstance(found.spec, RunSpec) and all(_fits(found, name, glob) for name, glob in globs.items()):
            yield found
    if unreadable:
        warnings.warn(f"{len(unreadable)} records were left out: {unreadable[0]}", stacklevel=2)


def superfluous(store: Store, everything: bool = False) -> dict[Path, str]:
    """The files of one's own store that nothing needs, each with the reason; ``everything`` names them all."""
    if store.behind is None:
        raise FedlibError(f"{store.path} holds the committed records: set FEDLIB_STORE to a folder of your own.")
    found: dict[Path, str] = {}
    for path in sorted(store.path.glob("*.json")):
        try:
            here, there = Record.read(path), store.behind.find(path.stem)
        except FedlibError as error:
            found[path] = str(error)
            continue
        if there and there.rounds_done >= here.rounds_done and there.has(here.spec):
            found[path] = "papers/runs has it too"
        elif everything:
            found[path] = repr(here)
    for path in sorted(store.work.glob("*.checkpoint")):
        run = store.find(path.stem)
        if everything or run and not run.partial:
            found[path] = "a checkpoint" if everything else "its run is finished"
    return found


def remove(store: Store, paths: Iterable[Path]) -> int:
    """Delete them, but for those of runs that are being made; how many that were."""
    removed = 0
    for path in paths:
        with suppress(Timeout), store.lock(path.stem, 0):
            path.unlink(missing_ok=True)
            removed += 1
    store.tidy()
    return removed


def _fits(found: Record, name: str, glob: str) -> bool:
    value = str(found.status if name == "status" else getattr(found.spec, name))
    return fnmatch.fnmatchcase(value, glob) or value.partition("(")[0] == glob  # dirichlet is any dirichlet(…)
