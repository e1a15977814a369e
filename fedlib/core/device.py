"""The machine a run is on: its device, one thread, and what the last digits of its numbers hang on."""

import functools
import platform
from contextlib import contextmanager
from pathlib import Path

import torch


def device() -> torch.device:
    """The card, where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def one_thread():
    """One thread and flushed denormals: the same numbers on a busy machine as on an idle one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


@functools.cache
def cpu() -> str:
    """Maker, family and model of the processor: libraries choose kernels by them, which sum in other orders."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return " ".join(known[name] for name in ("vendor_id", "cpu family", "model"))
    except (OSError, KeyError):  # not Linux, or not x86
        return platform.processor() or platform.machine()


def describe_machine() -> dict[str, str]:
    """For a record: what the last digits hang on."""
    return {
        "torch": torch.__version__.split("+")[0],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": cpu(),
        "device": device().type,
        "python": platform.python_version(),
    }
