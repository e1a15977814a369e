"""Many runs: only what the store lacks is trained, in parallel worker processes of one thread each."""

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from filelock import Timeout
from tqdm import tqdm

from fedlib import environment
from fedlib.errors import FedlibError, quoted
from fedlib.measures import Measure
from fedlib.spec import RunSpec
from fedlib.store import Record, Store, default_store

BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} rounds [{elapsed}{postfix}]"
_tell = None  # in a worker: says how many rounds of its run are done


def run(
    specs, jobs: int | None = None, store: Store | str | None = None, scale: str | None = None, progress: bool = True,
    engine=None,
):  # fmt: skip
    """The records of ``specs`` (a dict, a list or one run or measurement), in the same shape. Missing ones are made.

    With FEDLIB_TRAIN=0 a missing run raises instead. FEDLIB_JOBS sets the default number of workers. ``engine`` trains
    elsewhere than in processes of this machine, such as ``cluster.Ray("auto")``.
    """
    if isinstance(specs, (RunSpec, Measure)):
        return run([specs], jobs, store, scale, progress, engine)[0]
    store = Store(store) if isinstance(store, str | os.PathLike) else store or default_store(scale)
    wanted = list(specs.values() if isinstance(specs, Mapping) else specs if isinstance(specs, Iterable) else [specs])
    if odd := [spec for spec in wanted if not isinstance(spec, RunSpec | Measure)]:
        raise FedlibError(f"fedlib.run takes a RunSpec or Measure, or a list or dict of them; got {quoted(odd[0])}.")
    todo = missing(wanted, store)
    if todo and not environment.may_train():
        raise FedlibError(
            f"{len(todo)} of {len(wanted)} runs or their probes are not in {store.path} and FEDLIB_TRAIN=0 forbids "
            "training; unset it to train them."
        )
    if todo:
        jobs = jobs or environment.jobs()
        (engine or train_all)(todo, jobs, store, progress)
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


def run_one(spec: RunSpec, store: Store, on_round=None, patience: float = -1) -> Record:
    """One run through the store: read if there, else resumed or started, under the lock of its id.

    Where another process is making it, ``patience`` says for how many seconds to wait (-1: as long as it takes).
    """
    with store.lock(spec.id, patience):
        before = store.find(spec.id)
        if before and before.has(spec):  # another process was faster
            return before
        checkpoint = store.checkpoint(spec.id)
        record = complete(spec, before).perform(checkpoint, on_round)
        keep(record, before, store)
        checkpoint.clear()
    return record


def complete(spec: RunSpec, before: Record | None) -> RunSpec:
    """A record that lacks a probe is run again with all it ever had."""
    return spec.also(before.spec.probes) if before else spec


def keep(record: Record, before: Record | None, store: Store) -> None:
    """Write a record; the numbers of the one before it, if any, must have come out again."""
    from fedlib.audit import compare  # late: audits run the engine

    if before and (moved := compare(before, record).moved):
        raise FedlibError(
            f"{record.id}.json was run again to measure {record.spec.probes}, but the numbers moved: {moved}. The old "
            "record was kept; delete it if the new numbers are right."
        )
    store.put(record)


def train_all(todo: list[RunSpec], jobs: int, store: Store, progress: bool) -> None:
    """Train in worker processes, in the order given. A worker that dies costs its run one retry, not the batch."""
    context = multiprocessing.get_context("spawn")
    rounds = context.RawArray("q", jobs)  # done of the run a worker is at; no lock, which a dying worker might hold

    def worker(k: int) -> ProcessPoolExecutor:  # of one process, so that it is known which run a dead worker was at
        return ProcessPoolExecutor(1, context, _begin, (rounds, k))

    waiting, running, deaths = deque(todo), {}, Counter()
    idle = {k: worker(k) for k in range(min(jobs, len(todo)))}
    cost, done = {spec: estimate(spec) for spec in todo}, {}
    with tqdm(total=sum(s.rounds for s in todo), desc="training", bar_format=BAR, disable=not progress) as bar:
        try:
            while waiting or running:
                for k in list(idle)[: len(waiting)]:
                    try:
                        running[idle[k].submit(_train, waiting[0], store)] = waiting[0], k, idle[k]
                        waiting.popleft(), idle.pop(k)
                    except BrokenProcessPool:  # it died between two runs
                        idle[k] = worker(k)
                for future in wait(running, 0.5, FIRST_COMPLETED).done:
                    spec, k, idle[k] = running.pop(future)
                    rounds[k] = 0
                    try:
                        if future.result():
                            done[spec] = spec.rounds
                        else:  # another process is at it: see later what became of it
                            waiting.append(spec)
                    except BrokenProcessPool:
                        idle[k] = worker(k)
                        deaths[spec] += 1
                        waiting.extend([spec] if deaths[spec] == 1 else [])
                show(bar, cost, done | {spec: rounds[k] for spec, k, _ in running.values()})
        except BaseException:
            for pool in [*idle.values(), *(pool for _, _, pool in running.values())]:
                for process in list((pool._processes or {}).values()):
                    process.terminate()
            raise
        finally:
            for pool in idle.values():
                pool.shutdown()
    if lost := [spec.id for spec, times in deaths.items() if times > 1]:
        raise FedlibError(
            f"The workers of {len(lost)} runs died twice, perhaps out of memory: {', '.join(lost)}. All others are "
            "done and kept: give the same command again, with fewer --jobs if memory was short."
        )


