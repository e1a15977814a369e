"""A Ray cluster makes the records that processes make, even if it loses a node on the way."""

import threading
import time

import pytest
from test_crash import LONG, numbers

from fedlib.core.errors import FedlibError
from fedlib.runs.engine import run
from fedlib.runs.ray import Ray
from fedlib.runs.store import Store

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")


def test_two_nodes_one_killed_half_way(tmp_path):
    from ray.cluster_utils import Cluster

    specs = [LONG.replace(seed=seed) for seed in range(6)]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    store = Store(tmp_path / "ray")

    def kill():
        while len(store.ids()) < 2:
            time.sleep(0.05)
        cluster.remove_node(nodes[0], allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        records = run(specs, store=store, progress=False, engine=Ray(cluster.address))
    finally:
        killer.join(timeout=30)
        cluster.shutdown()
    assert not killer.is_alive(), "a node died while runs were left"
    processes = run(specs, store=Store(tmp_path / "processes"), progress=False)
    assert [numbers(r) for r in records] == [numbers(r) for r in processes]


def test_no_cluster_is_one_sentence(tmp_path):
    with pytest.raises(FedlibError, match="No Ray cluster answers at 127.0.0.1:1: "):
        run([LONG], store=Store(tmp_path), engine=Ray("127.0.0.1:1"))
