"""What a run left behind: one small JSON file, checked when it is read."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedlib.core.errors import FedlibError
from fedlib.core.registry import require_one_of
from fedlib.core.series import aligned, cut, summary
from fedlib.core.spec import Measure, RunSpec
from fedlib.probes import canonical_probes, sections
from fedlib.runs.files import file_content

FORMAT = 1
MOST = 100_000_000  # bytes of a record; those of the workbook have 40,000 at most
NUMBER, NOTHING = (int, float), type(None)
PARTS: dict[str, Any] = {"id": str, "revisions": dict, "environment": dict, "seconds": NUMBER}
RUN = {"spec": dict, "status": str, "error": (dict, NOTHING), "summary": (dict, NOTHING), "series": dict}
RUN |= {"partition": dict, "cohorts": str}
MEASUREMENT = {"measurement": str, "result": dict}


@dataclass(frozen=True, repr=False)
class Record:
    """What a run left behind; ``json`` is the file's content."""

    json: dict

    @classmethod
    def of_run(
        cls,
        spec: RunSpec,
        series: dict,
        partition: dict,
        cohorts: str,
        environment: dict,
        seconds: float,
        error: dict | None = None,
        probes: dict | None = None,
        rounds: int | None = None,
    ) -> "Record":
        """Of a run to its end; ``rounds``, if given, says how many of its rounds are done so far."""
        half = rounds is not None and rounds < spec.rounds and not error
        body: dict[str, Any] = {
            "spec": spec.to_json(),
            "status": "diverged" if error else "partial" if half else "ok",
            "error": error,
            "summary": summary(series.get("accuracy", [])),
            "series": series,
            "partition": partition,
            "cohorts": cohorts,
        }
        body |= {"probes": probes} if probes else {}
        body |= {"rounds_done": rounds} if half else {}
        return cls.sealed(spec, environment, seconds, body)

    @classmethod
    def not_begun(cls, spec: RunSpec) -> "Record":
        """Stands for a run of which there is nothing yet; it is never written."""
        nobody = {"fingerprint": "", "sizes": []}
        return cls.of_run(spec, {}, nobody, "", {}, 0.0, probes=sections(spec.probes), rounds=0)

    @classmethod
    def of_measure(cls, measure: Measure, result: Any, environment: dict, seconds: float) -> "Record":
        return cls.sealed(measure, environment, seconds, {"measurement": measure.to_json(), "result": result})

    @classmethod
    def sealed(cls, job: RunSpec | Measure, environment: dict, seconds: float, found: dict) -> "Record":
        """With what every record has, and the checksum."""
        body = {"format": FORMAT, "id": job.id, "revisions": job.revisions, **found}
        body |= {"environment": environment, "seconds": round(seconds, 1)}
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

    def __repr__(self) -> str:
        """What it is of, in a line: the whole of it would fill pages."""
        if "measurement" in self.json:
            return f"Record({self.id}: {self.json['measurement']})"
        spec, scored = self.json["spec"], self.accuracy
        shown = f"{scored[-1]:.2f}% after round {self.series['round'][-1]}" if len(scored) else "never scored"
        return f"Record({self.id}: {spec.get('algorithm', 'fedavg')} on {spec['dataset']}, {self.status}, {shown})"

    @property
    def id(self) -> str:
        return self.json["id"]

    @cached_property
    def spec(self) -> Any:
        """What made it: a RunSpec, with the probes it had, or a Measure."""
        if "measurement" in self.json:
            return Measure(self.json["measurement"])
        return RunSpec.from_json(self.json["spec"]).with_probes("+".join(self.probes))

    @property
    def probes(self) -> dict[str, dict]:
        """What each probe found, by its written form: ``{"revision": 1, "series": {"round": [...], ...}}``."""
        return self.json.get("probes", {})

    def has(self, spec: "RunSpec | Measure") -> bool:
        """Whether it holds everything that ``spec`` asks of this run, measured as it is measured today."""
        wanted = sections(spec.probes)
        return all(self.probes.get(text, {}).get("revision") == one["revision"] for text, one in wanted.items())

    def probe(self, text: str) -> dict[str, list]:
        """One probe's series, such as ``record.probe("spread")["tau"]``, with its own ``round``."""
        alike = [one for one in self.probes if one.partition("(")[0] == text]  # a bare name, if only one has it
        name = canonical_probes(text) or text
        name = alike[0] if name not in self.probes and len(alike) == 1 else name
        if self.partial and not self.probes.get(name, {}).get("series"):
            raise FedlibError(
                f"The probe {name} has nothing of {self.id} yet, of which {self.rounds_done} of {self.spec.rounds} "
                "rounds are done: 'fedlib run' goes on with it if told --hours or --finish."
            )
        require_one_of(f"probe in {self.id}", name, self.probes or ("none",))
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
        split, cohorts, machine = (self.json[name] for name in ("partition", "cohorts", "environment"))
        seconds = self.json["seconds"] * rounds / self.rounds_done
        series = cut(self.series, rounds)
        return Record.of_run(self.spec, series, split, cohorts, machine, seconds, self.error, probes, rounds)

    @property
    def error(self) -> dict | None:
        return self.json["error"]

    @property
    def accuracy(self) -> np.ndarray:
        """Test accuracy per evaluated round, in percent."""
        return 100 * np.array(self.series.get("accuracy", []), dtype=float)

    def curve(self, name: str) -> np.ndarray:
        return np.array(self.series[name], dtype=float)


def misshapen(body: dict) -> str:
    """The first part of a record that is missing or of the wrong kind, or nothing."""
    more: dict[str, Any] = MEASUREMENT if "measurement" in body else RUN
    for name, kind in (PARTS | more).items():
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


def checksum(body: dict) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
