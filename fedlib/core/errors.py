"""The one error a user meets: a sentence saying what was wrong, what is allowed, what to do."""

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path


class FedlibError(ValueError):
    """Bad input or an unusable file; the command line prints it as one sentence and exits with 2."""


class Diverged(FedlibError):
    """A non-finite loss or update, with the round and the client that produced it."""

    def __init__(self, message: str, round: int, client: int | None):
        super().__init__(message)
        self.round, self.client = round, client


def quoted(value: object) -> str:
    """A value as it may stand in a sentence: on one line, and not for pages."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python prints no integer of thousands of digits
        text = f"something of type {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:80]}…{text[-1]}"


def meant(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'fedprox'?)`` where a known name is near, else nothing."""
    near = difflib.get_close_matches(str(name)[:100], list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def in_words(error: BaseException) -> str:
    """An exception in one line; ours are sentences already."""
    try:
        text = " ".join(str(error).split())[:500]
    except Exception:  # of its own making
        text = "it cannot say why"
    return text if isinstance(error, FedlibError) else ": ".join(filter(None, (type(error).__name__, text.rstrip("."))))


def cause(error: BaseException) -> str:
    """What somebody's own code raised, and where, in a line: ``KeyError: 'x' (mine.py, line 7)``."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    at = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return in_words(error) + at
