"""Kernels forked from one warm process: many notebooks import torch, pandas and seaborn once instead of once each.

`fedlib run` and the nbval check use them; JupyterLab does not. Pages come out as from an ordinary kernel.
"""

import contextlib
import multiprocessing
import os
import sys
import threading
from importlib.metadata import EntryPoint
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from typing import IO, Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

NAME = "fedlib-forked"
STREAMS = {"stdout": 1, "stderr": 2}
PATH = [folder for folder in sys.path if folder]  # in the warm process, that of a fresh interpreter
# What kernels and notebooks import that takes time. None of it may start a thread or compute with torch on import.
WARM = [
    __name__, "ipykernel.ipkernel", "ipykernel.kernelapp", "ipykernel.debugger", "IPython.core.oinspect",
    "matplotlib.backends.backend_agg", "pandas.io.formats.string", "PIL.PngImagePlugin", "scipy.optimize",
    "scipy.stats", "seaborn", "torch", "fedlib.cli", "fedlib.runs.engine", "fedlib.workbook.claims",
    "fedlib.workbook.page", "fedlib.workbook.plots",
]  # fmt: skip


def use_forked_kernels() -> None:
    """Let this process fork its kernels from now on. Linux only: macOS's frameworks do not survive a bare fork."""
    if sys.platform == "linux":
        factory = KernelProvisionerFactory.instance()
        factory.provisioners[NAME] = EntryPoint(NAME, f"{__name__}:ForkedKernel", factory.GROUP_NAME)
        factory.default_provisioner_name = NAME
        os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # or the debugger greets with a warning when imported
        multiprocessing.set_forkserver_preload(WARM)  # the standard library's server: it ends when we do


def pytest_configure() -> None:
    """The same as a plugin, in each of pytest's workers: ``pytest -p fedlib.workbook.kernels --nbval``."""
    use_forked_kernels()


class ForkedKernel(LocalProvisioner):
    """Starts Python kernels by forking, and any other as usual; so all if the warm process cannot be started."""

    async def launch_kernel(self, cmd: list[str], **options: Any) -> KernelConnectionInfo:
        if cmd[:3] == [sys.executable, "-m", "ipykernel_launcher"] and options.keys() <= {"env", "cwd", *STREAMS}:
            streams = {number: Stream(options[name]) for name, number in STREAMS.items() if options.get(name)}
            cwd = options.get("cwd") or os.getcwd()
            # A daemon: multiprocessing waits for others when Python ends, and stops these.
            process = Process(target=serve, args=(cmd[3:], options["env"], cwd, streams), daemon=True)
            try:
                process.start()
            except (OSError, EOFError):  # the warm process was killed just now, or something in WARM fails on import
                pass
            else:
                self.process, self.cwd = process, cwd
                self.pid = self.pgid = process.pid  # it makes itself the leader of a group
                return self.connection_info
        return await super().launch_kernel(cmd, **options)


class Process(ForkServerProcess):
    """A forked process with the methods of subprocess.Popen that jupyter_client calls."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Stream:
    """An open file on its way to a forked process, where its number arrives."""

    def __init__(self, file: IO):
        self.file = file

    def __reduce__(self):
        return DupFd(self.file.fileno()).detach, ()


def serve(argv: list[str], environment: dict[str, str], cwd: str, streams: dict[int, int]) -> None:
    """In the forked process: be an IPython kernel until told to stop, or until who asked or who forked is gone."""
    os.setsid()  # Ctrl-C is for who asked
    for number, file in streams.items():
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment, JPY_PARENT_PID=str(os.getppid()))
    threading.Thread(target=_exit_with_parent, args=(multiprocessing.parent_process(),), daemon=True).start()
    multiprocessing.current_process().daemon = False  # which may not have processes of its own
    os.chdir(cwd)
    sys.argv, sys.path = ["ipykernel_launcher", *argv], PATH

    import matplotlib
    import numpy
    import torch
    from ipykernel.kernelapp import IPKernelApp

    numpy.random.seed()  # or all kernels would draw the same numbers; Python's own generator sees to it itself
    torch.default_generator.seed()
    # As matplotlib does when a kernel imports it.
    matplotlib.rcParams["backend"] = os.environ.get("MPLBACKEND") or "module://matplotlib_inline.backend_inline"
    IPKernelApp.launch_instance([*argv, f"--IPKernelApp.parent_handle={os.getppid()}"])  # ends with who forked it


def _exit_with_parent(parent: BaseProcess) -> None:
    """The warm process lives as long as anyone it has forked, so a kernel must watch who asked for it by itself."""
    parent.join()
    os._exit(1)
