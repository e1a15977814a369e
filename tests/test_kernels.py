"""Forked kernels: what an ordinary kernel shows and does, and nothing left behind whoever dies."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import KernelProvisionerFactory
from nbclient import NotebookClient

from fedlib.workbook import kernels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux only")
FEW = [kernels.__name__, "ipykernel.kernelapp", "torch"]  # starts sooner than with all of WARM


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    factory = KernelProvisionerFactory.instance()
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # is restored afterwards
    ordinary = factory.default_provisioner_name
    kernels.use_forked_kernels()
    yield factory
    factory.default_provisioner_name = ordinary


class Kernel:
    """A running kernel to which code can be sent."""

    def __init__(self, **options):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(**options)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str) -> str:
        """What the code prints or, if it fails, the name of the error."""
        told, reply = [], {"content": {"status": "aborted"}}
        while reply["content"]["status"] == "aborted":  # just after an interrupt a kernel drops what waits in its queue
            reply = self.client.execute_interactive(
                code, timeout=60, output_hook=lambda m: told.append(m["content"].get("text", ""))
            )
        return "".join(told).strip() if reply["content"]["status"] == "ok" else reply["content"]["ename"]

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def parent(self) -> int:
        return int(self.run("import os; print(os.getppid())"))

    @property
    def is_forked(self) -> bool:
        return isinstance(self.manager.provisioner.process, kernels.Process)


@pytest.fixture
def start():
    started = []

    def call(**options) -> Kernel:
        started.append(Kernel(**options))
        return started[-1]

    yield call
    for kernel in started:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)


def until(true, seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


PAGE = """\
import os, sys, warnings; print("out"); print("err", file=sys.stderr); os.system("echo from a program")
import matplotlib.pyplot as plt; _ = plt.plot([1, 3, 2])
import seaborn as sns; _ = sns.lineplot(x=[1, 2], y=[2, 1])
import matplotlib; matplotlib.rcParams["figure.dpi"], matplotlib.get_backend(), sys.argv[1:2], sys.path
import pandas as pd; pd.DataFrame({"a": [1.5, None]})
import torch; torch.get_num_threads(), torch.get_default_dtype()
from multiprocessing import get_context; p = get_context("spawn").Process(target=print); p.start(); p.join(); p.exitcode
warnings.warn("careful")
{}["nobody"]"""


def test_a_page_comes_out_as_from_an_ordinary_kernel(forked, tmp_path, monkeypatch):
    def executed() -> list:
        cells = [nbformat.v4.new_code_cell(line, id=str(n)) for n, line in enumerate(PAGE.splitlines())]
        page = nbformat.v4.new_notebook(cells=cells)
        where = {"metadata": {"path": tmp_path}}
        with monkeypatch.context() as changes:
            changes.delenv("PYTEST_CURRENT_TEST")  # with it, ipykernel does not show what programs print
            NotebookClient(page, kernel_name="python3", allow_errors=True, resources=where).execute()
        outputs = [output for cell in page.cells for output in cell.outputs]
        for output in outputs:
            output.pop("traceback", None)  # this and warnings name a temporary file
            output.text = "".join(t for t in output.get("text", "").splitlines(True) if "ipykernel_" not in t)
        return sorted(map(str, outputs))  # stdout and stderr race each other

    warm = executed()
    forked.default_provisioner_name = "local-provisioner"
    assert warm == executed()
    assert "image/png" in str(warm) and "from a program" in str(warm) and "KeyError" in str(warm)


def test_it_has_the_folder_the_environment_and_the_files_it_was_given(start, tmp_path):
    with (tmp_path / "log").open("w") as log:
        kernel = start(cwd=str(tmp_path), env=os.environ | {"GIVEN": "yes"}, stderr=log)
    assert kernel.is_forked
    assert kernel.run("import os; print(os.getcwd(), os.environ['GIVEN'])") == f"{tmp_path} yes"
    kernel.run("import sys; sys.__stderr__.write('beside the channels'); sys.__stderr__.flush()")
    assert until(lambda: "beside the channels" in (tmp_path / "log").read_text())


def test_two_at_once_are_apart(start):
    one, two = start(), start()
    assert one.pid != two.pid and one.parent() == two.parent() != os.getpid()
    draw = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(()).item())"
    assert not set(one.run(draw).split()) & set(two.run(draw).split()), "each draws its own random numbers"
    one.run("x = 1")
    assert two.run("x") == "NameError"


def test_an_error_and_an_interrupt_leave_it_running(start):
    kernel = start()
    assert kernel.run("1 / 0") == "ZeroDivisionError"
    message = kernel.client.execute("import time; print('now', flush=True); time.sleep(60)")
    while kernel.client.get_iopub_msg(timeout=30)["content"].get("text") != "now\n":
        pass
    kernel.manager.interrupt_kernel()
    assert kernel.client.get_shell_msg(timeout=30)["content"]["ename"] == "KeyboardInterrupt"
    assert message and kernel.run("print(6 * 7)") == "42"


def test_a_killed_kernel_is_noticed_and_the_next_one_starts(start):
    kernel = start()
    os.kill(kernel.pid, signal.SIGKILL)
    assert until(lambda: not kernel.manager.is_alive())
    assert start().is_forked


def test_a_stopped_kernel_leaves_nothing(start):
    kernel, other = start(), start()
    child = int(kernel.run("import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"))
    kernel.manager.shutdown_kernel(now=True)
    assert until(lambda: gone(kernel.pid) and gone(child)) and other.run("print(1)") == "1"
    other.manager.shutdown_kernel()
    assert until(lambda: gone(other.pid))


def test_kernels_end_with_the_warm_process_and_a_new_one_is_started(start):
    kernel = start()
    os.kill(kernel.parent(), signal.SIGKILL)
    assert until(lambda: gone(kernel.pid) and not kernel.manager.is_alive())
    multiprocessing.set_forkserver_preload(FEW)
    assert start().run("print(1)") == "1", "in the moment of its death an ordinary kernel takes its place"
    assert until(lambda: start().is_forked)


def test_where_the_warm_process_cannot_start_kernels_are_ordinary(start, tmp_path, monkeypatch, capfd):
    kernel = start()
    os.kill(kernel.parent(), signal.SIGKILL)
    assert until(lambda: gone(kernel.pid))
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    multiprocessing.set_forkserver_preload(["broken"])
    ordinary = start()
    assert not ordinary.is_forked and ordinary.run("print(1)") == "1"


ASKS = """
import os, sys
sys.path.insert(0, {tests!r})
from fedlib.workbook import kernels
from test_kernels import FEW, Kernel
kernels.WARM = FEW
kernels.use_forked_kernels()
kernel = Kernel()
print(kernel.pid, kernel.parent(), kernel.is_forked, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["kernel.run('while True: pass')", "del kernel"])
def test_everything_ends_with_who_asked(end):
    """Who is killed while the kernel computes, or ends without a word to it."""
    code = ASKS.format(tests=str(Path(__file__).parent), end=end)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        pid, server, forked = process.stdout.readline().split()
        assert forked == "True"
        if "while" in end:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        assert process.poll() is not None
    assert until(lambda: gone(int(pid)) and gone(int(server)))
