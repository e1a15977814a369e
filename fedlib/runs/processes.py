"""Many runs in parallel worker processes of one thread each; whatever a run does costs that run."""

import os
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from filelock import Timeout
from tqdm import tqdm

from fedlib.core.device import cards
from fedlib.core.errors import FedlibError, cause, in_words
from fedlib.core.spec import Measure, RunSpec
from fedlib.runs.compare import label
from fedlib.runs.estimate import estimate, longest_round
from fedlib.runs.execute import run_one
from fedlib.runs.store import Store
from fedlib.runs.worker import UNGUARDED, Worker, importing_script, signals_held, sigterm_unwinds

PATIENCE = 600.0  # seconds that any run may take for a round; one with long rounds has twenty times its estimate
SHARE = 0.25  # of a card for a run, if nobody says otherwise: the networks of these papers leave most of one idle
NO_MEMORY = "OutOfMemoryError", "can't allocate memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED"  # torch's
NOT_READY = (
    "No worker process gets ready (exit code {0}). A script that trains in several processes is imported by each of "
    "them, so it must call fedlib.run under 'if __name__ == \"__main__\":', or with jobs=1."
)
ONE_BY_ONE = "Trained one after the other in this process: "
NO_GUARD = ONE_BY_ONE + (
    "worker processes import the script, so call fedlib.run under 'if __name__ == \"__main__\":' to train in several."
)
SESSION = ONE_BY_ONE + (
    "{0} is defined in this session, which worker processes do not see. Put it into a file and name that in "
    "FEDLIB_PLUGINS to train in several."
)


def train_all(
    todo: list[RunSpec], jobs: int, store: Store, progress: bool, deadline: float | None = None,
    stall: float | None = None, gpus: float | None = None,
) -> None:  # fmt: skip
    """Train in ``jobs`` processes, or in this one if that is enough. A failure costs its run; the end names them all.

    After ``deadline`` (as time.time() counts) no run is begun any more, and those at work stop at the end of a round.
    ``stall`` is how many seconds a run in a process may go without finishing a round, if not what its size suggests.
    ``gpus`` is what a run gets of a card, a quarter if not given; where there are cards, no more processes start.
    """
    if importing_script():
        os._exit(UNGUARDED)
    places = share_out(min(jobs, len(todo)), gpus)
    with Bar(todo, progress) as bar:
        try:
            why = "" if min(len(places), len(todo)) > 1 else "one process is enough"
            if not why and (own := next(filter(None, map(of_session, todo)), "")):
                warnings.warn(why := SESSION.format(own), stacklevel=2)
            try:
                limits = {} if why else {spec: stall or longest_wait(spec) for spec in todo}
                failures = None if why else train_apart(limits, places, store, bar.show, deadline)
            except Unguarded:
                warnings.warn(NO_GUARD, stacklevel=2)
                failures = None
            if failures is None:
                failures = train_here(todo, store, bar.show, deadline)
        finally:
            store.tidy()
    report(failures, todo)


def share_out(jobs: int, gpus: float | None) -> list[str | None]:
    """The card of each of at most ``jobs`` processes, card by card in turn; None where this machine has no cards."""
    found: list[str | None] = [*cards()]
    if gpus is not None and not found:
        raise FedlibError("There is no CUDA device here of which a run could get a share: leave out gpus.")
    if gpus is not None and not 0 < gpus <= 1:
        raise FedlibError(
            f"gpus is what a run gets of a card: more than 0, at most 1; got {gpus:g}. FEDLIB_DEVICE=cpu keeps "
            "runs on the processor."
        )
    return (found * int(1 / (gpus or SHARE) + 1e-9) or [None] * jobs)[:jobs]


class Unguarded(Exception):
    """The script that trains would train again when a worker imports it."""


def of_session(spec: RunSpec | Measure) -> str:
    """What of a run only this process knows, since it was defined in a notebook or at a prompt; else nothing."""
    script = getattr(sys.modules["__main__"], "__file__", None) or ""  # which workers import; of stdin it is no file
    if Path(script).is_file() or isinstance(spec, Measure):
        return ""
    return next((thing.name for thing in spec.components() if isinstance(thing.revision, str) and _typed(thing)), "")


def _typed(thing: Any) -> bool:
    module = type(thing).__module__
    return module.partition(".")[0] != "fedlib" and not hasattr(sys.modules.get(module), "__revision__")


def report(failures: dict[RunSpec, str], todo: list[RunSpec]) -> None:
    """Raise one error that names every failed run and why it failed, if any did."""
    lines = [f"{spec.id} ({label(spec)}) failed: {why.rstrip('.')}." for spec, why in failures.items()]
    if lines and len(todo) == 1:
        raise FedlibError(lines[0])
    if lines:
        kept = "all others are done and kept, and the same command tries these again"
        raise FedlibError("\n".join([f"{len(lines)} of {len(todo)} runs failed; {kept}:", *lines]))


def longest_wait(spec: RunSpec | Measure) -> float:
    """Seconds for which a run may finish no round before it is taken to stand still."""
    return max(PATIENCE, 20 * longest_round(spec))


def train_here(
    todo: list[RunSpec], store: Store, show: Callable[[RunSpec, int], Any], deadline: float | None = None
) -> dict[RunSpec, str]:
    """Train in this process, one run after the other; why those failed that did."""
    waiting, failures = deque(todo), {}
    while waiting := still_due(waiting, deadline):
        spec = waiting.popleft()
        ended, *why = attempt(spec, store, partial(show, spec), deadline)
        if ended == "busy":
            waiting.append(spec)
        elif ended == "failed":
            failures[spec] = why[0]
        else:
            show(spec, *why)
    return failures


