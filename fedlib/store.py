"""Run records: one small JSON file per run, named by the spec's id; crash-safe and safe for parallel writers."""

import hashlib
import io
import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from fedlib.errors import FedlibError
from fedlib.measures import Measure
from fedlib.registry import choose
from fedlib.spec import RunSpec

FORMAT = 1
ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT_SECONDS = 20.0
LARGE = 30_000  # bytes of probes in a record
MOST = 100_000_000  # bytes of a record; those of the workbook have 40,000 at most
STALE = 3600.0  # seconds after which a half-written file has no writer any more


@dataclass(frozen=True)
class Record:
    """What a run left behind; ``json`` is the file's content."""

    json: dict

    @classmethod
    def of_run(cls, spec, series, partition, cohorts, environment, seconds, error=None, probes=None, rounds=None):
        """Of a run to its end; ``rounds``, if given, says how many of its rounds are done so far."""
        half = rounds is not None and rounds < spec.rounds and not error
        body = {
            "format": FORMAT,
            "id": spec.id,
            "spec": spec.to_json(),
            "revisions": spec.revisions,
            "status": "diverged" if error else "partial" if half else "ok",
            "error": error,
            "summary": summary(series.get("accuracy", [])),
            "series": series,
            "partition": partition,
            "cohorts": cohorts,
            "environment": environment,
            "seconds": round(seconds, 1),
        }
        body |= {"probes": probes} if probes else {}
        body |= {"rounds_done": rounds} if half else {}
        return cls({**body, "checksum": checksum(body)})

    @classmethod
    def not_begun(cls, spec: RunSpec) -> "Record":
        """Stands for a run of which there is nothing yet; it is never written."""
        from fedlib.probes import sections

        nobody = {"fingerprint": "", "sizes": []}
        return cls.of_run(spec, {}, nobody, "", {}, 0.0, probes=sections(spec.probes), rounds=0)

    @classmethod
    def of_measure(cls, measure, result, environment, seconds) -> "Record":
        body = {
            "format": FORMAT,
            "id": measure.id,
            "measurement": measure.to_json(),
            "revisions": measure.revisions,
            "result": result,
            "environment": environment,
            "seconds": round(seconds, 1),
        }
        return cls({**body, "checksum": checksum(body)})

    @classmethod
    def read(cls, path: Path) -> "Record":
        """The record in a file, or a sentence saying what is wrong with it."""
        try:
            body = json.loads(file_content(path, MOST))
            claimed, sealed = body.pop("checksum"), checksum(body)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise FedlibError(f"{path} is cut short or not a record; delete it and run again.") from None
        if claimed != sealed:
            raise FedlibError(f"{path} was edited: its checksum does not match; delete it and run again.")
        if body.get("format") != FORMAT:
            raise FedlibError(f"{path} has format {body.get('format')}, this version reads {FORMAT}; run it again.")
        if wrong := misshapen(body):
            raise FedlibError(f"{path} is not a record that a run has left: see its {wrong}; delete it and run again.")
        record = cls({**body, "checksum": claimed})
        try:
            record.spec  # noqa: B018
        except FedlibError as error:
            raise FedlibError(
                f"{path} cannot be read: {error} If a plugin made it, name its file in FEDLIB_PLUGINS; else delete it."
            ) from None
        if record.id != path.stem or record.spec.id != record.id:
            raise FedlibError(f"{path} holds the run {record.spec.id}; delete it and run again.")
        if record.partial and not 0 < record.rounds_done < record.spec.rounds:
            raise FedlibError(f"{path} has {record.rounds_done} rounds of {record.spec.rounds}; delete it, run again.")
        return record

    @property
    def id(self) -> str:
        return self.json["id"]

    @cached_property
    def spec(self) -> "RunSpec | Measure":
        """What made it: a run, with the probes it had, or a measurement."""
        if "measurement" in self.json:
            return Measure(self.json["measurement"])
        return RunSpec.from_json(self.json["spec"]).also("+".join(self.probes))

    @property
    def probes(self) -> dict[str, dict]:
        """What each probe found, by its written form: ``{"revision": 1, "series": {"round": [...], ...}}``."""
        return self.json.get("probes", {})

    def has(self, spec: "RunSpec | Measure") -> bool:
        """Whether it holds everything that ``spec`` asks of this run, measured as it is measured today."""
        if spec.probes is None:
            return True
        from fedlib.probes import sections

        wanted = sections(spec.probes)
        return all(self.probes.get(text, {}).get("revision") == one["revision"] for text, one in wanted.items())

    def probe(self, text: str) -> dict[str, list]:
        """One probe's series, such as ``record.probe("spread")["tau"]``, with its own ``round``."""
        from fedlib.probes import canonical

        alike = [one for one in self.probes if one.partition("(")[0] == text]  # a bare name, if only one has it
        name = canonical(text) if canonical(text) in self.probes or len(alike) != 1 else alike[0]
        if self.partial and not self.probes.get(name, {}).get("series"):
            raise FedlibError(
                f"The probe {name} has nothing of {self.id} yet, of which {self.rounds_done} of {self.spec.rounds} "
                "rounds are done: 'fedlib run' goes on with it if told --hours or --finish."
            )
        choose(f"probe in {self.id}", name, self.probes or ("none",))
        return self.probes[name]["series"]

    @property
    def result(self) -> dict:
        """What a measurement found."""
        return self.json["result"]

    @property
    def series(self) -> dict:
        return self.json["series"]

    @property
    def summary(self) -> dict:
        return self.json["summary"]

    @property
    def status(self) -> str:
        """ok, diverged, or partial: its first rounds only."""
        return self.json["status"]

    @property
    def partial(self) -> bool:
        """Whether the run is half done, or has not begun."""
        return self.json.get("status") == "partial"

    @property
    def waiting(self) -> bool:
        """Whether there is no result of the run yet: it has not begun, or not come to its first evaluation."""
        return self.partial and not self.series

    @property
    def rounds_done(self) -> int:
        return self.json.get("rounds_done", self.spec.rounds)

    def first(self, rounds: int) -> "Record":
        """What it would have been if it had been stopped after so many rounds; that it diverged later stays known."""
        if rounds >= self.rounds_done:
            return self
        probes = {text: one | {"series": cut(one["series"], rounds)} for text, one in self.probes.items()}
        kept = (self.json[name] for name in ("partition", "cohorts", "environment"))
        seconds = self.json["seconds"] * rounds / self.rounds_done
        return Record.of_run(self.spec, cut(self.series, rounds), *kept, seconds, self.error, probes, rounds)

    @property
    def error(self) -> dict | None:
        return self.json["error"]

    @property
    def accuracy(self) -> np.ndarray:
        """Test accuracy per evaluated round, in percent."""
        return 100 * np.array(self.series.get("accuracy", []), dtype=float)

    def curve(self, name: str) -> np.ndarray:
        return np.array(self.series[name], dtype=float)


