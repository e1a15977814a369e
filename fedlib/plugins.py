"""Your own algorithms, models, data sets and probes, from files named in FEDLIB_PLUGINS."""

import hashlib
import importlib.machinery
import importlib.util
import sys

from fedlib import environment
from fedlib.errors import FedlibError


def load_plugins() -> None:
    """Run every file of FEDLIB_PLUGINS (separated as in PATH); worker processes and notebooks inherit it.

    What a file registers has the file's checksum as its revision, so that a run belongs to the code that made it.
    """
    for file in environment.plugins():
        name = f"fedlib_plugin_{file.stem}"
        loader = importlib.machinery.SourceFileLoader(name, str(file))  # whatever the file is called
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        sys.modules[name] = module
        try:
            module.__revision__ = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
            loader.exec_module(module)
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise FedlibError(f"The plugin {file} cannot be loaded: {reason}.") from error