def still_due(waiting: deque, deadline: float | None) -> deque:
    """Those that may still be begun: after the deadline only measurements, which are short and have no rounds."""
    over = deadline is not None and time.time() >= deadline
    return deque(spec for spec in waiting if isinstance(spec, Measure)) if over else waiting


def train_apart(
    limits: dict[RunSpec, float],
    places: list[str | None],
    store: Store,
    show: Callable[[RunSpec, int], Any],
    deadline: float | None = None,
) -> dict[RunSpec, str]:
    """Train in worker processes, in the order given; why those failed that did.

    ``limits`` says of every run how many seconds it may go without finishing a round, ``places`` of every process
    which card it uses. A run whose process dies or stands still is tried again, once; one that lacks memory when the
    others are done, alone on its card or, without one, here. A failed worker is replaced: who knows what is left in it.
    """
    waiting, tries, failures, unready, lacking, alone = deque(limits), Counter(), {}, 0, [], ""
    workers: list[Worker] = []
    now, last = 0.0, time.monotonic()  # now counts the time that this process was awake: Ctrl-Z is no stall
    with sigterm_unwinds():
        try:
            while (waiting := still_due(waiting, deadline)) or lacking or any(worker.spec for worker in workers):
                if not waiting and not any(worker.spec for worker in workers):
                    waiting, lacking, alone, places = deque(lacking), [], ", then alone", list(dict.fromkeys(places))
                    while workers:
                        workers.pop().end()
                    continue
                workers = [worker for worker in workers if worker.spec or worker.process.is_alive()]
                idle = [worker for worker in workers if not worker.spec]
                while waiting and (idle or len(workers) < len(places)):
                    if not idle:
                        free = Counter(places) - Counter(worker.card for worker in workers)
                        with signals_held():
                            workers.append(Worker(free.most_common(1)[0][0]))
                        idle = workers[-1:]
                    idle.pop().begin(waiting.popleft(), store, deadline, now)
                wait([end for w in workers if w.spec for end in (w.pipe, w.process.sentinel)], 0.5)
                now, last = now + min(time.monotonic() - last, 5), time.monotonic()
                for worker in [worker for worker in workers if worker.spec]:
                    spec = worker.spec
                    ended, *why = worker.look(now, limits[spec])
                    show(spec, why[0] if ended == "done" else worker.rounds)
                    unready = 0 if worker.ready else unready
                    if ended == "working":
                        continue
                    worker.spec = None
                    if ended == "busy":  # another process is at it: see later what became of it
                        waiting.append(spec)
                    if ended in ("done", "busy"):
                        continue
                    worker.end()
                    workers.remove(worker)
                    if ended == "unready":
                        waiting.appendleft(spec)
                        unready += 1
                        if why[0] == UNGUARDED:
                            raise Unguarded
                        if unready == 3:
                            raise FedlibError(NOT_READY.format(*why))
                        continue
                    tries[spec] += 1
                    reason, again = why
                    if again and tries[spec] == 1:
                        (lacking if again == "alone" else waiting).append(spec)
                    else:
                        failures[spec] = f"tried twice{alone}: {reason}" if tries[spec] > 1 else reason
        finally:
            for worker in workers:
                worker.process.kill()
            for worker in workers:
                worker.end()
    return failures


def attempt(spec: RunSpec, store: Store, on_round: Callable[[int], Any], deadline: float | None = None) -> tuple:
    """Make one run: ("done", rounds), ("busy",) if another process is at it, ("failed", why, whether to try again:
    "again", "alone" or not at all)."""
    try:
        record = run_one(spec, store, on_round, patience=1, deadline=deadline)
    except Timeout:
        return ("busy",)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return failed(error)
    return "done", record.rounds_done if isinstance(spec, RunSpec) else spec.rounds


def failed(error: BaseException) -> tuple[str, str, str]:
    """What ``attempt`` says of an exception: what it is, where it came from, whether another try may help."""
    why = in_words(error) if isinstance(error, FedlibError) else cause(error)
    memory = isinstance(error, MemoryError) or any(words in why for words in NO_MEMORY)
    return "failed", why + ", out of memory" * memory, "alone" * memory


class Bar(tqdm):
    """Rounds done of all runs, and the time left by what runs are estimated to cost, since the longest come first.

    In a log it is a line a minute.
    """

    monitor_interval = 0  # a thread of tqdm's, which would take Ctrl-C from the main one

    def __init__(self, todo: list[RunSpec], progress: bool):
        # Of one run the rounds say it all, and an estimate costs a second of imports.
        self.cost, self.rounds = {spec: estimate(spec) if len(todo) > 1 else 1.0 for spec in todo}, {}
        self.live = sys.stderr.isatty() or "ipykernel" in type(sys.stderr).__module__
        super().__init__(
            total=sum(spec.rounds for spec in todo), desc="training", disable=not progress, miniters=0,
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} rounds [{elapsed}{postfix}]",
            mininterval=0.1 if self.live else 60,
        )  # fmt: skip

    def show(self, spec: RunSpec, rounds: int) -> None:
        self.rounds[spec] = rounds
        if self.disable:
            return
        share = sum(self.cost[s] * n / s.rounds for s, n in self.rounds.items()) / sum(self.cost.values())
        left = self.format_interval(self.format_dict["elapsed"] * (1 / share - 1)) if share else "?"
        self.set_postfix_str(f"about {left} left", refresh=False)
        self.update(sum(self.rounds.values()) - self.n)

    def display(self, msg: Any = None, pos: Any = None) -> None:
        if self.live:
            super().display(msg, pos)
        else:
            self.fp.write(f"{self}\n")
