"""Numbers from the authors' own code: FEDLIB_ORACLES may name a folder with further files of the same form."""

import json
import os
from pathlib import Path

import torch

FOLDER = Path(os.environ.get("FEDLIB_ORACLES") or Path(__file__).parent / "oracles")


def files(pattern: str) -> list[str]:
    """The names of the files of one form, for a test to be parametrised with."""
    return sorted(p.name for p in FOLDER.glob(pattern))


def load(name: str):
    return json.loads((FOLDER / name).read_text())


def tensor(d: dict) -> torch.Tensor:
    """``{"shape", "dtype", "data"}`` as a tensor; anything else as torch reads it."""
    if not isinstance(d, dict):
        return torch.tensor(d)
    return torch.tensor(d["data"], dtype=getattr(torch, d["dtype"])).reshape(d["shape"])


def state(d: dict[str, dict]) -> dict[str, torch.Tensor]:
    """A state_dict in float32, counters too: the authors' averages of counters are fractions."""
    return {name: tensor(value).float() for name, value in d.items()}


def close(mine: dict[str, torch.Tensor], theirs: dict[str, dict], tolerance: float = 1e-4) -> None:
    """Two state_dicts agree, entry by entry."""
    assert mine.keys() == theirs.keys()
    for name, value in state(theirs).items():
        torch.testing.assert_close(mine[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
