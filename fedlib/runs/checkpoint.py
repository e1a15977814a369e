"""The state of an unfinished run in a file."""

import hashlib
import io
import time
from pathlib import Path
from typing import Any

import torch

from fedlib.core import environment
from fedlib.runs.files import file_content, write_atomically
from fedlib.runs.record import FORMAT


class Checkpoint:
    """The state of an unfinished run, written every few seconds; a damaged file is ignored.

    A run that has one can stop after any round and go on later: ``deadline`` (as time.time() counts) says when.
    Where the one ``behind`` it (committed, from somebody else's machine) has come further, the run goes on from that.
    """

    def __init__(self, path: Path, id: str, deadline: float | None = None, behind: "Checkpoint | None" = None):
        self.path, self.id, self.deadline, self.behind = path, id, deadline, behind
        self.every = environment.checkpoint_seconds()
        self.last = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self.last >= self.every

    def over(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.time() >= self.deadline

    def save(self, **state: Any) -> None:
        body = io.BytesIO()
        torch.save({"id": self.id, "format": FORMAT, **state}, body)
        content = body.getvalue()
        write_atomically(self.path, hashlib.sha256(content).hexdigest().encode() + content)
        self.last = time.monotonic()

    def load(self, device: str | torch.device = "cpu") -> dict | None:
        here, there = self._read(device), self.behind.load(device) if self.behind else None
        return max(filter(None, (here, there)), key=lambda state: state["round"], default=None)

    def _read(self, device: str | torch.device) -> dict | None:
        try:
            content = file_content(self.path)
            digest, body = content[:64], content[64:]
            if hashlib.sha256(body).hexdigest().encode() != digest:
                return None
            state = torch.load(io.BytesIO(body), weights_only=True, map_location=device)
            mine = (state["id"], state["format"]) == (self.id, FORMAT) and isinstance(state["round"], int)
            return state if mine else None
        except Exception:  # nothing there, or sealed by hand around something else: torch raises all sorts of things
            return None

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        for left in self.path.parent.glob(f".{self.path.name}.*.partial"):  # by a process killed while it was writing
            left.unlink(missing_ok=True)
