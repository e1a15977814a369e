"""Methods that leave clients something of their own: what stays, what is averaged, what is scored."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedlib
from fedlib.algorithms import ALGORITHMS, Algorithm, Batch, Client
from fedlib.core.device import one_thread
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel, Layout
from fedlib.core.spec import RunSpec
from fedlib.federation.federation import Federation, draw_clients
from fedlib.models import MODELS, build
from fedlib.models.base import evaluate
from fedlib.runs.engine import run as run_all
from fedlib.runs.execute import simulate
from fedlib.runs.store import Store

TINY = RunSpec(
    dataset="digits", model="mlp(hidden=8)", partition="dirichlet(alpha=0.5)", subset=200, test_subset=100, clients=4,
    participation=0.5, rounds=3, local_epochs=2, batch_size=16, lr=0.1, seed=1,
)  # fmt: skip
NAMES = ["fedbabu", "fedproto", "fedrep", "fedper", "fedala", "perfedavg", "feddistill", "local"]


class Run:
    """A run that can be looked into, round by round."""

    def __init__(self, **changes):
        self.spec = TINY.replace(**changes)
        self.fed, self.algorithm = Federation(self.spec), Algorithm(self.spec.algorithm)
        self.memory, self.now = {}, self.fed.start()
        self.start = self.now.theta
        with one_thread():
            for number in range(1, self.spec.rounds + 1):
                self.round = self.fed.train_cohort(number, self.algorithm, self.now, {})
                new = self.algorithm.aggregate(self.round, self.memory)
                self.now.theta, self.now.buffers = new

    @property
    def head(self) -> slice:
        return self.fed.flat.layout.classifier.slice

    def own(self, k: int) -> torch.Tensor:
        return self.now.clients[k]["model"][0]

    def evaluate(self) -> dict:
        return self.fed.evaluate(self.now.theta, self.now.buffers, self.algorithm, self.now.clients)


# what stays with the clients


@pytest.mark.parametrize("name", MODELS.names())
def test_the_classifier_ends_every_model(name):
    """Bodies and last layers are slices because of it."""
    shapes = {"amazon_mlp": (50,), "textcnn": (20,), "feddw_bilstm": (20,), "feddw_mean": (20,)}
    layout = Layout.of_model(build(name, shapes.get(name, (3, 32, 32)), 2, seed=0))
    assert layout.layers[-1].name == "classifier" and layout.classifier.slice.stop == layout.size


@pytest.mark.parametrize("method", ["fedper", "fedala"])
def test_more_layers_than_the_model_has_are_refused(method):
    assert simulate(TINY.replace(algorithm=f"{method}(layers=2)", rounds=1)).status == "ok"
    with pytest.raises(FedlibError, match=r"layers=3\) is more than the model has: fc1, classifier are 2 layers"):
        simulate(TINY.replace(algorithm=f"{method}(layers=3)", rounds=1))


def test_personal_layers_take_their_statistics_along():
    layout = Layout.of_model(build("cnn_fmnist", (1, 12, 12), 3, seed=0))
    theta, buffers = Algorithm("fedper(layers=2)").personal(layout)
    personal = {e.name for e in layout.entries if (buffers if e.buffer else theta)[e.slice].all()}
    statistics = {f"bn3.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert personal == {"classifier.weight", "classifier.bias"} | statistics
    everything = Algorithm("local").personal(layout)
    assert all(mask.all() for mask in everything) and Algorithm("fedavg+lws").personal(layout) is None


@pytest.mark.parametrize("form, head", [("fedper", 1.0), ("fedrep", 1.0), ("fedper+gamma(gamma=0.5)", 1.0)])
def test_personal_layers_are_never_averaged(form, head):
    def state(body, head):
        return {"body.weight": torch.tensor([body]), "classifier.weight": torch.tensor([head])}

    clients = [state(2.0, 7.0), state(4.0, 9.0)]
    after = fedlib.aggregate(form, state(0.0, 1.0), clients, sizes=[1, 1], trained=True).state_dict
    assert float(after["body.weight"]) == (1.5 if "gamma" in form else 3.0)
    assert float(after["classifier.weight"]) == head


def test_weightings_do_not_see_personal_layers():
    """Two clients differ only in what is theirs: nothing to weigh them by."""
    start = {"body.weight": torch.tensor([1.0, 0.0]), "classifier.weight": torch.tensor([1.0, 0.0])}
    clients = [{**start, "classifier.weight": torch.tensor(w)} for w in ([5.0, 0.0], [0.0, -5.0])]
    weights = fedlib.aggregate("fedper+ldawa", start, clients, sizes=[1, 1], trained=True).weights
    assert torch.equal(weights[0], weights[1])


def test_a_client_gets_its_own_head_back_and_the_common_body():
    a = Run(algorithm="fedper", participation=1.0)
    body, head = slice(0, a.head.start), a.head
    heads = torch.stack([a.own(k)[head] for k in range(4)])
    assert len(torch.unique(heads, dim=0)) == 4
    assert torch.equal(a.now.theta[head], a.start[head]), "the global head stays the first one"
    a.fed.spec = a.spec.replace(lr=1e-30)  # a round in which nothing moves
    a.fed.train_cohort(4, a.algorithm, a.now, {})
    for k in range(4):
        assert torch.equal(a.own(k)[head], heads[k]) and torch.equal(a.own(k)[body], a.now.theta[body])


def test_alone_nobody_learns_from_others():
    a = Run(algorithm="local", model="cnn_fmnist", subset=60, clients=6, participation=0.34)
    once = set(draw_clients(a.spec, 1)[0]).difference(*(draw_clients(a.spec, n)[0] for n in (2, 3)))
    assert once, "somebody took part in the first round only"
    b = Run(algorithm="local", model="cnn_fmnist", subset=60, clients=6, participation=0.34, rounds=1)
    assert all(torch.equal(a.own(k), b.own(k)) for k in once)
    assert torch.equal(a.now.theta, a.start), "the global model is the common start for ever"


@pytest.mark.parametrize("form", ["local", "fedper"])
def test_a_single_client_is_on_its_own_anyway(form):
    a, b = (Run(algorithm=algorithm, clients=1, participation=1.0) for algorithm in (form, "fedavg"))
    assert torch.equal(a.own(0), b.now.theta)


def test_fedbabu_never_moves_the_head():
    for form in ("fedbabu", "fedbabu+fedprox+lws"):
        a = Run(algorithm=form, optimizer="sgd(momentum=0.9, weight_decay=0.01)")
        assert torch.equal(a.round.thetas[:, a.head], a.start[a.head].expand(len(a.round.ids), -1))
        assert not torch.equal(a.now.theta[: a.head.start], a.start[: a.head.start])
    assert torch.equal(Run(algorithm="fedbabu").now.theta[a.head], a.start[a.head])


@pytest.mark.parametrize("variant, head_epochs", [("paper", 3), ("released", 1)])
def test_fedrep_trains_the_head_then_the_body(variant, head_epochs):
    """Stopped after the head's epochs the body has not moved; after all, the head has not moved on."""
    one = {"clients": 2, "participation": 1.0, "rounds": 1, "optimizer": "adam", "lr": 0.01}
    whole = Run(algorithm=f"fedrep(variant={variant})", local_epochs=4, **one)
    for epochs, moved in ((head_epochs, False), (head_epochs + 1, True)):
        part = Run(algorithm=f"fedrep(head_epochs={head_epochs})", local_epochs=head_epochs + 1, **one)
        part.fed.spec = part.spec.replace(algorithm="fedavg", local_epochs=epochs)  # fedrep would refuse to stop there
        part.now.theta, part.now.clients = part.start, {}
        part.fed.train_cohort(1, part.algorithm, part.now, {})
        for k in (0, 1):
            assert torch.equal(part.own(k)[part.head], whole.own(k)[whole.head])
            assert torch.equal(part.own(k)[: part.head.start], part.start[: part.head.start]) != moved


