"""Kernels forked from one warm process: many notebooks import torch, pandas and seaborn once instead of once each.

`fedlib run` and the nbval check use them; JupyterLab does not. Pages come out as from an ordinary kernel.
"""

import multiprocessing
import os
import sys
import threading
from importlib.metadata import EntryPoint
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

NAME = "fedlib-forked"
# What notebooks import that takes time. None of it may start a thread or run an operation of torch when imported.
WARM = [
    "fedlib.workbook.kernels", "fedlib.cli", "matplotlib.backends.backend_agg", "IPython.core.pylabtools",
    "PIL.PngImagePlugin", "ipykernel.kernelapp", "ipykernel.ipkernel", "torch", "pandas", "scipy.stats",
    "scipy.optimize", "seaborn", "fedlib.runs.engine", "fedlib.workbook.paper", "fedlib.workbook.plots",
    "fedlib.workbook.claims", "fedlib.workbook.page",
]  # fmt: skip


def use_forked_kernels() -> None:
    """Let this process fork its kernels from now on. Linux only: macOS's frameworks do not survive a bare fork."""
    if sys.platform == "linux":
        factory = KernelProvisionerFactory.instance()
        factory.provisioners[NAME] = EntryPoint(NAME, f"{__name__}:ForkedKernel", factory.GROUP_NAME)
        factory.default_provisioner_name = NAME
        multiprocessing.set_forkserver_preload(WARM)


def pytest_configure() -> None:
    """The same as a plugin of pytest, in each of its workers: ``pytest -p fedlib.workbook.kernels --nbval``."""
    use_forked_kernels()


class ForkedKernel(LocalProvisioner):
    """Starts Python kernels by forking; any other, and all if the warm process does not start, as it is usual."""

    async def launch_kernel(self, cmd: list[str], **options):
        if cmd[:3] == [sys.executable, "-m", "ipykernel_launcher"] and options.keys() <= {"env", "cwd", *STREAMS}:
            streams = {number: Stream(options[name]) for name, number in STREAMS.items() if options.get(name)}
            cwd = options.get("cwd") or os.getcwd()
            process = Process(target=serve, args=(cmd[3:], options["env"], cwd, streams), name="kernel")
            try:
                process.start()
            except (OSError, EOFError):  # there is no warm process: it was killed just now, or an import failed
                pass
            else:
                self.process, self.cwd = process, cwd
                self.pid = self.pgid = process.pid  # it makes itself the leader of a group
                return self.connection_info
        return await super().launch_kernel(cmd, **options)


class Process(ForkServerProcess):
    """A forked process, as jupyter_client knows those of subprocess."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


STREAMS = {"stdout": 1, "stderr": 2}


class Stream:
    """An open file on its way to a forked process, where its number arrives."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return DupFd(self.file.fileno()).detach, ()


def serve(argv: list[str], environment: dict[str, str], cwd: str, streams: dict) -> None:
    """In the forked process: be an IPython kernel until told to stop, or until either parent is gone."""
    os.setsid()  # Ctrl-C is for the process that asked for the kernel
    for number, given in streams.items():
        os.dup2(given, number)
    os.environ.clear()
    # ipykernel watches who forked it. Who asked is watched here: the warm process lives as long as any of us.
    os.environ.update(environment, JPY_PARENT_PID=str(os.getppid()))
    threading.Thread(target=_follow, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.chdir(cwd)
    sys.argv = ["ipykernel_launcher.py", *argv]

    import matplotlib
    import numpy
    from ipykernel.kernelapp import IPKernelApp

    numpy.random.seed()  # or all kernels would draw the same
    # As matplotlib does when it is imported in a kernel.
    matplotlib.rcParams["backend"] = os.environ.get("MPLBACKEND") or "module://matplotlib_inline.backend_inline"
    IPKernelApp.launch_instance(argv)


def _follow(parent) -> None:
    parent.join()
    os._exit(1)