def show(bar: tqdm, cost: dict[RunSpec, float], rounds: dict[RunSpec, int]) -> None:
    """Rounds done of all runs; the time left goes by what runs are estimated to cost, since the longest come first."""
    bar.n = sum(rounds.values())
    share = sum(cost[spec] * n / spec.rounds for spec, n in rounds.items()) / sum(cost.values())
    left = bar.format_interval(bar.format_dict["elapsed"] * (1 / share - 1)) if share and not bar.disable else "?"
    bar.set_postfix_str(f"about {left} left")


def _begin(rounds, k: int) -> None:
    """A worker has one thread, leaves Ctrl-C to the driver, and does not outlive it."""
    global _tell
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)  # something may have imported torch before
    _tell = functools.partial(rounds.__setitem__, k)


def _follow(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(1)
    os._exit(1)


def _train(spec: RunSpec, store: Store) -> bool:
    """Whether the run is done; False if another process is at it."""
    try:
        run_one(spec, store, _tell, patience=1)
    except Timeout:
        return False
    return True


# Seconds for every parameter tensor of a step, and operations a second. Those of a core are fitted to
# benchmarks/training.py; those of a GPU are a rule of thumb (kernels to launch, a tenth of what a recent card can do).
SPEEDS = {"cpu": (5e-5, 4e10), "cuda": (1.5e-4, 5e12)}
START = 0.1  # seconds before the first round and after the last: data, partition, record


def estimate(spec: RunSpec | Measure, device: str = "cpu") -> float:
    """Seconds a run may take on one core, or on a GPU: its samples at the speed of its model. A guide, no promise."""
    if isinstance(spec, Measure):
        return spec.estimate()
    from fedlib.data import DATASETS

    train_size, test_size = DATASETS.make(spec.dataset).sizes
    samples = (spec.subset or train_size) * spec.cohort / spec.clients * spec.local_epochs
    samples *= 1 - spec.stragglers * (spec.local_epochs - 1) / (2 * spec.local_epochs)
    samples += server_work(spec)
    tests = (spec.test_subset or test_size) / spec.eval_every / 3  # a forward pass is a third of a step
    tests *= spec.scored_models
    tensors, operations = model_cost(spec.model, spec.dataset)
    step, sample = tensors * SPEEDS[device][0], operations / SPEEDS[device][1]
    seconds = START + spec.rounds * (samples * (sample + step / spec.batch_size) + tests * sample)
    return seconds + probes_work(spec, spec.subset or train_size, spec.test_subset or test_size) * sample


def server_work(spec: RunSpec) -> float:
    """What the server's passes over its proxy set take in a round, in training samples."""
    from fedlib.algorithms import Algorithm
    from fedlib.algorithms.proxy import OnProxy
    from fedlib.data.proxy import PROXIES

    passes = sum(p.chosen.epochs for p in Algorithm(spec.algorithm).servers if isinstance(p, OnProxy))
    return passes * PROXIES.make(spec.proxy).size if passes else 0.0


def probes_work(spec: RunSpec, train_size: int, test_size: int) -> float:
    """What all measurements of a run's probes take, in training samples."""
    if spec.probes is None:
        return 0.0
    from fedlib.probes import parts

    times = {p: sum(p.due(n, spec.rounds) for n in range(1, spec.rounds + 1)) for p in parts(spec.probes)}
    return sum(count * p.work(spec, train_size, test_size) for p, count in times.items())


@functools.cache
def model_cost(model: str, dataset: str) -> tuple[int, float]:
    """(parameter tensors, floating-point operations to train on one sample)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from fedlib.data import DATASETS
    from fedlib.models import made

    entry = DATASETS.make(dataset)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        net = made(model, entry.shape, len(entry.class_names))
        net(torch.empty(2, *entry.shape))
    layers = sum(1 for _ in net.parameters())
    return layers, 3 * counter.get_total_flops() / 2
