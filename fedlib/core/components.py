"""Everything that has a name: the registries of this package, then those files of yours that FEDLIB_PLUGINS names."""

import hashlib
import importlib
import importlib.machinery
import sys
import types

from fedlib.core import environment
from fedlib.core.errors import FedlibError, in_words

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
    for file in environment.plugins():
        name = f"fedlib_plugin_{file.stem}"
        loader = importlib.machinery.SourceFileLoader(name, str(file))  # whatever the file is called
        module = sys.modules[name] = types.ModuleType(name)
        try:
            vars(module).update(__file__=str(file), __revision__=hashlib.sha256(file.read_bytes()).hexdigest()[:16])
            loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise FedlibError(f"The plugin {file} cannot be loaded: {in_words(error).rstrip('.')}.") from error
