"""The same plan on a Ray cluster: every run is one Ray task, its record comes back and is written here, by the driver.

Ray decides where and when a run is trained and does it again if its node dies. The nodes need fedlib and the data
sets, but no store.
"""

from dataclasses import dataclass

from tqdm import tqdm

from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.runs.engine import BAR, complete, estimate, keep, show
from fedlib.runs.store import Record, Store


@dataclass(frozen=True)
class Ray:
    """An engine for ``fedlib.run``."""

    address: str = "auto"  # of the cluster, such as 10.0.0.1:6379; auto is the one this machine is part of
    gpus: float = 0.0  # what a run gets of a GPU: with 0.25, four runs share one

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
        try:
            ray.init(self.address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            why = str(error).partition("\n")[0].rstrip(".")
            raise FedlibError(f"No Ray cluster answers at {self.address}: {why}. 'ray start' starts one.") from None
        before = {spec: store.find(spec.id, spec) for spec in todo}
        cost, done, lost = {spec: estimate(spec) for spec in todo}, {}, []
        bar = tqdm(total=sum(s.rounds for s in todo), desc="training", bar_format=BAR, disable=not progress)
        try:
            task = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=3)(_perform)
            pending = {task.remote(complete(spec, before[spec])): spec for spec in todo}
            while pending:
                for ref in ray.wait(list(pending), timeout=1)[0]:
                    spec = pending.pop(ref)
                    try:
                        record = Record(ray.get(ref))
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from None
                    except ray.exceptions.RayError:  # its worker or node died every time
                        lost.append(spec.id)
                        continue
                    if record.id != spec.id:
                        raise FedlibError(f"A node made {record.id} of {spec.id}: install the same fedlib everywhere.")
                    keep(record, before[spec], store)
                    done[spec] = spec.rounds
                show(bar, cost, done)
        finally:  # which ends the tasks that are still running, too
            bar.close()
            ray.shutdown()
        if lost:
            raise FedlibError(f"{len(lost)} runs were lost with their nodes, four times each: {', '.join(lost)}.")


def _perform(spec: RunSpec) -> dict:
    return spec.perform().json
