"""The round loop: who takes part, what is recorded, and that nothing but the spec decides it."""

import numpy as np
import pytest
import torch

import fedlib.federation.simulation as simulation
from fedlib.core.errors import FedlibError
from fedlib.core.series import append_round
from fedlib.core.spec import RunSpec
from fedlib.federation.federation import Federation, draw_clients
from fedlib.runs.engine import missing, run
from fedlib.runs.estimate import estimate
from fedlib.runs.execute import simulate
from fedlib.runs.record import Record
from fedlib.runs.store import Store

TINY = RunSpec(
    dataset="digits", model="mlp(hidden=16)", partition="shards(per_client=2)", clients=10, participation=0.5,
    rounds=4, local_epochs=2, batch_size=16, seed=1,
)  # fmt: skip


def numbers(record: Record) -> dict:
    """A record without what may differ from run to run."""
    return {k: v for k, v in record.json.items() if k not in ("seconds", "checksum")}


def test_it_learns():
    record = simulate(TINY.replace(rounds=25, partition="iid", participation=1.0))
    assert record.status == "ok"
    assert record.summary["last"] > 0.85
    assert record.series["round"] == list(range(1, 26))
    assert record.series["loss"][-1] < record.series["loss"][0]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedlap", "fedlap(refresh=batch, reading=power)"])
@pytest.mark.parametrize("model", ["mlp(hidden=16)", "cnn_fmnist"])
def test_same_spec_same_numbers(algorithm, model):
    spec = TINY.replace(algorithm=algorithm, model=model, rounds=2)
    assert numbers(simulate(spec)) == numbers(simulate(spec))


def test_jobs_do_not_change_numbers(tmp_path):
    specs = [TINY.replace(seed=s) for s in (1, 2)]
    one = run(specs, jobs=1, store=Store(tmp_path / "one"), progress=False)
    two = run(specs, jobs=2, store=Store(tmp_path / "two"), progress=False)
    here = [simulate(s) for s in specs]
    assert [numbers(r) for r in one] == [numbers(r) for r in two] == [numbers(r) for r in here]


def test_cohorts_depend_on_the_seed_alone():
    other = TINY.replace(algorithm="fedlap", model="lenet", lr=0.5, partition="iid", rounds=9)
    assert [draw_clients(TINY, n) for n in range(1, 5)] == [draw_clients(other, n) for n in range(1, 5)]
    assert draw_clients(TINY, 1) != draw_clients(TINY.replace(seed=2), 1)
    ids, epochs = draw_clients(TINY, 1)
    assert len(set(ids)) == 5 and epochs == [2] * 5


def test_stragglers_do_part_of_the_work():
    spec = TINY.replace(clients=100, participation=0.2, stragglers=0.5, local_epochs=10)
    drawn = [draw_clients(spec, n)[1] for n in range(1, 101)]
    full = np.mean([[e == 10 for e in epochs] for epochs in drawn])
    assert 0.5 <= full < 0.6  # half of every cohort, and a tenth of the stragglers by chance
    assert min(map(min, drawn)) == 1 and max(map(max, drawn)) == 10
    assert [draw_clients(spec, n)[0] for n in range(1, 5)] == [
        draw_clients(spec.replace(stragglers=0.0), n)[0] for n in range(1, 5)
    ], "stragglers do not change who is drawn"
    assert simulate(TINY.replace(stragglers=0.9)).series["accuracy"] != simulate(TINY).series["accuracy"]


def test_stopped_and_resumed_equals_uninterrupted(stopped):
    """With client state that outlives a round, so that it must survive too."""
    spec, told = TINY.replace(keep_optimizer=True, model="cnn_fmnist", rounds=5), []
    stopped(spec, 2)
    resumed = simulate(spec, stopped(spec, 4), told.append)
    assert told[0] == 3, "three rounds were saved"
    assert numbers(resumed) == numbers(simulate(spec))


