"""Methods that learn on a proxy set, and the training loop, against numbers from FedLAW's released code."""

import itertools
from collections import OrderedDict

import numpy as np
import oracle
import pytest
import torch
from torch import nn

import fedlib
from fedlib.algorithms import Algorithm, Client, Round
from fedlib.algorithms.distill import directions, draw
from fedlib.core.layout import FlatModel, Layout
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.federation.training import train
from fedlib.models.mlp import MLPNet
from fedlib.workbook import settings

LAW = [(name, i) for name in oracle.files("fedlaw_mlp*.json") for i in range(len(oracle.load(name)["runs"]))]
BASELINES = oracle.files("fedlaw_repo_baselines*.json")


def network(normalised: bool) -> nn.Module:
    """The little network of the oracles: Linear(6, 5), BatchNorm or not, ReLU, Linear(5, 3)."""
    norm = [("bn", nn.BatchNorm1d(5))] if normalised else []
    layers = [("fc1", nn.Linear(6, 5)), *norm, ("relu", nn.ReLU()), ("fc2", nn.Linear(5, 3))]
    return nn.Sequential(OrderedDict(layers))


def together(batches: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.cat([oracle.tensor(b[key]) for b in batches]) for key in ("x", "y"))


@pytest.mark.parametrize("name, number", LAW)
def test_oracle_law(name, number):
    data = oracle.load(name)
    inputs, run = data["inputs"], data["runs"][number]
    model = network("bn" in data["model"])
    layout, start = Layout.of_model(model), model.state_dict()
    _, buffers = layout.pack(start)
    clients = [layout.unpack(oracle.tensor(flat), buffers) for flat in inputs["client_flat_w"]]
    optimizer = "'sgd(momentum=0.9)'" if run["optimizer"] == "sgd" else "'adam(beta1=0.5)'"
    result = fedlib.aggregate(
        f"law(variant=released, epochs={run['server_epochs']}, optimizer={optimizer}, batch=8, sampling=fixed, "
        f"lr={0.01 if run['dataset(lr 0.01 if cifar10 else 0.005)'] == 'cifar10' else 0.005}, "
        f"function={run['server_funct']}, swa={run['swa'] == 'swa'})",
        layout.unpack(oracle.tensor(inputs["global_flat_w"]), buffers),
        clients,
        inputs["size_weights"],
        model=model,
        proxy=together(inputs["proxy_batches"]),
    )
    assert result.factors["gamma"] == pytest.approx(run["gamma"], abs=1e-4)
    torch.testing.assert_close(result.weights, torch.tensor(run["lambda"]), rtol=1e-4, atol=1e-4)
    theta, _ = layout.pack(result.state_dict)
    torch.testing.assert_close(theta, oracle.tensor(run["new_global_flat_w"]), rtol=1e-4, atol=1e-4)
    for statistic, value in run.get("server_bn_after", {}).items():
        mine = result.state_dict[f"bn.{statistic}"].float()
        torch.testing.assert_close(mine, oracle.tensor(value).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize(
    "method, key", [("feddf", "feddf_3epochs_SGDlr0.05"), ("server_ft", "finetune_3epochs_SGDlr0.05")]
)
def test_oracle_distillation_and_fine_tuning(name, method, key):
    data = oracle.load(name)
    inputs = data["inputs"]
    result = fedlib.aggregate(
        f"{method}(variant=released, epochs=3, lr=0.05, batch=8, sampling=fixed)",
        oracle.state(inputs["global"]),
        [oracle.state(c) for c in inputs["clients"]],
        inputs["weights"],
        model=network(False),
        proxy=together(inputs["batches"]),
    )
    oracle.close(result.state_dict, data[f"{key}m0.9wd5e-4"])


@pytest.mark.parametrize("name", BASELINES)
def test_oracle_fedbe_gaussian(name):
    data = oracle.load(name)
    inputs, expected = data["inputs"], data["fedbe_gaussian"]
    layout = Layout.of_state(oracle.state(inputs["global"]))
    theta, buffers = layout.pack(oracle.state(inputs["global"]))
    thetas = torch.stack([layout.pack(oracle.state(c))[0] for c in inputs["clients"]])
    none = torch.empty(len(thetas), 0)
    r = Round(layout, theta, buffers, thetas, none, torch.tensor(inputs["weights"]), list(range(len(thetas))))
    for e in layout.entries:
        mean, variance, length = directions(r, e)
        for mine, key in [(mean, "mean_of_unit_deltas"), (variance, "var_clamped_1e-5"), (length, "mean_norm")]:
            theirs = oracle.tensor(expected[key][e.name])
            torch.testing.assert_close(mine.view(theirs.shape), theirs, rtol=1e-4, atol=1e-5)
    sample, _ = draw(r, torch.Generator().manual_seed(123), noise=0.1)
    oracle.close(layout.unpack(sample, buffers), expected["sample_with_torch_manual_seed_123"])


class Trainee:
    """The oracles' client in our training loop, one epoch per call; the batches come in the oracles' order."""

    def __init__(self, inputs: dict, optimizer: str, algorithm: str = "fedavg"):
        self.flat = FlatModel(MLPNet((6, 5), 3))
        self.flat.theta.copy_(torch.cat([oracle.tensor(t).flatten() for t in inputs["global"].values()]))
        self.anchor = self.flat.theta.clone()
        self.spec = RunSpec(
            dataset="digits", model="mlp", partition="iid", batch_size=8, lr=0.05, optimizer=optimizer,
            algorithm=algorithm,
        )  # fmt: skip
        self.optimizer = OPTIMIZERS.make(optimizer)
        self.moments = self.optimizer.state(self.flat.theta)
        self.x, self.y = together(inputs["batches"])
        self.calls = itertools.count(1)

    def epoch(self) -> dict[str, torch.Tensor]:
        number, flat = next(self.calls), self.flat
        undo = torch.from_numpy(np.argsort(stream(self.spec.seed, "batches", number, 0).permutation(len(self.y))))
        client = Client(0, number, flat.model, flat.layout, flat.theta, flat.grad, self.anchor)
        parts = Algorithm(self.spec.algorithm).locals
        train(flat, self.x[undo], self.y[undo], client, parts, self.spec, self.optimizer, self.moments, 1)
        state = flat.layout.unpack(flat.theta, flat.buffers)
        return {name.replace("classifier", "fc2"): value for name, value in state.items()}


@pytest.mark.parametrize("name", BASELINES)
def test_oracle_local_training(name):
    data = oracle.load(name)
    client = Trainee(data["inputs"], "sgd(momentum=0.9, weight_decay=0.0005)")
    for expected in data["local_train_SGDlr0.05m0.9wd5e-4_E2_two_rounds_persistent_momentum"]:
        client.flat.theta.copy_(client.anchor)  # a new round from the same global model; the momentum stays
        client.epoch()
        oracle.close(client.epoch(), expected)


@pytest.mark.parametrize("name", BASELINES)
def test_oracle_fedprox(name):
    data = oracle.load(name)
    theirs = settings.preset("fedlaw", "released")["methods"]["fedprox"]
    assert theirs["algorithm"] == "fedprox(mu=0.001)"
    client = Trainee(data["inputs"], theirs["optimizer"], "fedprox(mu=0.1)")
    client.epoch()
    oracle.close(client.epoch(), data["fedprox_client_mu0.1_plainSGD_lr0.05_noMomentum_noWD_E2"])
