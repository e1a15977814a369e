"""Everything that has a name: the registries of this package, then those files of yours that FEDLIB_PLUGINS names."""

import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path

from fedlib.core.errors import FedlibError

# Each fills a registry. They stand above this floor, so they are named here and not imported.
MODULES = (
    "fedlib.core.optimizers", "fedlib.data", "fedlib.data.partition", "fedlib.data.proxy", "fedlib.data.corruption",
    "fedlib.models", "fedlib.models.starts", "fedlib.algorithms", "fedlib.probes", "fedlib.runs.measures",
)  # fmt: skip
_loaded = False


def load() -> None:
    """Fill every registry, once; whoever looks up a name does this first."""
    global _loaded
    if _loaded:
        return
    _loaded = True  # a plugin may look things up while it loads
    try:
        for module in MODULES:
            importlib.import_module(module)
        load_plugins()
    except BaseException:
        _loaded = False
        raise


def load_plugins() -> None:
    """Run every file of FEDLIB_PLUGINS (separated as in PATH); worker processes and notebooks inherit it.

    What a file registers has the file's checksum as its revision, so that a run belongs to the code that made it.
    """
    for path in filter(None, os.environ.get("FEDLIB_PLUGINS", "").split(os.pathsep)):
        file = Path(path).expanduser().resolve()
        name = f"fedlib_plugin_{file.stem}"
        if not file.is_file():
            raise FedlibError(f"FEDLIB_PLUGINS names {path}, which is no file; give the path of a Python file.")
        spec = importlib.util.spec_from_file_location(name, file)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        module.__revision__ = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise FedlibError(f"The plugin {path} cannot be loaded: {type(error).__name__}: {error}.") from error
