"""The same plan on a Ray cluster: every run is one Ray task, its record comes back and is written here, by the driver.

Ray decides where and when a run is trained and does it again if its node dies. On the node the run has a process of its
own, as it has without Ray, so that whatever it does costs no other run. The nodes need fedlib and the data sets, but no
store.
"""

import logging
import os
import socket
import tempfile
import time
from dataclasses import dataclass

from fedlib.core.errors import FedlibError, in_words
from fedlib.core.spec import RunSpec
from fedlib.runs.execute import complete, keep
from fedlib.runs.processes import PATIENCE, SHARE, Bar, longest_wait, report, train_apart
from fedlib.runs.record import Record
from fedlib.runs.store import Store
from fedlib.runs.worker import call

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report its use elsewhere


@dataclass(frozen=True)
class Ray:
    """An engine for ``fedlib.run``."""

    address: str = "auto"  # of the cluster, such as 10.0.0.1:6379; auto is the one this machine is part of
    gpus: float | None = None  # what a run gets of a GPU; None is a quarter where the cluster has any, else nothing
    stall: float | None = None  # seconds that a run may go without finishing a round, if not what its size suggests

    def __call__(
        self, todo: list[RunSpec], jobs: int, store: Store, progress: bool, deadline: float | None = None
    ) -> None:
        """Train everything; how many ``jobs`` run at once is up to the cluster."""
        if deadline is not None:
            raise FedlibError("Runs on a Ray cluster have no checkpoints to stop at: leave out the hours.")
        try:
            import ray
        except ImportError:
            raise FedlibError("The engine ray needs the package ray: pip install -e '.[ray]' in the clone.") from None
        connect(self.address)
        gpus = self.share_of(ray.cluster_resources())
        before = {spec: store.find(spec.id, spec) for spec in todo}
        failures = {}
        with Bar(todo, progress) as bar:
            try:
                task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=3)(perform)
                limits = {spec: self.stall or longest_wait(spec) for spec in todo}
                pending = {task.remote(complete(spec, before[spec]), limits[spec]): spec for spec in todo}
                fitted = time.monotonic()
                while pending:
                    for ref in ray.wait(list(pending), timeout=1)[0]:
                        spec = pending.pop(ref)
                        try:
                            receive(spec, ray.get(ref), before[spec], store)
                            bar.show(spec, spec.rounds)
                        except Exception as error:  # ours, a node's, or one that cannot even be read here
                            failures[spec] = on_node(error)
                    has = ray.cluster_resources()
                    if has.get("CPU", 0) >= 1 and has.get("GPU", 0) >= gpus:
                        fitted = time.monotonic()
                    elif time.monotonic() - fitted > PATIENCE:
                        raise FedlibError(f"No node of the cluster has a processor and {gpus:g} GPUs for a run.")
            finally:  # which ends the tasks that are still running, too
                ray.shutdown()
        report(failures, todo)

    def share_of(self, resources: dict) -> float:
        """What a run gets of a GPU on a cluster with these; without a share Ray would hide its GPUs from the run."""
        return self.gpus if self.gpus is not None else SHARE if resources.get("GPU") else 0.0


def connect(address: str, seconds: float = 60) -> None:
    """Connect to the cluster, or say why not: Ray itself may wait for ever, so it is tried in another process first."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    try:
        if host and port.isdigit():
            socket.create_connection((host, int(port)), timeout=5).close()
        code, why = call("fedlib.runs.ray", "init", address, seconds=seconds)
        if code != 0:
            raise ConnectionError(why)
        init(address)
    except Exception as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise FedlibError(f"No Ray cluster answers at {address}: {why}. 'ray start' starts one.") from None


def init(address: str) -> None:
    import ray

    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)


def perform(spec: RunSpec, limit: float) -> dict | str:
    """On a node: the record of a run, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        failures = train_apart({spec: limit}, [None], Store(folder), lambda spec, rounds: None)
        record = Store(folder).get(spec.id)
        return record.json if record and not failures else failures.get(spec, "it left no record")


def receive(spec: RunSpec, made: dict | str, before: Record | None, store: Store) -> None:
    if isinstance(made, str):
        raise FedlibError(made)
    record = Record(made)
    if record.id != spec.id:
        raise FedlibError(f"a node made {record.id} of it: install the same fedlib everywhere")
    with store.lock(spec.id):
        keep(record, before, store)


def on_node(error: Exception) -> str:
    """What happened: where a task raised, Ray's error holds all of the node's traceback."""
    from ray.exceptions import RayTaskError

    return str(error).strip().splitlines()[-1] if isinstance(error, RayTaskError) else in_words(error)
