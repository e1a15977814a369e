"""Many runs: only what the store lacks is trained, in parallel worker processes of one thread each."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.managers import SyncManager

from tqdm import tqdm

from fedlib.errors import FedlibError
from fedlib.measures import Measure
from fedlib.spec import RunSpec
from fedlib.store import Record, Store, default_store


def run(specs, jobs: int | None = None, store: Store | None = None, scale: str | None = None, progress: bool = True):
    """The records of ``specs`` (a dict, a list or one run or measurement), in the same shape. Missing ones are made.

    With FEDLIB_TRAIN=0 a missing run raises instead. FEDLIB_JOBS sets the default number of workers.
    """
    if isinstance(specs, (RunSpec, Measure)):
        return run([specs], jobs, store, scale, progress)[0]
    store = store or default_store(scale)
    wanted = list(specs.values() if isinstance(specs, Mapping) else specs)
    todo = missing(wanted, store)
    if todo and os.environ.get("FEDLIB_TRAIN") == "0":
        raise FedlibError(
            f"{len(todo)} of {len(wanted)} runs or their probes are not in {store.path} and FEDLIB_TRAIN=0 forbids "
            "training; unset it to train them."
        )
    if todo:
        train_all(todo, jobs or int(os.environ.get("FEDLIB_JOBS", os.cpu_count() or 1)), store, progress)
    if isinstance(specs, Mapping):
        return {name: store.get(spec.id) for name, spec in specs.items()}
    return [store.get(spec.id) for spec in wanted]


def missing(specs, store: Store | None = None) -> list[RunSpec]:
    """The distinct specs without a sound record that has their probes, the longest first."""
    store = store or default_store()
    distinct: dict = {}
    for spec in specs:
        twin = distinct.setdefault(spec.id, spec)
        distinct[spec.id] = twin.also(spec.probes) if spec.probes else twin
    lacking = [spec for spec in distinct.values() if (record := store.find(spec.id)) is None or not record.has(spec)]
    return sorted(lacking, key=estimate, reverse=True)


def run_one(spec: RunSpec, store: Store, on_round=None) -> Record:
    """One run through the store: read if there, else resumed or started, under the lock of its id.

    A record that lacks a probe is run again with all it ever had; the numbers it had must come out again.
    """
    with store.lock(spec.id):
        before = store.find(spec.id)
        if before and before.has(spec):  # another process was faster
            return before
        if before:
            spec = spec.also(before.spec.probes)
        checkpoint = store.checkpoint(spec.id)
        record = spec.perform(checkpoint, on_round)
        if before:
            same_numbers(before, record)
        store.put(record)
        checkpoint.clear()
    return record


def same_numbers(before: Record, record: Record) -> None:
    from fedlib.audit import compare  # late: audits run the engine

    if moved := compare(before, record).moved:
        raise FedlibError(
            f"{record.id}.json was run again to measure {record.spec.probes}, but the numbers moved: {moved}. The old "
            "record was kept; delete it if the new numbers are right."
        )


def train_all(todo: list[RunSpec], jobs: int, store: Store, progress: bool) -> None:
    """Train in worker processes; a worker that dies costs its runs one retry, not the batch."""
    context = multiprocessing.get_context("spawn")
    total = sum(spec.rounds for spec in todo)
    manager = SyncManager(ctx=context)  # a queue of its own process: a killed worker cannot take it down
    manager.start(_initialise)
    with manager, tqdm(total=total, unit="round", disable=not progress, desc="training") as bar:
        done = manager.Queue()
        for attempt in (1, 2):
            try:
                with ProcessPoolExecutor(min(jobs, len(todo)), context, _initialise) as pool:
                    futures = [pool.submit(_work, spec, store, done) for spec in todo]
                    try:
                        _watch(futures, done, bar)
                    except BaseException:
                        pool.shutdown(wait=False, cancel_futures=True)
                        for process in list((pool._processes or {}).values()):
                            process.terminate()
                        raise
                return
            except BrokenProcessPool:
                todo = missing(todo, store)
                if attempt == 2:
                    raise FedlibError(
                        f"Worker processes died twice, {len(todo)} runs are unfinished (out of memory?); what is "
                        "done is kept: run again, perhaps with fewer --jobs."
                    ) from None


def _watch(futures, done, bar) -> None:
    pending = set(futures)
    while pending:
        try:
            for future in as_completed(pending, timeout=0.5):
                pending.discard(future)
                future.result()
        except TimeoutError:
            pass
        while not done.empty():
            bar.update(done.get())


def _initialise() -> None:
    """A helper process has one thread, leaves Ctrl-C to the driver, and does not outlive it."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(1)
    os._exit(1)


def _work(spec: RunSpec, store: Store, done) -> None:
    seen = 0

    def on_round(number: int) -> None:
        nonlocal seen
        done.put(number - seen)
        seen = number

    run_one(spec, store, on_round)


def estimate(spec: RunSpec | Measure) -> float:
    """Seconds a run may take on one core: its samples at the speed of its model, measured once on one machine."""
    if isinstance(spec, Measure):
        return spec.estimate()
    from fedlib.data import DATASETS

    train_size, test_size = DATASETS.make(spec.dataset).sizes
    samples = (spec.subset or train_size) * spec.cohort / spec.clients * spec.local_epochs
    samples *= 1 - spec.stragglers * (spec.local_epochs - 1) / (2 * spec.local_epochs)
    tests = (spec.test_subset or test_size) / spec.eval_every / 3  # a forward pass is a third of a step
    tests *= spec.scored_models
    step, sample = model_cost(spec)
    seconds = spec.rounds * (samples * (sample + step / spec.batch_size) + tests * sample)
    return seconds + probes_work(spec, spec.subset or train_size, spec.test_subset or test_size) * sample


def probes_work(spec: RunSpec, train_size: int, test_size: int) -> float:
    """What all measurements of a run's probes take, in training samples."""
    if spec.probes is None:
        return 0.0
    from fedlib.probes import parts

    times = {p: sum(p.due(n, spec.rounds) for n in range(1, spec.rounds + 1)) for p in parts(spec.probes)}
    return sum(count * p.work(spec, train_size, test_size) for p, count in times.items())


def model_cost(spec: RunSpec) -> tuple[float, float]:
    """(seconds per step, seconds per sample): 50 us for every parameter tensor, and arithmetic at 40 GFLOP/s.

    Both fitted to benchmarks/training.py on one core; a guide for planning, not a promise.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from fedlib.data import DATASETS
    from fedlib.models import MODELS

    entry = DATASETS.make(spec.dataset)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = MODELS.make(spec.model).build(entry.shape, len(entry.class_names))
        model(torch.empty(2, *entry.shape))
    layers = sum(1 for _ in model.parameters())
    return 5e-5 * layers, 3 * counter.get_total_flops() / 2 / 4e10