# limits


@pytest.mark.parametrize(
    "same, model",
    [
        ("fedper(layers=0)", "cnn_fmnist"),
        ("fedala(layers=0)", "feddw_cnn_mnist"),
        ("perfedavg(alpha=0, variant=released)", "lenet"),
        ("feddistill(strength=0)", "feddw_cnn_mnist"),
        ("fedproto(average=True, strength=0)", "feddw_cnn_mnist"),
    ],
)
def test_switched_off_they_are_fedavg_bit_for_bit(same, model):
    small = {"model": model, "subset": 60, "rounds": 2, "clients": 2, "participation": 1.0}
    assert torch.equal(Run(algorithm=same, **small).now.theta, Run(algorithm="fedavg", **small).now.theta)


def test_fedproto_without_strength_is_training_alone():
    a, b = (Run(algorithm=form, model="feddw_cnn_mnist", subset=60) for form in ("fedproto(strength=0)", "local"))
    assert a.now.clients.keys() == b.now.clients.keys()
    assert all(torch.equal(a.own(k), b.own(k)) for k in a.now.clients)


# their equations


def client(model="mlp(hidden=6)", side=4, samples=12, **fields) -> Client:
    torch.manual_seed(0)
    flat = FlatModel(build(model, (1, side, side), 3, seed=1))
    data = torch.randn(samples, 1, side, side), torch.arange(samples) % 3
    fields |= {"data": data, "classes": 3, "spec": TINY.replace(batch_size=samples)}
    return Client(0, 2, flat.model, flat.layout, flat.theta, flat.grad, flat.theta.clone(), **fields)


