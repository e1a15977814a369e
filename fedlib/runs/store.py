"""Folders of run records, one file per run, named by the spec's id; crash-safe and safe for parallel writers."""

import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedlib.core import environment
from fedlib.core.errors import FedlibError
from fedlib.core.paths import IN_CLONE, ROOT
from fedlib.core.spec import Measure, RunSpec
from fedlib.runs.checkpoint import Checkpoint
from fedlib.runs.files import write_atomically
from fedlib.runs.record import Record

LARGE = 30_000  # bytes of probes in a record
LARGEST_HANDED_ON = 3_000_000  # bytes of a checkpoint that is committed
STALE = 3600.0  # seconds after which a half-written file has no writer any more


class Store:
    """A folder of records; work in progress (locks, checkpoints) lives in its ``.work``.

    What it lacks is read from the store ``behind`` it. Nothing is ever written there.
    """

    def __init__(self, path: Path | str, behind: "Store | None" = None):
        self.path = Path(path)
        self.work = self.path / ".work"
        self.behind = behind

    def get(self, id: str, spec: "RunSpec | Measure | None" = None) -> Record | None:
        """The record, or None if there is none; a damaged one raises rather than being trusted.

        Of two, here and behind, that with more rounds counts, then that with the probes of ``spec``, then the one here.
        """
        found, damage = [], []
        for store in filter(None, (self, self.behind)):
            path = store.path / f"{id}.json"
            try:
                found += [Record.read(path)] if os.path.lexists(path) else []
            except FedlibError as error:
                damage.append(error)
        if damage and not found:
            raise damage[0]
        if damage:
            warnings.warn(f"Left aside: {damage[0]}", stacklevel=2)
        return max(found, key=lambda r: (r.rounds_done, spec is None or r.has(spec)), default=None)

    def find(self, id: str, spec: "RunSpec | Measure | None" = None) -> Record | None:
        """As ``get``, but a damaged record counts as missing: it will be run again and replaced."""
        try:
            return self.get(id, spec)
        except FedlibError as error:
            warnings.warn(f"Made again, because {error}", stacklevel=2)
            return None

    def put(self, record: Record) -> None:
        if (size := len(json.dumps(record.probes))) > LARGE:
            warnings.warn(
                f"The probes of {record.id} fill {size / 1000:.0f} KB; every=… or rounds=… keeps records small.",
                stacklevel=2,
            )
        text = json.dumps(record.json, indent=None, separators=(",", ":"), sort_keys=True)
        write_atomically(self.path / f"{record.id}.json", (text + "\n").encode())

    def tidy(self) -> None:
        """Remove what killed processes have left, where nobody is at work."""
        for path in self.work.glob("*.lock"):
            with suppress(Timeout, FedlibError), self.lock(path.stem, 0):
                pass
        for left in (*self.path.glob(".*.partial"), *self.work.glob(".*.partial")):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > STALE:
                    left.unlink()

    def ids(self) -> list[str]:
        """Of the records here, without those behind."""
        return sorted(p.stem for p in self.path.glob("*.json"))

    @contextmanager
    def lock(self, id: str, patience: float = -1) -> Iterator[None]:
        """Held while a run is made, so that two processes never make the same one; gives up after ``patience`` s."""
        lock = FileLock(self.work / f"{id}.lock")
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            lock.acquire(patience)
        except Timeout:
            raise
        except OSError as error:
            raise FedlibError(f"Cannot write to the store {self.path}: {error.strerror}. Set FEDLIB_STORE.") from None
        try:
            yield
        finally:
            # What a process killed while it wrote has left of this run, and the lock itself, before it is released: who
            # waits for it notices and makes a new one.
            for left in (
                *self.path.glob(f".{id}.*.partial"),
                *self.work.glob(f".{id}.*.partial"),
                Path(lock.lock_file),
            ):
                with suppress(OSError):
                    os.unlink(left)
            lock.release()

    def checkpoint(self, id: str, deadline: float | None = None) -> Checkpoint:
        behind = self.behind.handed_on(id) if self.behind else None
        return Checkpoint(self.work / f"{id}.checkpoint", id, deadline, behind)

    def handed_on(self, id: str) -> Checkpoint:
        """The checkpoint that is committed with a half-done record, so that others go on instead of beginning again."""
        return Checkpoint(self.path / "unfinished" / f"{id}.checkpoint", id)

    def hand_on(self, record: Record, checkpoint: Checkpoint) -> None:
        """Keep the checkpoint beside a half-done record; one of a finished run, or too large for a clone, is not."""
        kept = self.handed_on(record.id)
        with suppress(OSError):
            if record.partial and checkpoint.path.stat().st_size <= LARGEST_HANDED_ON:
                write_atomically(kept.path, checkpoint.path.read_bytes())
        if not record.partial:
            kept.clear()


def committed() -> Store:
    """The records that the workbook's pages stand on."""
    return Store(ROOT / "papers" / "runs")


def default_store() -> Store:
    """One's own records, in FEDLIB_STORE or else build/runs; what they lack is read from the committed ones.

    A fedlib that is installed without its clone keeps them in the user's folder.
    """
    evidence = committed()
    own = environment.store() or (ROOT / "build" / "runs" if IN_CLONE else Path.home() / ".local/share/fedlib/runs")
    return evidence if own.resolve() == evidence.path.resolve() else Store(own, behind=evidence)