def summary(accuracy: list[float]) -> dict | None:
    """The four numbers papers call "the accuracy", side by side."""
    if not accuracy:
        return None
    best = sorted(accuracy, reverse=True)
    values = {
        "last": accuracy[-1],
        "last10": np.mean(accuracy[-10:]),
        "best": best[0],
        "best10": np.mean(best[:10]),
    }
    return {name: round(float(value), 6) for name, value in values.items()}


def cut(series: dict[str, list], rounds: int) -> dict[str, list]:
    """The part of the series up to a round, without those that begin later."""
    most = sum(number <= rounds for number in series.get("round", ()))
    parts = {name: values[:most] for name, values in series.items()}
    return {name: values for name, values in parts.items() if any(v is not None for v in values)}


NUMBER, NOTHING = (int, float), type(None)
PARTS = {"id": str, "revisions": dict, "environment": dict, "seconds": NUMBER}
RUN = {"spec": dict, "status": str, "error": (dict, NOTHING), "summary": (dict, NOTHING), "series": dict}
RUN |= {"partition": dict, "cohorts": str}
MEASUREMENT = {"measurement": str, "result": dict}


def misshapen(body: dict) -> str:
    """The first part of a record that is missing or of the wrong kind, or nothing."""
    for name, kind in (PARTS | (MEASUREMENT if "measurement" in body else RUN)).items():
        if name not in body or not isinstance(body[name], kind):
            return name
    if "measurement" in body:
        return ""
    status, error, probes, split = body["status"], body["error"] or {}, body.get("probes", {}), body["partition"]
    inner = {
        "status": status in ("ok", "diverged", "partial"),
        "rounds_done": isinstance(body.get("rounds_done"), int if status == "partial" else NOTHING),
        "error": bool(error) == (status == "diverged")
        and isinstance(error.get("message"), str if error else NOTHING)
        and isinstance(error.get("round"), int if error else NOTHING),
        "summary": all(isinstance(v, NUMBER) for v in (body["summary"] or {}).values()),
        "series": aligned(body["series"]),
        "partition": isinstance(split.get("fingerprint"), str) and isinstance(split.get("sizes"), list),
        "probes": isinstance(probes, dict)
        and all(isinstance(p, dict) and "revision" in p and aligned(p.get("series")) for p in probes.values()),
    }
    return next((name for name, right in inner.items() if not right), "")


