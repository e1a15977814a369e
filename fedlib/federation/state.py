"""All that a run has come to: what its rounds hand on, and what a checkpoint holds."""

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from fedlib.core.series import aligned
from fedlib.core.spec import RunSpec
from fedlib.probes import sections


@dataclass
class RunState:
    """The global model after ``round`` rounds, what everybody remembers, and what was written down."""

    theta: Tensor
    buffers: Tensor
    partition: dict[str, Any] = field(default_factory=dict)  # its fingerprint and the clients' sizes
    probes: dict[str, dict] = field(default_factory=dict)  # what each probe found
    round: int = 0
    server: dict[str, dict] = field(default_factory=dict)  # what the algorithm's parts remember, by part
    clients: dict[int, dict] = field(default_factory=dict)  # the same for every client that ever took part
    broadcast: dict[str, Any] = field(default_factory=dict)  # what the server sends along with the model
    series: dict[str, list] = field(default_factory=dict)  # numbers by evaluated round
    environments: list[dict] = field(default_factory=list)  # the machines that made its rounds, the last one last
    seconds: float = 0.0
    error: dict | None = None  # where it diverged; such a run has no checkpoint

    def saved(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "error"}

    @classmethod
    def loaded(cls, saved: dict | None, spec: RunSpec, fresh: "RunState | None" = None) -> "RunState | None":
        """The state in a checkpoint, if it can be of this run: the right parts, every evaluation up to its round, the
        probes asked for. With a ``fresh`` state its model and partition must be those, too."""
        parts = {k: v for k, v in (saved or {}).items() if k in {f.name for f in fields(cls)}}
        return cls(**parts) if saved and _fits(parts, spec, fresh) else None


def _fits(saved: dict, spec: RunSpec, fresh: RunState | None) -> bool:
    kinds = dict(round=int, theta=torch.Tensor, buffers=torch.Tensor, server=dict, clients=dict, broadcast=dict)
    kinds |= dict(series=dict, probes=dict, partition=dict, environments=list, seconds=float)
    if not all(isinstance(saved.get(name), kind) for name, kind in kinds.items()):
        return False
    probes, clients, machines = saved["probes"], saved["clients"], saved["environments"]
    if not all(isinstance(thing, dict) for thing in (*probes.values(), *clients.values(), *machines)):
        return False
    if not 0 < saved["round"] < spec.rounds:
        return False
    due = [n for n in range(1, saved["round"] + 1) if n % spec.eval_every == 0]
    wanted = sections(spec.probes).items()
    checks = [probes.get(text, {}).get("revision") == one["revision"] for text, one in wanted]
    checks += [saved["series"].get("round", []) == due, bool(machines), clients.keys() <= set(range(spec.clients))]
    checks += [aligned(series) for series in (saved["series"], *(one.get("series") for one in probes.values()))]
    if fresh:
        checks += [saved["partition"] == fresh.partition]
        checks += [saved[name].shape == getattr(fresh, name).shape for name in ("theta", "buffers")]
        checks += [saved[name].dtype == getattr(fresh, name).dtype for name in ("theta", "buffers")]
    return all(checks)
