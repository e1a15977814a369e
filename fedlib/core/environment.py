"""All environment variables that fedlib reads: each gives a checked value, or an error in a sentence."""

import math
import os
from pathlib import Path

from fedlib.core.errors import FedlibError, quoted

YES, NO = ("1", "yes", "true", "on"), ("0", "no", "false", "off")


def store() -> Path | None:
    """FEDLIB_STORE: the folder of run records, if another than the usual one is named."""
    return _folder("FEDLIB_STORE")


def data() -> Path | None:
    """FEDLIB_DATA: the data directory, if another than the user's cache is named."""
    return _folder("FEDLIB_DATA")


def jobs() -> int:
    """FEDLIB_JOBS: how many processes train, else as many as there are cores."""
    text = _text("FEDLIB_JOBS")
    if text and not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise FedlibError(f"FEDLIB_JOBS is a number of processes, at least 1; got {quoted(text)}.")
    return int(text or os.cpu_count() or 1)


def may_train() -> bool:
    """FEDLIB_TRAIN: whether a missing run is trained; ``0`` makes it an error instead."""
    return _switch("FEDLIB_TRAIN", True)


def checkpoint_seconds() -> float:
    """FEDLIB_CHECKPOINT_SECONDS: how often an unfinished run is written down."""
    return _amount("FEDLIB_CHECKPOINT_SECONDS", "seconds", "20")


def cuda_graphs() -> bool:
    """FEDLIB_CUDA_GRAPHS: whether a training step on a card is recorded and replayed as one launch."""
    return _switch("FEDLIB_CUDA_GRAPHS", False)


def hours() -> float | None:
    """FEDLIB_HOURS: for how long runs are trained, if not until they end."""
    return _amount("FEDLIB_HOURS", "hours") if _text("FEDLIB_HOURS") else None


def device() -> str | None:
    """FEDLIB_DEVICE: cpu or cuda, where not what there is is to be taken."""
    text = _text("FEDLIB_DEVICE").lower()
    if text not in ("", "cpu", "cuda"):
        raise FedlibError(f"FEDLIB_DEVICE is cpu or cuda; got {quoted(text)}.")
    return text or None


def plugins() -> list[Path]:
    """FEDLIB_PLUGINS: Python files of your own, separated as in PATH."""
    paths = [_path("FEDLIB_PLUGINS", part) for part in _text("FEDLIB_PLUGINS").split(os.pathsep) if part]
    for path in paths:
        if not path.is_file():
            raise FedlibError(f"FEDLIB_PLUGINS names {quoted(str(path))}, which is no file: give Python files' paths.")
    return [path.resolve() for path in paths]


def _switch(name: str, usual: bool) -> bool:
    text = _text(name).lower()
    if text and text not in YES + NO:
        raise FedlibError(f"{name} is one of {', '.join(YES + NO)}; got {quoted(text)}.")
    return text in YES if text else usual


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def _folder(name: str) -> Path | None:
    if not (text := _text(name)):
        return None
    path = _path(name, text)
    if path.exists() and not path.is_dir():
        raise FedlibError(f"{name} names {quoted(text)}, which is a file: give the path of a folder.")
    return path


def _path(name: str, text: str) -> Path:
    """A path that the system understands, whether or not there is something."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # too long, or the home of a user who is not known
        raise FedlibError(f"{name} names {quoted(text)}, which is no path here: {_reason(error)}.") from None
    return path


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).rstrip(".")


def _amount(name: str, unit: str, default: str = "") -> float:
    text = _text(name) or default
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise FedlibError(f"{name} is a number of {unit}, at least 0; got {quoted(text)}.")
    return amount
