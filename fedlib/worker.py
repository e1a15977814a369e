"""A process that makes runs, one after the other: it says in plain words how each went, and it dies with its driver.

Nothing heavy is imported up here: a worker's first act is to see whether its driver is still there.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from multiprocessing import current_process, get_context, parent_process, resource_tracker

NAME = "fedlib worker"
UNGUARDED = 75  # exit code of a worker that found itself in a script which starts workers when it is imported
SPAWN = get_context("spawn")  # a forked child would share torch's threads


class Worker:
    """The driver's side of one worker. Start it within ``signals_held``."""

    def __init__(self):
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=work, args=(theirs, os.getpid()), name=NAME)
        self.process.start()
        theirs.close()
        self.ready, self.spec, self.rounds, self.seen = False, None, 0, 0.0

    def begin(self, spec, store, now: float) -> None:
        self.spec, self.rounds, self.seen = spec, 0, now
        with suppress(OSError):  # it has just died, which its next look will tell
            self.pipe.send((spec, store))

    def look(self, now: float, limit: float) -> tuple:
        """("working",), or how its run ended, as ``engine.attempt`` says, or ("unready", exit code) if it never began.

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
            return "failed", f"no round was finished within {within}", True
        self.process.join(1)
        code = self.process.exitcode
        if code and code > 0 and not self.ready:
            return "unready", code
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended, exit code {code}"
        hint = ", perhaps out of memory: fewer --jobs" if code == -signal.SIGKILL else ""
        return "failed", f"its process {how}{hint}", True

    def end(self) -> None:
        """Kill it. It has nothing to tidy up: what it writes is whole or not there, its locks end with it."""
        self.process.kill()
        self.process.join(5)
        self.pipe.close()


@contextmanager
def signals_held():
    """Ctrl-C and SIGTERM wait. A process that is started here has them held until it is ready to deal with them."""
    resource_tracker.ensure_running()  # else it starts within, and then lets them go
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sigterm_unwinds():
    """SIGTERM ends the process as Ctrl-C does, through every ``finally``, unless somebody handles it already."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def follow(driver: int, group: bool = False) -> None:
    """Die with the driver: this process at once, or within a second all of its group."""

    def end():
        os.killpg(0, signal.SIGKILL) if group else os._exit(1)

    def watch():
        while os.getppid() == driver:
            time.sleep(1)
        end()

    if sys.platform == "linux" and not group:
        PR_SET_PDEATHSIG = 1  # also ends a process that has been stopped
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:
        end()
    threading.Thread(target=watch, daemon=True).start()


def importing_script() -> bool:
    """Whether this is a worker that is still importing the script which started it."""
    return current_process().name == NAME and parent_process() is None


def work(pipe, driver: int) -> None:
    """The worker's side: one thread, Ctrl-C is left to the driver, runs come in and how they ended goes out."""
    follow(driver)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    from fedlib.engine import attempt, failed

    torch.set_num_threads(1)  # something may have imported torch before
    pipe.send(("ready",))
    while True:
        try:
            spec, store = pipe.recv()
            ended = attempt(spec, store, lambda done: pipe.send(("round", done)))
        except EOFError:
            os._exit(0)
        except BaseException as error:  # a Ctrl-C of its own, or a run whose class is not known here
            ended = failed(error)
        with suppress(Exception):  # the driver ends a worker by killing it, so nothing may be left in a buffer
            sys.stdout.flush()
        pipe.send(ended)
