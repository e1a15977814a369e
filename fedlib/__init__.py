"""fedlib: five federated-learning papers, one implementation, every table and figure."""

# Imports of fedlib inside functions, all that there are: runs.worker twice (a worker first sees whether its driver is
# still there, before anything heavy), runs.measures.under_flower (an optional extra). The lists of names below, in
# cli and in core.components import by name, on first use: --help must not wait for torch.
__version__ = "0.1.0"
_LAZY = {
    "RunSpec": "fedlib.core.spec",
    "FedlibError": "fedlib.core.errors",
    "Measure": "fedlib.core.spec",
    "run": "fedlib.runs.engine",
    "simulate": "fedlib.runs.execute",
    "aggregate": "fedlib.federation.aggregation",
    "compare": "fedlib.workbook.comparison",
    "frame": "fedlib.workbook.frames",
    "record": "fedlib.runs.lookup",
    "show": "fedlib.workbook.page",
    "load": "fedlib.data",
    "load_model": "fedlib.runs.saved",
    "CSVLog": "fedlib.runs.callbacks",
    "TensorBoardLog": "fedlib.runs.callbacks",
    "register_dataset": "fedlib.data",
    "register_model": "fedlib.models",
}
__all__ = list(_LAZY)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str):
    # Names are imported on first use, so that `fedlib --help` does not wait for torch.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'fedlib' has no attribute {name!r}")
