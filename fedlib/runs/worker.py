"""Processes that make runs, one after the other: they say in plain words how each went, and die with their driver.

Nothing heavy is imported up here: a worker's first act is to see whether its driver is still there.
"""

import ctypes
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

NAME = "fedlib worker"
UNGUARDED = 75  # exit code of a worker that found itself in a script which starts workers when it is imported
SPAWN = get_context("spawn")  # a forked child would share torch's threads


class Worker:
    """The driver's side of one worker. Start it within ``signals_held``."""

    def __init__(self, card: str | None = None):
        self.pipe, theirs = SPAWN.Pipe()
        self.process, self.card = SPAWN.Process(target=work, args=(theirs, os.getpid()), name=NAME), card
        with sees_only(card):
            self.process.start()
        theirs.close()
        self.ready, self.rounds, self.seen = False, 0, 0.0
        self.spec: Any = None  # what it makes

    def begin(self, spec: Any, store: Any, deadline: float | None, now: float) -> None:
        self.spec, self.rounds, self.seen = spec, 0, now
        with suppress(OSError):  # it has just died, which its next look will tell
            self.pipe.send((spec, store, deadline))

    def look(self, now: float, limit: float) -> tuple:
        """("working",), or how its run ended, as ``attempt`` says, or ("unready", exit code) if it never began.

        ``now`` and ``limit`` are seconds: a run that has not finished a round for so long stands still.
        """
        alive = self.process.is_alive()
        try:
            while self.pipe.poll():
                what, *more = self.pipe.recv()
                self.ready, self.seen = True, now
                if what == "round":
                    self.rounds = more[0]
                elif what != "ready":
                    return what, *more
        except (EOFError, OSError):
            alive = False
        if alive and now - self.seen <= limit:
            return ("working",)
        if alive:
            within = f"{limit / 60:.0f} minutes" if limit >= 120 else f"{limit:.0f} seconds"
            return "failed", f"no round was finished within {within}", "again"
        self.process.join(1)
        code = self.process.exitcode
        if code and code > 0 and not self.ready:
            return "unready", code
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended, exit code {code}"
        killed = code == -signal.SIGKILL
        return "failed", f"its process {how}{', perhaps out of memory' * killed}", "alone" if killed else "again"

    def end(self) -> None:
        """Kill it. It has nothing to tidy up: what it writes is whole or not there, its locks end with it."""
        self.process.kill()
        self.process.join(5)
        self.pipe.close()


@contextmanager
def sees_only(card: str | None) -> Iterator[None]:
    """A process that is started here sees this card only, before anything in it starts CUDA; None changes nothing."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if card is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = card
    try:
        yield
    finally:
        if card is not None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


@contextmanager
def signals_held() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait. A process that is started here has them held until it is ready to deal with them."""
    resource_tracker.ensure_running()  # else it starts within, and then lets them go
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """SIGTERM ends the process as Ctrl-C does, through every ``finally``, unless somebody handles it already."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def follow(driver: int) -> None:
    """Die with the driver."""

    def watch():
        while os.getppid() == driver:
            time.sleep(1)
        os._exit(1)

    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1  # needs no thread of ours, so it also ends a process that was stopped or keeps the GIL
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()


def call(module: str, function: str, *arguments: str, seconds: float) -> tuple[int | None, str]:
    """Call a function in a process group of its own, which is killed when it returns or the time is up.

    Its exit code, 0 or 2 for a FedlibError, with the last line it wrote to stderr; None and a reason without an end.
    """
    code = f"from fedlib.runs.worker import called; called({os.getpid()}, {module!r}, {function!r}, {arguments!r})"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile("w+", errors="replace") as words:
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=words, start_new_session=True,
        )  # fmt: skip
        try:
            ended = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None, f"it did not end within {seconds:.0f} seconds"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        words.seek(0)
        last = (words.read().strip().splitlines() or [""])[-1]
    return ended, last


def called(driver: int, module: str, function: str, arguments: tuple) -> None:
    """The other side of ``call``: one process works, its parent only sees to it that the group dies with the driver."""
    if child := os.fork():
        while os.getppid() == driver:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)
            time.sleep(0.1)
        os.killpg(0, signal.SIGKILL)
    from fedlib.core.errors import FedlibError, in_words

    code = 0
    try:
        getattr(importlib.import_module(module), function)(*arguments)
    except BaseException as error:
        code = 2 if isinstance(error, FedlibError) else 1
        while error.__cause__:
            error = error.__cause__
        print(f"\n{in_words(error)}", file=sys.stderr, flush=True)
    os._exit(code)  # whatever threads are left


def importing_script() -> bool:
    """Whether this is a worker that is still importing the script which started it."""
    return current_process().name == NAME and parent_process() is None


def work(pipe: Connection, driver: int) -> None:
    """The worker's side: one thread, Ctrl-C is left to the driver, runs come in and how they ended goes out."""
    follow(driver)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    from fedlib.runs.processes import attempt, failed

    torch.set_num_threads(1)  # something may have imported torch before
    pipe.send(("ready",))
    while True:
        try:
            spec, store, deadline = pipe.recv()
            ended = attempt(spec, store, lambda done: pipe.send(("round", done)), deadline)
        except EOFError:
            os._exit(0)
        except BaseException as error:  # a Ctrl-C of its own, or a run whose class is not known here
            ended = failed(error)
        with suppress(Exception):  # the driver ends a worker by killing it, so nothing may be left in a buffer
            sys.stdout.flush()
        pipe.send(ended)
