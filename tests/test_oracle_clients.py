"""What clients compute and what the server makes of it, against numbers from released code."""

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedlib
from fedlib.algorithms import ALGORITHMS, Algorithm, Batch, Client
from fedlib.algorithms.dw import relations
from fedlib.core.layout import FlatModel
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.federation.training import train
from fedlib.models.base import Net
from fedlib.models.mlp import MLPNet

CLIENTS = oracle.files("feddw_clients*.json")
BASELINES = oracle.files("fedlaw_repo_baselines*.json")


class Trainee:
    """One client in our training loop that sees its samples in the oracles' order; a call is a round."""

    def __init__(self, net, start: dict, x: Tensor, y: Tensor, algorithm: str, classifier: str, **spec):
        self.flat, self.x, self.y, self.classifier = FlatModel(net), x, y, classifier
        self.flat.theta.copy_(torch.cat([oracle.tensor(t).flatten() for t in start.values()]))
        self.anchor, self.state = self.flat.theta.clone(), {}
        self.spec = RunSpec(dataset="digits", model="mlp", partition="iid", algorithm=algorithm, **spec)
        self.optimizer = OPTIMIZERS.make(self.spec.optimizer)
        self.moments = self.optimizer.state(self.flat.theta)

    def round(self, number: int = 1, **received) -> Client:
        flat, spec, count = self.flat, self.spec, len(self.y)
        flat.theta.copy_(self.anchor)
        # The first epoch's order is undone; the oracles' later epochs are whole batches, or repeated in the first.
        undo = torch.from_numpy(np.argsort(stream(spec.seed, "batches", number, 0).permutation(count)))
        x, y = self.x[undo], self.y[undo]
        client = Client(
            0, number, flat.model, flat.layout, flat.theta, flat.grad, self.anchor, self.state, received, (x, y),
            flat.model.classifier.out_features,
        )  # fmt: skip
        parts = Algorithm(spec.algorithm).locals
        train(flat, x, y, client, parts, spec, self.optimizer, self.moments, spec.local_epochs)
        return client

    def parameters(self) -> dict[str, Tensor]:
        state = self.flat.layout.unpack(self.flat.theta, self.flat.buffers)
        return {name.replace("classifier", self.classifier): value for name, value in state.items()}


