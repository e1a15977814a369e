"""A cohort trained at once is the cohort trained one by one."""

import pytest
import torch

from fedlib.algorithms import Algorithm
from fedlib.core.layout import FlatModel
from fedlib.core.spec import RunSpec
from fedlib.federation import cohort, federation
from fedlib.federation.federation import Federation
from fedlib.models import build
from fedlib.runs.execute import simulate

BASE = RunSpec(
    dataset="digits(shape=(3, 32, 32))", model="mlp(hidden=16)", partition="dirichlet(alpha=0.5)", subset=150,
    test_subset=50, clients=5, local_epochs=2, batch_size=16, stragglers=0.5, seed=4, lr=0.02,
)  # fmt: skip


def trained(spec: RunSpec, at_once: bool, monkeypatch):
    monkeypatch.setattr(federation, "can_vectorise", lambda *_: at_once)
    fed, logs = Federation(spec), {}
    run = fed.start()
    r = fed.train_cohort(2, Algorithm(spec.algorithm), run, logs)
    return r.thetas.clone(), r.ids, logs["train_loss"]


@pytest.mark.parametrize("model", ["mlp(hidden=16)", "simple_cnn", "lenet"])
@pytest.mark.parametrize("optimizer", ["sgd(momentum=0.9, weight_decay=0.001)", "adam"])
def test_the_same_models_come_out(model, optimizer, monkeypatch):
    lr = 0.001 if optimizer == "adam" else 0.02
    spec = BASE.replace(model=model, optimizer=optimizer, lr=lr)
    apart, ids, loss = trained(spec, False, monkeypatch)
    at_once, same, mean = trained(spec, True, monkeypatch)
    assert ids == same and mean == pytest.approx(loss, rel=1e-4)
    torch.testing.assert_close(at_once, apart, rtol=1e-3, atol=3e-5)
    assert (apart - apart[0]).abs().max() > 1e-3, "the clients differ, so a mix-up of rows would show"


def test_whoever_diverges_is_named(monkeypatch):
    monkeypatch.setattr(federation, "can_vectorise", lambda *_: True)
    record = simulate(BASE.replace(lr=1e6, optimizer="sgd(weight_decay=1000000.0)", local_epochs=5, rounds=2))
    assert record.status == "diverged" and record.json["error"]["round"] == 1
    assert f"Client {record.json['error']['client']} diverged" in record.json["error"]["message"]


@pytest.mark.parametrize(
    "model, algorithm, changes, expected",
    [
        ("mlp", "fedavg", {}, True), ("simple_cnn", "awa+lws", {}, False), ("resnet8", "fedavg", {}, False),
        ("mlp", "fedprox(mu=0.1)", {}, False), ("alexnet", "fedavg", {}, False), ("vit(depth=1)", "fedavg", {}, False),
        ("mlp", "fedavg", {"keep_optimizer": True}, False), ("mlp", "fedavg", {"precision": "bfloat16"}, False),
    ],
)  # fmt: skip
def test_a_fixed_rule_of_model_method_and_device_decides(model, algorithm, changes, expected):
    spec, parts = BASE.replace(model=model, algorithm=algorithm, **changes), Algorithm(algorithm).locals
    flat = FlatModel(build(model, (3, 32, 32), 10, 0))
    assert cohort.can_vectorise(flat, spec, parts, cuda=True) is expected
    assert not cohort.can_vectorise(flat, spec, parts, cuda=False), "on a CPU one by one is faster"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_card_the_rule_holds_and_the_numbers_agree(monkeypatch):
    apart, _, _ = trained(BASE, False, monkeypatch)
    monkeypatch.undo()
    assert Federation(BASE).flat.theta.is_cuda
    at_once, _, _ = trained(BASE, True, monkeypatch)
    torch.testing.assert_close(at_once, apart, rtol=1e-2, atol=1e-4)


def test_bfloat16_trains_in_mixed_precision_and_has_an_id_of_its_own():
    full, half = BASE.replace(rounds=3), BASE.replace(rounds=3, precision="bfloat16")
    assert full.id != half.id and "precision" not in full.to_json()
    a, b = simulate(full), simulate(half)
    assert a.series["train_loss"] != b.series["train_loss"]
    assert b.series["train_loss"] == pytest.approx(a.series["train_loss"], rel=0.05)