@pytest.mark.parametrize("layers", [1, 2])
def test_fedala_learns_its_weights_by_the_gradient_of_the_local_loss(layers):
    c = client()
    own = c.theta + torch.randn_like(c.theta)
    c.state["model"], weights = (own, None), torch.rand_like(own)
    top = slice(c.layout.layers[-layers].slice.start, None)
    c.state["fedala"] = weights[top].clone()
    ALGORITHMS.make(f"fedala(layers={layers}, eta=0.5, variant=released)").begin(c)
    w = weights[top].clone().requires_grad_()
    mixed = torch.cat([c.anchor[: top.start], own[top] + (c.anchor[top] - own[top]) * w])
    tensors = {e.name: e.view(mixed) for e in c.layout.entries}
    loss = F.cross_entropy(torch.func.functional_call(c.model, tensors, (c.data[0],)), c.data[1])
    (gradient,) = torch.autograd.grad(loss, w)
    expected = (w.detach() - 0.5 * gradient).clamp(0, 1)
    torch.testing.assert_close(c.state["fedala"], expected)
    torch.testing.assert_close(c.theta[top], own[top] + (c.anchor[top] - own[top]) * expected)
    assert torch.equal(c.theta[: top.start], c.anchor[: top.start]) and c.model.training


def test_fedala_learns_longer_at_first_and_from_a_sample():
    c, part = client(samples=20), ALGORITHMS.make("fedala")
    assert [len(y) for _, y in part.batches(c)] == [16]
    assert sum(len(y) for _, y in ALGORITHMS.make("fedala(variant=released)").batches(c)) == 20
    part.begin(c)
    assert "fedala" not in c.state and torch.equal(c.theta, c.anchor), "the first time there is nothing of its own"
    c.state["model"] = c.theta + torch.randn_like(c.theta), None
    part.begin(c)
    first = c.state["fedala"].clone()
    c.theta.copy_(c.anchor)
    part.begin(c)
    later = (c.state["fedala"] - first).norm()
    assert later < (first - 1).norm() and 0 <= first.min() and first.max() <= 1


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_perfedavg_takes_the_gradient_one_step_ahead(variant):
    c, part = client(), ALGORITHMS.make(f"perfedavg(alpha=0.3, variant={variant})")
    x, y = c.data
    start, batches = c.theta.clone(), [Batch(x[:6], y[:6], None, None), Batch(x[6:], y[6:], None, None)]

    def gradient(theta, batch):
        theta = theta.clone().requires_grad_()
        logits = torch.func.functional_call(c.model, {e.name: e.view(theta) for e in c.layout.entries}, (batch.x,))
        return torch.autograd.grad(F.cross_entropy(logits, batch.y), theta)[0]

    for n, batch in enumerate(batches):
        c.grad.copy_(gradient(start, batch))
        assert part.loss(c, batch) is None
        part.gradient(c)
        other = batch if variant == "released" else batches[0]  # the batch before; the first is its own
        torch.testing.assert_close(c.grad, gradient(start - 0.3 * gradient(start, batch), other), msg=f"batch {n}")
        assert torch.equal(c.theta, start)
    ALGORITHMS.make("perfedavg(alpha=0.3, adapt_steps=1)").adapt(c)
    torch.testing.assert_close(c.theta, start - 0.3 * gradient(start, Batch(x, y, None, None)))