def aligned(series) -> bool:
    """Whether these are series: lists as long as that of their rounds, which ascend; numbers, or lists of them."""
    if not isinstance(series, dict) or not all(isinstance(values, list) for values in series.values()):
        return False
    rounds = series.get("round", [])
    if not all(type(n) is int for n in rounds) or any(a >= b for a, b in zip(rounds, rounds[1:], strict=False)):
        return False
    kinds = {type(v) for values in series.values() for v in values}
    return kinds <= {int, float, NOTHING, list} and {len(values) for values in series.values()} <= {len(rounds)}


def checksum(body: dict) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def file_content(path: Path, most: int | None = None) -> bytes:
    """What is in a file of at most so many bytes; a folder or a pipe in its place is a ValueError, not a wait."""
    if not path.is_file() or (most is not None and path.stat().st_size > most):
        raise ValueError(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedlibError(f"{path} cannot be read: {error.strerror}.") from None


def write_atomically(path: Path, content: bytes) -> None:
    """All of the content or nothing: a temporary file in the same folder, flushed, then renamed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise FedlibError(f"Cannot write {path}: {error.strerror}. Free some space or choose FEDLIB_STORE.") from None


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
        self.tidy()

    def tidy(self) -> None:
        """Remove what processes left that were killed while they wrote."""
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
            with suppress(OSError):  # before it is released; who waits for it notices and makes a new one
                os.unlink(lock.lock_file)
            lock.release()

    def checkpoint(self, id: str, deadline: float | None = None) -> "Checkpoint":
        return Checkpoint(self.work / f"{id}.checkpoint", id, deadline)


class Checkpoint:
    """The state of an unfinished run, written every few seconds; a damaged file is ignored.

    A run that has one can stop after any round and go on later: ``deadline`` (as time.time() counts) says when.
    """

    def __init__(self, path: Path, id: str, deadline: float | None = None):
        self.path, self.id, self.deadline = path, id, deadline
        self.every = float(os.environ.get("FEDLIB_CHECKPOINT_SECONDS", CHECKPOINT_SECONDS))
        self.last = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self.last >= self.every

    def over(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.time() >= self.deadline

    def save(self, **state) -> None:
        import torch

        body = io.BytesIO()
        torch.save({"id": self.id, "format": FORMAT, **state}, body)
        content = body.getvalue()
        write_atomically(self.path, hashlib.sha256(content).hexdigest().encode() + content)
        self.last = time.monotonic()

    def load(self, device="cpu") -> dict | None:
        import torch

        try:
            content = file_content(self.path)
            digest, body = content[:64], content[64:]
            if hashlib.sha256(body).hexdigest().encode() != digest:
                return None
            state = torch.load(io.BytesIO(body), weights_only=True, map_location=device)
            return state if (state["id"], state["format"]) == (self.id, FORMAT) else None
        except Exception:  # nothing there, or sealed by hand around something else: torch raises all sorts of things
            return None

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        for left in self.path.parent.glob(f".{self.path.name}.*.partial"):  # by a process killed while it was writing
            left.unlink(missing_ok=True)


def committed() -> Store:
    """The records that the workbook's pages stand on."""
    return Store(ROOT / "papers" / "runs")


def default_store() -> Store:
    """One's own records, in FEDLIB_STORE or else build/runs; what they lack is read from the committed ones."""
    evidence = committed()
    own = Path(os.environ.get("FEDLIB_STORE") or ROOT / "build" / "runs")
    return evidence if own.resolve() == evidence.path.resolve() else Store(own, behind=evidence)