@pytest.mark.parametrize("name", BASELINES)
def test_oracle_feddyn_server(name):
    data = oracle.load(name)
    inputs, memory, w = data["inputs"], {}, oracle.state(data["inputs"]["global"])
    for expected in data["feddyn_server_mu0.01_two_rounds"]:
        result = fedlib.aggregate(
            "feddyn(variant=released, alpha=0.01)", w, [oracle.state(c) for c in inputs["clients"]], inputs["weights"],
            state=memory, trained=True,
        )  # fmt: skip
        w, memory = result.state_dict, result.state
        oracle.close(w, expected["w"])
        h = torch.cat([oracle.tensor(t).flatten() for t in expected["server_state_h"].values()])
        torch.testing.assert_close(memory["feddyn"]["h"], h, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", BASELINES)
def test_oracle_feddyn_client(name):
    data = oracle.load(name)
    inputs = data["inputs"]
    two_epochs = inputs["batches"] * 2
    x, y = (torch.cat([oracle.tensor(b[key]) for b in two_epochs]) for key in "xy")
    client = Trainee(
        MLPNet((6, 5), 3), inputs["global"], x, y, "feddyn(variant=released, alpha=0.01)", "fc2", lr=0.05, batch_size=8,
        optimizer="sgd(momentum=0.9, weight_decay=0.0005)",
    )  # fmt: skip
    key = "feddyn_client_mu0.01_unsquaredNorm_SGDlr0.05m0.9wd5e-4_E2_two_rounds_persistent_momentum"
    for number, expected in enumerate(data[key], start=1):
        client.round(number)
        oracle.close(client.parameters(), expected["w"])
        torch.testing.assert_close(client.state["feddyn"], oracle.tensor(expected["old_grad"]), rtol=1e-4, atol=1e-6)


class Head(Net):
    """The network of FedDW's oracles: its mapping layers are ReLU(fc1) and a linear fc2."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.classifier = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 4)

    def features(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x)))


def head_client(data: dict, algorithm: str, **spec) -> Trainee:
    inputs, config = data["inputs"], data["config"]
    x, y = oracle.tensor(inputs["X"]), oracle.tensor(inputs["Y"])
    setting = {"lr": config["learning_rate"], "batch_size": config["batch_size"], "optimizer": "adam"} | spec
    setting["local_epochs"] = config["client_epoch"]
    return Trainee(Head(), inputs["params"], x, y, algorithm, "fc3", **setting)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    "algorithm, key", [("fedavg", "FedAvg"), ("fedprox(mu=0.01)", "FedProx_0.01"), ("feduv", "FedUV")]
)
def test_oracle_feddw_baselines(name, algorithm, key):
    data = oracle.load(name)
    client = head_client(data, algorithm)
    client.round()
    oracle.close(client.parameters(), data[key]["params"], tolerance=1e-5)  # FedProx's pull moves 2e-5


def start(client: Trainee, own: dict, given: dict, personal=()) -> None:
    """The client has ``own`` from last time; of the global model it is given it does not take ``personal``."""
    own, given = ({name: oracle.tensor(t) for name, t in state.items()} for state in (own, given))
    client.state["model"] = torch.cat([t.flatten() for t in own.values()]), torch.zeros(0)
    client.anchor = torch.cat([(own if name in personal else given)[name].flatten() for name in own])


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("algorithm, key", [("fedper", "FedPer"), ("fedrep(variant=released)", "FedRep_head1_body2")])
def test_oracle_personal_heads(name, algorithm, key):
    data = oracle.load(name)
    client = head_client(data, algorithm)
    assert Algorithm(algorithm).locals[0].personal(client.flat.layout) == {"classifier"}
    start(client, data["inputs"]["params"], data[key]["avg_w_in"], personal=("fc3.weight", "fc3.bias"))
    client.round()
    oracle.close(client.parameters(), data[key]["params"], tolerance=1e-5)


@pytest.mark.parametrize("name", CLIENTS)
def test_oracle_fedala(name):
    data = oracle.load(name)
    client, expected = head_client(data, "fedala(variant=released)"), data["FedALA_one_pass"]
    start(client, data["inputs"]["params"], expected["global_in"])
    client.round()
    oracle.close(client.parameters(), expected["params"], tolerance=1e-5)
    weights = torch.cat([oracle.tensor(w).flatten() for w in expected["ala_weights"]])
    torch.testing.assert_close(client.state["fedala"], weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CLIENTS)
def test_oracle_perfedavg(name):
    data = oracle.load(name)
    step = {"lr": data["config"]["beta"], "optimizer": "sgd"}
    client = head_client(data, f"perfedavg(variant=released, alpha={data['config']['alpha']})", **step)
    client.round()
    oracle.close(client.parameters(), data["Per-FedAvg(FO)"]["params"], tolerance=1e-5)


@pytest.mark.parametrize("name", CLIENTS)
def test_oracle_fedproto(name):
    data = oracle.load(name)
    client, expected = head_client(data, "fedproto(variant=released)"), data["FedProto"]
    prototypes = torch.stack([oracle.tensor(expected["prototypes_in"][c]) for c in "0123"])
    sent = client.round(fedproto=(prototypes, torch.ones(4))).uploads
    oracle.close(client.parameters(), expected["params"], tolerance=1e-5)
    assert sent["prototype_counts"].tolist() == [expected["counts"].get(c, 0) for c in "0123"]
    for c, theirs in expected["local_protos"].items():
        mine = sent["prototype_sums"][int(c)] / sent["prototype_counts"][int(c)]
        torch.testing.assert_close(mine, oracle.tensor(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    "algorithm, key", [("feddistill(variant=released)", "FedDistill+"), ("local+dw(form=relu, mu=0.1)", "FedDW_pFL")]
)
def test_oracle_soft_labels(name, algorithm, key):
    data = oracle.load(name)
    expected, omega = next(v for k, v in data.items() if k.startswith(key)), oracle.tensor(data["inputs"]["Omega"])
    client = head_client(data, algorithm)
    sent = client.round(omega=omega, feddistill=omega).uploads
    oracle.close(client.parameters(), expected["params"], tolerance=1e-5)
    torch.testing.assert_close(sent["soft_labels"], oracle.tensor(expected["local_distill"]), rtol=1e-4, atol=1e-4)
    assert sent["class_counts"].tolist() == list(expected["counts"].values())


@pytest.mark.parametrize("name", CLIENTS)
def test_oracle_moon(name):
    data = oracle.load(name)
    client = head_client(data, "moon(variant=released)")
    for number, key in enumerate(["round1_no_prev_net_so_plain_CE", "round2_with_prev_net"], start=1):
        client.moments = client.optimizer.state(client.flat.theta)
        client.round(number)
        oracle.close(client.parameters(), data["MOON"][key])


@pytest.mark.parametrize("name", oracle.files("feduv_reg*.json"))
def test_oracle_feduv_term(name):
    data = oracle.load(name)
    logits, features = (oracle.tensor(data[key]).requires_grad_() for key in ("logits", "features"))
    part = ALGORITHMS.make(f"feduv(variance={data['std_coeff']}, uniformity={data['unif_coeff']})")
    loss = part.loss(None, Batch(None, torch.zeros(len(logits)), features, logits))
    assert loss.item() == pytest.approx(data["loss"], abs=1e-5)
    for mine, key in zip(torch.autograd.grad(loss, (logits, features)), ("logits", "features"), strict=True):
        torch.testing.assert_close(mine, oracle.tensor(data[f"grad_{key}"]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("mu", [0.1, 10])
def test_oracle_dw_client(name, mu):
    data = oracle.load(name)
    client, expected = head_client(data, f"dw(variant=released, mu={mu})"), data[f"FedDW_mu{mu}"]
    sent = client.round(omega=oracle.tensor(data["inputs"]["Omega"])).uploads
    oracle.close(client.parameters(), expected["params"])
    sums = oracle.tensor(expected["local_distill_SUM_of_softmax_rows_per_class"])
    torch.testing.assert_close(sent["soft_labels"], sums, rtol=1e-4, atol=1e-4)
    assert sent["class_counts"].tolist() == list(expected["counts"].values())


@pytest.mark.parametrize("name", CLIENTS)
def test_oracle_dw_term(name):
    data = oracle.load(name)
    client, expected = head_client(data, "dw(mu=1.0)"), data["FedDW_regulariser_at_init"]
    flat, omega = client.flat, oracle.tensor(data["inputs"]["Omega"])
    flat.grad.zero_()
    c = Client(0, 1, flat.model, flat.layout, flat.theta, flat.grad, client.anchor, {}, {"omega": omega}, classes=4)
    part = ALGORITHMS.make("dw(mu=1.0)")
    part.begin(c)
    part.epoch(c)
    part.gradient(c)
    a = relations(flat.model.classifier.weight.detach())
    torch.testing.assert_close(a, oracle.tensor(expected["CR_softmax_rows"]), rtol=1e-4, atol=1e-5)
    assert float(F.mse_loss(a, omega)) == pytest.approx(expected["value_MSE_mean"], abs=1e-6)
    theirs = oracle.tensor(expected["grad_wrt_fc3.weight"])
    torch.testing.assert_close(flat.model.classifier.weight.grad, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", oracle.files("feddw_server_omega*.json"))
def test_oracle_dw_server(name):
    data, memory, w = oracle.load(name), {}, {"w": torch.zeros(1)}
    for number, expected in enumerate(data["rounds"], start=1):
        uploads = {
            "soft_labels": [oracle.tensor(u["local_distill_sum"]) for u in expected["new_uploads"]],
            "class_counts": [torch.tensor([float(n) for n in u["counts"].values()]) for u in expected["new_uploads"]],
        }
        cohort = len(expected["new_uploads"])
        memory = fedlib.aggregate(
            "dw(variant=released)", w, [w] * cohort, [1] * cohort, state=memory, uploads=uploads, round=number
        ).state
        omega = oracle.tensor(expected["Omega_after"])
        torch.testing.assert_close(memory["dw"]["omega"], omega, rtol=1e-4, atol=1e-5)