def test_fedproto_pulls_features_to_known_prototypes():
    c = client(received={"fedproto": (torch.ones(3, 2), torch.tensor([1.0, 1.0, 0.0]))})
    z, y = torch.tensor([[1.0, 3.0], [2.0, 1.0], [9.0, 9.0]], requires_grad=True), torch.tensor([0, 1, 2])
    loss = ALGORITHMS.make("fedproto(strength=3.0)").loss(c, Batch(None, y, z, None))
    assert loss.item() == pytest.approx(3 * (4 / 2 + 1 / 2 + 0) / 3)
    (gradient,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]]))
    assert ALGORITHMS.make("fedproto").loss(client(), Batch(None, y, z, None)) is None, "no prototypes yet"


def test_fedproto_server_by_hand():
    w = {"classifier.weight": torch.zeros(1)}

    def step(form, sums, counts, state=None):
        sent = {"prototype_sums": sums, "prototype_counts": [torch.tensor(c) for c in counts]}
        result = fedlib.aggregate(form, w, [w] * len(sums), [1] * len(sums), uploads=sent, state=state)
        return result.state, [t.tolist() for t in result.state["fedproto"]["prototypes"]]

    first = [torch.tensor([[1.0], [0.0]]), torch.tensor([[8.0], [0.0]])], [[1.0, 0.0], [2.0, 0.0]]
    second = [torch.tensor([[6.0], [2.0]])], [[1.0, 1.0]]
    for form, then in (("fedproto", 6.0), ("fedproto(variant=released)", 15 / 4)):
        state, found = step(form, *first)
        assert found == [[[3.0], [0.0]], [1.0, 0.0]]
        assert step(form, *second, state)[1] == [[[then], [2.0]], [1.0, 1.0]]
    state, _ = step("fedproto", *first)
    assert step("fedproto", *(([torch.tensor([[0.0], [2.0]])]), [[0.0, 1.0]]), state)[1][0] == [[3.0], [2.0]]


def test_fedproto_released_looks_before_the_mapping_layers():
    c, part = client("feddw_cnn_mnist", side=16, samples=5), ALGORITHMS.make("fedproto(variant=released)")
    part.begin(c)
    part.end(c)
    maps = c.model.eval().maps(c.data[0]).detach()
    torch.testing.assert_close(c.uploads["prototype_sums"][1], maps[[1, 4]].sum(0))
    assert not c.model.fc1._forward_pre_hooks
    with pytest.raises(FedlibError, match="mapping layers"):
        part.begin(Client(0, 1, torch.nn.Linear(1, 1), None, None, None, None))


def test_feddistill_is_the_divergence_from_the_mean_soft_label():
    omega = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    c, y = client(received={"feddistill": omega}), torch.tensor([2, 0])
    logits = torch.randn(2, 3, requires_grad=True)
    part = ALGORITHMS.make("feddistill(strength=2.0)")
    part.begin(c)
    loss = part.loss(c, Batch(None, y, None, logits))
    written = 2 * (omega[y] * (omega[y].log() - logits.log_softmax(1))).sum(1).mean()
    torch.testing.assert_close(loss, written)
    mine, theirs = (torch.autograd.grad(t, logits, retain_graph=True)[0] for t in (loss, written))
    torch.testing.assert_close(mine, theirs)
    sent = {"soft_labels": [torch.diag(torch.tensor([2.0, 0.0]))], "class_counts": [torch.tensor([4.0, 0.0])]}
    w = {"w": torch.zeros(1)}
    state = fedlib.aggregate("feddistill", w, [w], [1], uploads=sent).state
    assert state["feddistill"]["omega"].tolist() == [[0.5, 0.0], [0.0, 1.0]]


