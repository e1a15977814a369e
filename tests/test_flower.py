"""A method is the same under Flower as in the simulator."""

import os
import subprocess
import sys
import threading

import psutil
import pytest
import torch
from test_engine import until

from fedlib.core.errors import FedlibError
from fedlib.core.spec import Measure

flwr = pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fedlib.core.spec import RunSpec  # noqa: E402
from fedlib.federation.aggregation import aggregate  # noqa: E402
from fedlib.runs.execute import execute  # noqa: E402
from fedlib.runs.flower import Strategy, on_server, simulate  # noqa: E402
from fedlib.runs.worker import call  # noqa: E402

METHODS = ("fedavg", "fedprox(mu=0.1)+awa+lws", "feddisco", "fedadam")


def test_flowers_own_engine_ends_where_the_simulator_does(local_ray):
    found = execute(Measure(f"under_flower(model='mlp(hidden=16)', methods={METHODS!r}, subset=400)")).result
    for method in METHODS:
        assert list(found[method]["apart"]) == ["1", "3"] and max(found[method]["apart"].values()) < 1e-5, method
        assert found[method]["flower"][1:] == pytest.approx(found[method]["fedlib"], abs=0.01), method
    ends = [found[method]["fedlib"][-1] for method in METHODS]
    assert len(set(ends)) > 2, "methods that end alike would prove nothing"
    assert ends[0] > found["fedavg"]["flower"][0] + 0.2, "it learned"


@pytest.fixture
def models():
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # who speaks, which a run would have set
    draw = torch.Generator().manual_seed(0)
    return [{"a.weight": torch.randn(3, 4, generator=draw), "a.bias": torch.randn(3, generator=draw)} for _ in range(4)]


def replies(states, sizes, **more):
    for node, (state, size) in enumerate(zip(states, sizes, strict=True), start=7):
        asked = Message(RecordDict({}), dst_node_id=node, message_type="train")
        numbers = {"num-examples": size} | {name: values[node - 7] for name, values in more.items()}
        content = RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord(numbers)})
        yield Message(content, reply_to=asked)


def test_the_order_of_replies_and_lost_clients_do_not_matter(models):
    start, *clients = models
    got = []
    for turn in (1, -1):
        strategy = Strategy("awa+lws")
        strategy.sent = start
        came = list(replies(clients, [10, 20, 30]))[::turn]
        came.insert(1, Message(Error(0, "lost"), reply_to=Message(RecordDict({}), dst_node_id=1, message_type="train")))
        arrays, metrics = strategy.aggregate_train(1, came)
        got.append(arrays.to_torch_state_dict())
        assert len(metrics["weights"]) == 3 and 0 < metrics["gamma"][0] <= 1
    expected = aggregate("awa+lws", start, clients, [10, 20, 30]).state_dict
    for name in start:
        assert torch.equal(got[0][name], got[1][name])
        torch.testing.assert_close(got[0][name], expected[name])


def test_a_method_that_remembers_does(models):
    start, *clients = models
    strategy, state = Strategy("fedadam(lr=0.1)"), {}
    for number in (1, 2):
        strategy.sent = start
        arrays, _ = strategy.aggregate_train(number, replies(clients, [1, 1, 1]))
        result = aggregate("fedadam(lr=0.1)", start, clients, [1, 1, 1], state=state, round=number)
        expected, state = result.state_dict, result.state
        for name, tensor in arrays.to_torch_state_dict().items():
            torch.testing.assert_close(tensor, expected[name])
    fresh = aggregate("fedadam(lr=0.1)", start, clients, [1, 1, 1]).state_dict
    assert not torch.allclose(fresh["a.bias"], expected["a.bias"])


def test_class_counts_reach_the_method_that_asks_for_them(models):
    start, *clients = models
    strategy = Strategy("feddisco")
    strategy.sent = start
    counts = {"class-counts": [[10, 0], [5, 5], [5, 5]]}
    _, metrics = strategy.aggregate_train(1, replies(clients, [10, 10, 10], **counts))
    assert metrics["weights"][0] < metrics["weights"][1] and "class-counts" not in metrics
    with pytest.raises(FedlibError, match="counts"):
        strategy.aggregate_train(1, replies(clients, [10, 10, 10]))


def test_nobody_answers():
    assert Strategy("fedavg").aggregate_train(1, []) == (None, None)


def test_a_method_that_learns_at_the_server_needs_its_data_at_once():
    with pytest.raises(FedlibError, match="'law' learns from data on the server"):
        Strategy("law")


def test_what_clients_do_is_refused_on_the_server():
    with pytest.raises(FedlibError, match="'fedprox'.*ClientApp"):
        Strategy("fedprox+lws")
    assert on_server("fedprox(mu=0.1)+lws") == "fedavg(weights=size)+lws"


def test_clients_that_remember_are_refused(local_ray):
    small = dict(dataset="digits", model="mlp(hidden=16)", clients=2, subset=100, partition="iid", rounds=1)
    with pytest.raises(FedlibError, match="remember"):
        simulate(RunSpec(**small, algorithm="moon"))


def test_where_ray_does_not_start_there_is_a_sentence_and_nothing_is_left(monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", "/dev/null/no-folder")
    before, threads = psutil.Process().children(recursive=True), threading.active_count()
    small = dict(dataset="digits", model="mlp", partition="iid", rounds=1)
    with pytest.raises(FedlibError, match="Flower's simulation failed twice: NotADirectoryError: .*needs Ray to start"):
        simulate(RunSpec(**small, clients=2, subset=100))
    assert threading.active_count() == threads
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def test_a_call_that_does_not_end_is_ended_with_all_it_started(tmp_path, monkeypatch):
    """Flower's server thread and Ray's processes, in small: a thread that stays, a child that nobody waits for."""
    (tmp_path / "hanging.py").write_text(
        "import subprocess, sys, threading, time\n"
        "def hang(marker, seconds):\n"
        "    child = subprocess.Popen([sys.executable, '-c', f'import time; time.sleep(600) # {marker}'])\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "    open(marker, 'w').close()\n"
        "    time.sleep(float(seconds))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    marker = tmp_path / "marker"

    def left() -> list:
        return [p for p in psutil.process_iter(["cmdline"]) if str(marker) in " ".join(p.info["cmdline"] or ())]

    assert call("hanging", "hang", str(marker), "600", seconds=8) == (None, "it did not end within 8 seconds")
    assert marker.exists()
    until(lambda: not left(), 5)
    assert call("hanging", "hang", str(marker), "0", seconds=60) == (0, "")
    until(lambda: not left(), 5)
    marker.unlink()
    driver = subprocess.Popen(
        [sys.executable, "-c", f"from fedlib.runs.worker import call; call('hanging', 'hang', {str(marker)!r}, '600', "
         "seconds=600)"], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    until(marker.exists)
    driver.kill()
    driver.wait()
    until(lambda: not left(), 5)
