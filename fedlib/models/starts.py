"""Where a run may start from instead of fresh weights: named checkpoints, known by the sha256 of their weights.

``papers/weights/<name>.json`` is a checkpoint's card: its model, the recipe that made it, the sha256. The weights are
in ``<name>.safetensors`` beside it, or in the data directory where they are another's (``file``). The sha256 is part
of the id of every run that starts there, so such a run means the same numbers on every machine.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.core.registry import Registry
from fedlib.data.sources import data_dir

FOLDER = ROOT / "papers" / "weights"


class Starts(Registry):
    """The checkpoints whose cards are in the folder now."""

    def make(self, text: str) -> Any:
        self.read()
        return super().make(text)

    def read(self) -> None:
        self._entries = {}
        for path in sorted(FOLDER.glob("*.json")):
            card = read_card(path)
            fields = {"__doc__": card["about"], "card": card, "revision": card["sha256"][:16]}
            self.register(path.stem)(type(path.stem, (Start,), fields))


STARTS = Starts("start")


def read_card(path: Path) -> dict:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        return {"about": card["about"], "model": card["model"], "sha256": card["sha256"]} | card
    except (ValueError, KeyError, TypeError):
        raise FedlibError(f"{path} is not the card of a checkpoint: it needs about, model and sha256.") from None


@dataclass(frozen=True, kw_only=True)
class Start:
    """One checkpoint, and what is taken of it."""

    classifier: Literal["kept", "fresh"] = "kept"  # fresh: drawn by the run's seed, where the classes are others

    @property
    def path(self) -> Path:
        return data_dir() / self.card["file"] if "file" in self.card else FOLDER / f"{self.name}.safetensors"

    @property
    def transform(self) -> str:
        """Of the images it was trained on."""
        return self.card.get("transform") or self.card["recipe"].get("transform", "unit")

    def state(self) -> dict[str, Tensor]:
        """The weights by name, after their sha256 was checked."""
        where = self.card.get("origin") or f"'fedlib pretrain {self.name}' makes it"
        try:
            content = self.path.read_bytes()
        except OSError:
            raise FedlibError(f"The weights of the start {self.name} are not at {self.path}: {where}.") from None
        if hashlib.sha256(content).hexdigest() != self.card["sha256"]:
            raise FedlibError(f"{self.path} does not have the sha256 of the start {self.name}, as if damaged; {where}.")
        if self.path.suffix == ".npz":
            with np.load(self.path, allow_pickle=False) as file:
                state = {name: torch.from_numpy(file[name]) for name in file.files}
        else:
            from safetensors.torch import load

            state = load(content)
        for theirs, ours in self.card.get("names", {}).items():  # modules that are called otherwise there
            state = {re.sub(rf"^{theirs}(?=\.)", ours, name): tensor for name, tensor in state.items()}
        return state

    def load_into(self, model: nn.Module) -> None:
        """Put the weights into a freshly built model; BatchNorm's counters may be missing."""
        own, state = model.state_dict(), self.state()
        if self.classifier == "fresh":
            state = {name: tensor for name, tensor in state.items() if not name.startswith("classifier.")}
            state |= {name: tensor for name, tensor in own.items() if name.startswith("classifier.")}
        left = {name for name in own.keys() - state.keys() if not name.endswith("num_batches_tracked")}
        unlike = {name for name in own.keys() & state.keys() if own[name].shape != state[name].shape}
        if unlike and all(name.startswith("classifier.") for name in unlike):
            raise FedlibError(
                f"The start {self.name} has {len(state['classifier.weight'])} classes and this run "
                f"{len(own['classifier.weight'])}: write {self.name}(classifier=fresh)."
            )
        if wrong := sorted(left | unlike | (state.keys() - own.keys())):
            raise FedlibError(f"The start {self.name} does not fit this run's model, in {wrong[0]} for one.")
        model.load_state_dict(own | state)
