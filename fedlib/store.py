"""Run records: one small JSON file per run, named by the spec's id; crash-safe and safe for parallel writers."""

import hashlib
import io
import json
import os
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from filelock import AcquireReturnProxy, FileLock, Timeout

from fedlib import environment
from fedlib.errors import FedlibError
from fedlib.measures import Measure
from fedlib.registry import choose
from fedlib.spec import RunSpec

FORMAT = 1
ROOT = Path(__file__).resolve().parent.parent
LARGE = 30_000  # bytes of probes in a record


@dataclass(frozen=True, repr=False)
class Record:
    """What a run left behind; ``json`` is the file's content."""

    json: dict

    def __repr__(self) -> str:
        """What it is of, in a line: the whole of it would fill pages."""
        if "measurement" in self.json:
            return f"Record({self.id}: {self.json['measurement']})"
        spec, scored = self.json["spec"], self.accuracy
        shown = f"{scored[-1]:.2f}% after round {self.series['round'][-1]}" if len(scored) else "never scored"
        return f"Record({self.id}: {spec.get('algorithm', 'fedavg')} on {spec['dataset']}, {self.status}, {shown})"

    @classmethod
    def of_run(cls, spec, series, partition, cohorts, environment, seconds, error=None, probes=None) -> "Record":
        body = {
            "format": FORMAT,
            "id": spec.id,
            "spec": spec.to_json(),
            "revisions": spec.revisions,
            "status": "diverged" if error else "ok",
            "error": error,
            "summary": summary(series.get("accuracy", [])),
            "series": series,
            "partition": {"fingerprint": partition.fingerprint, "sizes": [len(i) for i in partition.indices]},
            "cohorts": cohorts,
            "environment": environment,
            "seconds": round(seconds, 1),
        } | ({"probes": probes} if probes else {})
        return cls({**body, "checksum": checksum(body)})

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
            body = json.loads(path.read_text())
            claimed = body.pop("checksum")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise FedlibError(f"{path} is cut short or not a record; delete it and run again.") from None
        if claimed != checksum(body):
            raise FedlibError(f"{path} was edited: its checksum does not match; delete it and run again.")
        if body["format"] != FORMAT:
            raise FedlibError(f"{path} has format {body['format']}, this version reads {FORMAT}; run it again.")
        record = cls({**body, "checksum": claimed})
        try:
            record.spec  # noqa: B018
        except FedlibError as error:
            raise FedlibError(
                f"{path} cannot be read: {error} If a plugin made it, name its file in FEDLIB_PLUGINS; else delete it."
            ) from None
        if record.id != path.stem or record.spec.id != record.id:
            raise FedlibError(f"{path} holds the run {record.spec.id}; delete it and run again.")
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
        return self.json["status"]

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


def checksum(body: dict) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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
    """A folder of records; work in progress (locks, checkpoints) lives in its ``.work``."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.work = self.path / ".work"

    def get(self, id: str) -> Record | None:
        """The record, or None if there is none; a damaged one raises rather than being trusted."""
        path = self.path / f"{id}.json"
        return Record.read(path) if path.exists() else None

    def find(self, id: str) -> Record | None:
        """As ``get``, but a damaged record counts as missing: it will be run again and replaced."""
        try:
            return self.get(id)
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

    def ids(self) -> list[str]:
        return sorted(p.stem for p in self.path.glob("*.json"))

    def lock(self, id: str, patience: float = -1) -> AcquireReturnProxy:
        """Held while a run is made, so that two processes never make the same one; gives up after ``patience`` s."""
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            return FileLock(self.work / f"{id}.lock").acquire(patience)
        except Timeout:
            raise
        except OSError as error:
            raise FedlibError(f"Cannot write to the store {self.path}: {error.strerror}. Set FEDLIB_STORE.") from None

    def checkpoint(self, id: str) -> "Checkpoint":
        return Checkpoint(self.work / f"{id}.checkpoint", id)


class Checkpoint:
    """The state of an unfinished run, written every few seconds; a damaged file is ignored."""

    def __init__(self, path: Path, id: str):
        self.path, self.id = path, id
        self.every = environment.checkpoint_seconds()
        self.last = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self.last >= self.every

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
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        digest, body = content[:64], content[64:]
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        state = torch.load(io.BytesIO(body), weights_only=True, map_location=device)
        return state if (state["id"], state["format"]) == (self.id, FORMAT) else None

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        for left in self.path.parent.glob(f".{self.path.name}.*.partial"):  # by a process killed while it was writing
            left.unlink(missing_ok=True)


def default_store(scale: str | None = None) -> Store:
    """FEDLIB_STORE, else the committed records; smoke runs are throw-away and kept apart."""
    if named := environment.store():
        return Store(named)
    return Store(ROOT / "build" / "runs" if scale == "smoke" else ROOT / "papers" / "runs")