# what is scored


def test_all_clients_own_models_are_scored_stale_ones_and_newcomers_too():
    a = Run(algorithm="fedper", model="cnn_fmnist", subset=120, clients=5, participation=0.4, rounds=2)
    drawn = {k for n in (1, 2) for k in draw_clients(a.spec, n)[0]}
    assert set(a.now.clients) == drawn and 2 < len(drawn) < 5, "somebody is stale and somebody never took part"
    with one_thread():
        scores = []
        for k in range(5):
            theta, buffers = a.now.clients.get(k, {}).get("model", (a.now.theta, a.now.buffers))
            a.fed.flat.theta.copy_(theta)
            a.fed.flat.buffers.copy_(buffers)
            scores.append(evaluate(a.fed.flat.model, a.fed.x_test, a.fed.y_test))
        first, again = a.evaluate(), a.evaluate()
    assert [first["accuracy"], first["loss"]] == np.mean(scores, axis=0).tolist() and again == first
    a.fed.train_cohort(3, a.algorithm, a.now, {})
    newly = set(draw_clients(a.spec, 3)[0])
    assert {k for k, kept in a.now.clients.items() if "score" not in kept} == newly, "others keep their score"


def test_perfedavg_scores_the_global_model_fitted_to_every_client():
    a = Run(algorithm="perfedavg(adapt_steps=1, alpha=0.5)")
    with one_thread():
        fitted, losses = a.evaluate(), []
        for mine in a.fed.indices:
            a.fed.flat.theta.copy_(a.now.theta)
            a.fed.flat.grad.zero_()
            F.cross_entropy(a.fed.flat.model(a.fed.x[mine]), a.fed.y[mine]).backward()
            a.fed.flat.theta.sub_(a.fed.flat.grad, alpha=0.5)
            losses.append(evaluate(a.fed.flat.model, a.fed.x_test, a.fed.y_test)[1])
    assert fitted["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert not any("model" in kept for kept in a.now.clients.values())


def test_who_is_scored_is_the_methods_own_choice_and_one_run_has_one_id():
    assert TINY.replace(evaluation="global").id == TINY.id
    personal = TINY.replace(algorithm="fedper")
    assert personal.replace(evaluation="clients").id == personal.id
    ala = TINY.replace(algorithm="fedala")
    scored = ala.replace(evaluation="global")
    assert scored.id != ala.id and simulate(scored).series["train_loss"] == simulate(ala).series["train_loss"]
    with pytest.raises(FedlibError, match="no model of their own"):
        TINY.replace(evaluation="clients")
    for form in ("fedper", "fedrep", "local", "fedproto"):
        with pytest.raises(FedlibError, match="no complete global model"):
            TINY.replace(algorithm=form, evaluation="global")
    with pytest.raises(FedlibError, match="fedrep needs local_epochs >= 4; got 2"):
        TINY.replace(algorithm="fedrep(head_epochs=3)")


# in a run


@pytest.mark.parametrize("model", ["mlp(hidden=8)", "resnet8"])
@pytest.mark.parametrize("name", NAMES)
def test_each_works_with_and_without_batchnorm(name, model):
    shape = "digits(shape=(3, 8, 8))" if model == "resnet8" else "digits"
    small = {"subset": 40, "test_subset": 20, "rounds": 2, "lr": 0.01, "clients": 3, "participation": 0.7}
    record = simulate(TINY.replace(dataset=shape, model=model, algorithm=name, **small))
    assert record.status == "ok" and len(record.accuracy) == 2 and np.isfinite(record.curve("loss")).all()


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedper+dw(mu=100)", "fedrep+lws(beta=10.0)", "fedala+fedprox(mu=1.0)", "fedbabu+moon", "fedper+awa(lr=0.1)",
        "local+dw(mu=100)", "fedproto+dw(mu=100)", "perfedavg+fedprox(mu=1.0)+lws", "feddistill+dw(mu=100)",
    ],
)  # fmt: skip
def test_they_compose(algorithm):
    alone = simulate(TINY.replace(algorithm=algorithm.split("+")[0]))
    record = simulate(TINY.replace(algorithm=algorithm))
    assert record.status == "ok" and record.series["loss"] != alone.series["loss"]