def test_a_damaged_checkpoint_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "0")
    checkpoint = Store(tmp_path).checkpoint(TINY.id)
    simulate(TINY, checkpoint)
    content = checkpoint.path.read_bytes()
    for damage in (content[: len(content) // 2], b"", content[:-1] + bytes([content[-1] ^ 1])):
        checkpoint.path.write_bytes(damage)
        assert checkpoint.load() is None
    assert Store(tmp_path).checkpoint("another").load() is None
    checkpoint.path.write_bytes(content)
    assert checkpoint.load()["round"] == 3


def test_divergence_is_recorded_with_round_and_client(tmp_path):
    spec = TINY.replace(lr=1e6, server_lr=1e6, local_epochs=2, batch_size=1000)  # weights overflow in the second round
    record = run(spec, store=Store(tmp_path), progress=False)
    assert record.status == "diverged"
    assert record.error["round"] == 2 and record.error["client"] in draw_clients(spec, 2)[0]
    assert len(record.series["accuracy"]) == 1 and not missing([spec], Store(tmp_path)), "a finding: not tried again"


def test_a_model_that_cannot_be_scored_has_diverged():
    huge = TINY.replace(lr=1e6, server_lr=1e6, local_epochs=1, batch_size=1000)  # outputs overflow
    record = simulate(huge)
    assert record.status == "diverged" and "test loss of round 2" in record.error["message"]
    assert record.error["client"] is None and len(record.series["loss"]) == 1


def test_keeping_the_optimiser_matters_and_holdout_shrinks_clients():
    assert simulate(TINY).series["loss"] != simulate(TINY.replace(keep_optimizer=True)).series["loss"]
    whole, part = Federation(TINY), Federation(TINY.replace(client_holdout=0.3))
    for a, b in zip(whole.indices, part.indices, strict=True):
        assert len(b) == len(a) - int(0.3 * len(a)) and set(b.tolist()) <= set(a.tolist())


def test_proxy_leaves_the_test_set_and_corruption_changes_labels():
    whole, cut = Federation(TINY), Federation(TINY.replace(proxy="balanced(size=50)", corruption="swap(fraction=0.5)"))
    assert len(cut.proxy[1]) == 50 and len(cut.y_test) == len(whole.y_test) - 50
    changed = {k for k, mine in enumerate(cut.indices) if not torch.equal(cut.y[mine], whole.y[mine])}
    assert len(changed) == 5


def test_clients_without_data_sit_out():
    spec = TINY.replace(partition="dirichlet(alpha=0.01)", clients=40, participation=1.0, rounds=1)
    fed = Federation(spec)
    assert any(len(i) == 0 for i in fed.indices), "the setting has empty clients"
    assert simulate(spec).status == "ok"


def test_evaluation_only_when_asked():
    record = simulate(TINY.replace(rounds=5, eval_every=2))
    every = simulate(TINY.replace(rounds=5))
    assert record.series["round"] == [2, 4, 5]
    assert record.series["accuracy"] == [every.series["accuracy"][i] for i in (1, 3, 4)]


def test_without_training_a_missing_run_raises(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_TRAIN", "0")
    with pytest.raises(FedlibError, match="FEDLIB_TRAIN=0"):
        run([TINY], store=Store(tmp_path))


def test_a_run_asked_for_twice_is_missing_once_and_in_its_place(tmp_path):
    specs = [TINY, TINY.replace(rounds=40), TINY.replace(model="simple_cnn")]
    assert missing([*specs, TINY], Store(tmp_path)) == specs


def test_the_servers_passes_are_counted():
    few, many = (TINY.replace(proxy="balanced(size=50)", algorithm=f"gws(epochs={n})") for n in (1, 1000))
    assert estimate(TINY) <= estimate(few) < estimate(many)


def test_a_thousand_tiny_runs_take_their_time():
    """Of a run of one round nearly all is setting up; a bar that leaves it out says "done" for a minute."""
    one, two = (estimate(TINY.replace(rounds=rounds)) for rounds in (1, 2))
    assert 0.05 < one < two < 2 * one


def test_threads_are_restored():
    torch.set_num_threads(2)
    with simulation.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_series_stay_aligned_when_clients_come_and_go():
    series = {}
    append_round(series, {"round": 1, "lambda": {"3": 0.5, "4": 0.5}, "gamma": {"conv1": 1 / 3}})
    append_round(series, {"round": 2, "lambda": {"4": 0.25, "9": 0.75}, "gamma": {"conv1": float("nan")}})
    assert series == {
        "round": [1, 2],
        "lambda/3": [0.5, None],
        "lambda/4": [0.5, 0.25],
        "lambda/9": [None, 0.75],
        "gamma/conv1": [0.333333, None],
    }
