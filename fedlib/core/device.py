"""The machine a run is on: its device, one thread, and what the last digits of its numbers hang on."""

import functools
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedlib.core import environment
from fedlib.core.errors import FedlibError


def device() -> torch.device:
    """The card, where there is one; or what FEDLIB_DEVICE names."""
    here = "cuda" if torch.cuda.is_available() else "cpu"
    if (chosen := environment.device() or here) == "cuda" != here:
        raise FedlibError("FEDLIB_DEVICE is cuda, and PyTorch sees no card here: leave it out, or say cpu.")
    return torch.device(chosen)


def cards() -> list[str]:
    """The cards this process may use, each as CUDA_VISIBLE_DEVICES would name it. Counting them opens none."""
    if environment.device() == "cpu":
        return []
    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [name.strip() for name in named][:count] if named != [""] else [str(n) for n in range(count)]


def prepare_device(precision: str = "float32") -> torch.device:
    """The device a run of this precision is to use, set up for it: on CUDA deterministic kernels, and float32 that is
    float32 unless TF32 is asked for, with 10 bits instead of 23. On a CPU nothing is touched."""
    if precision == "tf32" and device().type != "cuda":
        raise FedlibError("precision=tf32 is a way of CUDA cards to multiply, and there is none here: use float32.")
    if (chosen := device()).type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts; without it sums vary
        # A kernel without a deterministic form only warns: a run that varies in its last digits beats none.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # or every empty() would be a kernel more
        tf32 = precision == "tf32"  # said in both of PyTorch's ways: where they disagree, reading the older one raises
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        cudnn: Any = torch.backends.cudnn
        for library in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn):
            library.fp32_precision = "tf32" if tf32 else "ieee"
    return chosen


def describe_device() -> dict[str, str]:
    """For a record: what the numbers of a card hang on besides PyTorch's version; of a CPU there is more to say
    elsewhere."""
    if (chosen := device()).type == "cpu":
        return {"device": "cpu"}
    return {
        "device": chosen.type,
        "card": torch.cuda.get_device_name(),
        "driver": driver(),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
    }


def driver(path: str = "/proc/driver/nvidia/version") -> str:
    """The version of the card's driver, as Linux shows it; PyTorch does not tell."""
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", Path(path).read_text(encoding="utf-8"))
    except OSError:  # not Linux
        found = None
    return found[0] if found else "unknown"


@contextmanager
def one_thread() -> Iterator[None]:
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
        "python": platform.python_version(),
    } | describe_device()
