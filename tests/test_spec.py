"""Ids are a promise: a committed record must be found by the spec that made it, in every later version."""

import pytest

from fedlib.core.spec import RunSpec

BASE = dict(dataset="mnist", model="mlp(hidden=64)", partition="shards(per_client=2)")
FROZEN = [
    ({}, "8f893b63459bb7a2"),
    ({"algorithm": "fedprox(mu=0.01)"}, "4ada28c0d72e0dcc"),
    ({"algorithm": "fedprox(mu=0.1)"}, "7061571238c96ab2"),
    ({"algorithm": "fedlap(q=0.5)"}, "22f6a8b64b9a7227"),
    ({"algorithm": "fedlap(reading=power)"}, "e09c63913580138d"),
    ({"algorithm": "fedavg(weights=uniform)"}, "211b55ce27a0e29c"),
    ({"seed": 1}, "dd06183aedc26949"),
    (
        {"clients": 100, "participation": 0.1, "local_epochs": 10, "batch_size": 10, "rounds": 100, "seed": 1},
        "fd22af5814cb98c2",
    ),
    ({"stragglers": 0.9}, "bfc09fc9704c9e85"),
    ({"keep_optimizer": True}, "59ce9b049ab25048"),
    ({"optimizer": "adam", "lr": 0.001}, "f94cbef2b44ef2e1"),
    ({"optimizer": "sgd(momentum=0.9, weight_decay=0.0005)", "lr": 0.08, "lr_decay": 0.99}, "476496aadc76d2c9"),
    ({"partition": "dirichlet(alpha=0.1)"}, "8c437fdca8b56f10"),
    ({"partition": "iid"}, "ff89919d8542bb84"),
    ({"dataset": "fashion_mnist"}, "6826a276f792595b"),
    ({"dataset": "cifar10", "model": "simple_cnn", "transform": "half"}, "90fefb4239340c21"),
    ({"dataset": "cifar10", "model": "resnet20", "subset": 10000, "test_subset": 2000}, "407b87f362da8d92"),
    ({"dataset": "digits(shape=(3, 32, 32))", "model": "lenet"}, "a34663b1f67e8b9c"),
    ({"proxy": "balanced(size=100)", "corruption": "swap(fraction=0.5)"}, "20b51473c54ce39d"),
    ({"client_holdout": 0.3, "server_lr": 0.5, "eval_every": 5}, "1b2af3ebb5f375e4"),
]


@pytest.mark.parametrize("changes, id", FROZEN)
def test_ids_never_change(changes, id):
    assert RunSpec(**BASE | changes).id == id


def test_twenty_ids_are_frozen_and_distinct():
    assert len({id for _, id in FROZEN}) == 20