@pytest.mark.parametrize(
    "text, says",
    [
        ("fedper+fedrep", "both say which part"),
        ("local+fedala", "both say which part"),
        ("local+lws", "'lws' has nothing to act on"),
        ("fedproto+fedavg(weights=uniform)", "'fedavg' has nothing to act on"),
        ("fedbabu+dw", "'dw' works on the classifier"),
        ("fedbabu+fedper", "'fedper' works on the classifier"),
        ("fedprox+perfedavg", "put it before them"),
        ("perfedavg+moon", "'moon' adds to the loss"),
        ("fedper(layers=-1)", "must not be negative"),
        ("fedrep(head_epochs=0)", "at least 1"),
        ("fedala(sample=2.0)", "a sample in"),
        ("fedproto(strength=-1)", "must not be negative"),
        ("feddistill(strength=-1)", "must not be negative"),
        ("perfedavg(alpha=-1)", "alpha >= 0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(text, says):
    with pytest.raises(FedlibError, match=says):
        Algorithm(text)


# client state


def test_models_are_kept_for_the_clients_that_took_part_and_no_others():
    """1,000 clients would hold 1,000 models only if all of them had been drawn."""
    a = Run(algorithm="fedala", clients=8, participation=0.25, rounds=2)
    assert set(a.now.clients) == {k for n in (1, 2) for k in draw_clients(a.spec, n)[0]}
    size = a.fed.flat.layout.size
    assert all(len(kept["model"][0]) == size and len(kept["model"][1]) == 0 for kept in a.now.clients.values())
    assert not Run(algorithm="feddistill").now.clients and not Run(algorithm="fedbabu").now.clients


@pytest.mark.parametrize("algorithm", ["fedala", "fedrep", "fedproto", "local+dw(mu=10)"])
def test_client_state_survives_a_stop(algorithm, stopped):
    """Partial participation, kept optimisers, stopped and taken up again: the same numbers as without a stop."""
    spec = TINY.replace(algorithm=algorithm, rounds=4, optimizer="adam", lr=0.01, keep_optimizer=True)
    resumed, straight = simulate(spec, stopped(spec)), simulate(spec)
    assert resumed.series == straight.series
    assert straight.series["loss"] != simulate(spec.replace(keep_optimizer=False)).series["loss"]


def test_workers_do_not_change_personal_runs(tmp_path):
    specs = [TINY.replace(algorithm=form) for form in ("fedala", "fedrep")]
    two = run_all(specs, jobs=2, store=Store(tmp_path), progress=False)
    assert [r.series for r in two] == [simulate(s).series for s in specs]


def test_perfedavg_ascends_where_curvature_is_above_one_over_alpha():
    """First order leaves out I - alpha H. One point with both labels: curvature |x|^2 / 2 across, nothing along."""
    for length, descends in ((10.0, True), (17.0, False)):  # curvature 50 and 145; 1 / alpha is 100
        flat = FlatModel(torch.nn.Linear(1, 2, bias=False))
        flat.theta.copy_(torch.tensor([1e-4, -1e-4]))
        c = Client(0, 1, flat.model, flat.layout, flat.theta, flat.grad, flat.theta.clone())
        part, batch = (
            ALGORITHMS.make("perfedavg(alpha=0.01)"),
            Batch(torch.full((2, 1), length), torch.arange(2), None, None),
        )
        flat.grad.zero_()
        F.cross_entropy(flat.model(batch.x), batch.y).backward()
        downhill = flat.grad.clone()
        part.loss(c, batch)
        part.gradient(c)
        assert (torch.dot(flat.grad, downhill) > 0) == descends, length
