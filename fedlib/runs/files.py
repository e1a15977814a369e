"""Files that are there whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from fedlib.core.errors import FedlibError


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


def file_content(path: Path, most: int | None = None) -> bytes:
    """What is in a file of at most so many bytes; a folder or a pipe in its place is a ValueError, not a wait."""
    if not path.is_file() or (most is not None and path.stat().st_size > most):
        raise ValueError(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedlibError(f"{path} cannot be read: {error.strerror}.") from None
