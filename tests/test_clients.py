"""Client-side methods on numbers worked out by hand, their limits, and their written losses."""

import copy
import math

import pytest
import torch
from torch import nn

import fedlib
from fedlib.algorithms import ALGORITHMS, Algorithm, Batch, Client
from fedlib.core.device import one_thread
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel
from fedlib.core.spec import RunSpec
from fedlib.federation.federation import Federation
from fedlib.models import build
from fedlib.runs.execute import simulate

TINY = RunSpec(
    dataset="digits", model="mlp(hidden=8)", partition="dirichlet(alpha=0.5)", subset=200, test_subset=100, clients=4,
    participation=0.5, rounds=3, batch_size=16, seed=1,
)  # fmt: skip
CNN = "feddw_cnn_mnist"  # with dropout, so that a method that draws random numbers would show


def client(theta=(3.0, 0.0), anchor=(1.0, 1.0), grad=(0.5, 0.5), **fields) -> Client:
    """A model of two numbers."""
    flat = FlatModel(nn.Linear(2, 1, bias=False))
    flat.theta.copy_(torch.tensor(theta))
    flat.grad.copy_(torch.tensor(grad))
    return Client(0, 1, flat.model, flat.layout, flat.theta, flat.grad, torch.tensor(anchor), **fields)


def trained(spec: RunSpec) -> torch.Tensor:
    """The global parameters after the run, unrounded."""
    with one_thread():
        fed, algorithm, memory = Federation(spec), Algorithm(spec.algorithm), {}
        run = fed.start()
        for number in range(1, spec.rounds + 1):
            r = fed.train_cohort(number, algorithm, run, {})
            run.theta, run.buffers = algorithm.aggregate(r, memory)
    return run.theta


def states(*values) -> list[dict]:
    return [{"w": torch.tensor(v)} for v in values]


def close(mine, expected) -> None:
    torch.testing.assert_close(mine, torch.tensor(expected))


def test_feddyn_client_by_hand():
    part = ALGORITHMS.make("feddyn(alpha=0.1)")
    c = client(state={"feddyn": torch.tensor([1.0, -1.0])})
    part.begin(c)
    part.gradient(c)
    close(c.grad, [0.5 - 1.0 + 0.1 * 2, 0.5 + 1.0 + 0.1 * -1])
    part.end(c)
    close(c.state["feddyn"], [1.0 - 0.1 * 2, -1.0 - 0.1 * -1])


@pytest.mark.parametrize("variant, alpha", [("paper", 0.3), ("authors", 0.3 / 1.5), ("released", 0.3)])
def test_feddyn_gradient_is_autograd_of_the_written_loss(variant, alpha):
    h, c = torch.tensor([0.2, -0.7]), client(grad=(0.0, 0.0), relative_size=1.5)
    c.state["feddyn"] = h
    part = ALGORITHMS.make(f"feddyn(alpha=0.3, variant={variant})")
    part.begin(c)
    part.gradient(c)
    w = c.theta.clone().requires_grad_()
    norm = (w - c.anchor).norm()
    loss = alpha / 2 * (norm if variant == "released" else norm.square()) - torch.dot(h, w)
    (expected,) = torch.autograd.grad(loss, w)
    torch.testing.assert_close(c.grad, expected)


@pytest.mark.parametrize("variant", ["paper", "authors", "released"])
def test_feddyn_client_without_strength_or_at_the_start_is_fedavgs(variant):
    for text, theta in [("alpha=0.0", (3.0, 0.0)), ("alpha=0.3", (1.0, 1.0))]:
        part, c = ALGORITHMS.make(f"feddyn({text}, variant={variant})"), client(theta=theta)
        part.begin(c)
        part.gradient(c)
        assert c.grad.tolist() == [0.5, 0.5]


def test_feddyn_server_by_hand():
    # Two of four clients: h/alpha = -(1/4) * (1 + 3) = -1, so the mean 2 becomes 3.
    some = dict(sizes=[1, 9], clients=4, trained=True)
    first = fedlib.aggregate("feddyn", *states([0.0]), states([1.0], [3.0]), **some)
    close(first.state_dict["w"], [2.0 + 1.0])
    second = fedlib.aggregate("feddyn", first.state_dict, states([4.0], [6.0]), state=first.state, **some)
    close(second.state_dict["w"], [5.0 + 1.0 + (1 + 3) / 4])
    off = fedlib.aggregate("feddyn(alpha=0)", *states([0.0]), states([1.0], [3.0]), **some)
    close(off.state_dict["w"], [2.0])


def test_feddyn_scores_what_is_sent_or_the_mean_of_the_clients():
    for score, expected in {"sent": 4.0, "mean": 2.0}.items():  # two of two clients: h/alpha = -(1 + 3)/2
        form = f"feddyn(score={score})"
        result = fedlib.aggregate(form, *states([0.0]), states([1.0], [3.0]), sizes=[1, 1], clients=2, trained=True)
        sent = result.state_dict["w"]
        close(sent, [4.0])
        close(Algorithm(form).evaluated(sent, None, result.state), [expected])
    assert TINY.replace(algorithm="feddyn(score=sent)") == TINY.replace(algorithm="feddyn")


def test_feddyn_released_takes_the_first_clients_buffers():
    one, two = nn.BatchNorm1d(2).state_dict(), nn.BatchNorm1d(2).state_dict()
    two["running_mean"] = torch.tensor([4.0, 8.0])
    result = fedlib.aggregate("feddyn(variant=released)", one, [two, one], sizes=[1, 3], trained=True)
    assert result.state_dict["running_mean"].tolist() == [4.0, 8.0]


def test_feddyn_refuses_a_negative_strength():
    with pytest.raises(FedlibError, match="must not be negative"):
        ALGORITHMS.make("feddyn(alpha=-1)")


def test_scaffold_by_hand():
    part = ALGORITHMS.make("scaffold")
    c = client(state={"scaffold": torch.tensor([1.0, 0.0])}, received={"scaffold": torch.tensor([0.0, 2.0])})
    part.begin(c)
    part.gradient(c)
    close(c.grad, [0.5 - 1.0, 0.5 + 2.0])
    c.grad.copy_(torch.tensor([1.5, -0.5]))
    part.gradient(c)
    part.end(c)
    close(c.state["scaffold"], [1.0, 0.0])  # the mean of (0.5, 0.5) and (1.5, -0.5)
    close(c.uploads["scaffold"], [0.0, 0.0])
    sent = {"scaffold": [torch.tensor([1.0]), torch.tensor([3.0])]}
    result = fedlib.aggregate("scaffold", *states([0.0]), states([1.0], [3.0]), [1, 9], clients=8, uploads=sent)
    close(result.state_dict["w"], [2.0])
    close(result.state["scaffold"]["c"], [0.5])


def test_scaffold_is_option_two_for_plain_sgd():
    part, lr, steps = ALGORITHMS.make("scaffold"), 0.1, 5
    own, common = torch.tensor([0.3, -0.2]), torch.tensor([-0.1, 0.4])
    c = client(theta=(1.0, 1.0), state={"scaffold": own}, received={"scaffold": common})
    part.begin(c)
    for _ in range(steps):
        c.grad.copy_(c.theta.square() - 2)  # of some loss
        part.gradient(c)
        c.theta.add_(c.grad, alpha=-lr)
    part.end(c)
    torch.testing.assert_close(c.state["scaffold"], own - common + (c.anchor - c.theta) / (steps * lr))


def test_fednova_by_hand():
    def step(carried, form="fednova"):
        return fedlib.aggregate(form, *states([0.0]), states([4.0], [2.0]), [1, 3], uploads={"fednova": carried})

    # tau_eff = 1/4 * 8 + 3/4 * 2 = 3.5; 3.5 * (1/4 * 4/8 + 3/4 * 2/2) = 3.0625.
    result = step([8, 2])
    assert result.factors["tau_eff"] == 3.5
    close(result.state_dict["w"], [3.0625])
    close(step([3, 3]).state_dict["w"], [2.5])  # equal steps: FedAvg
    close(step([8, 2], "fednova+gamma(gamma=0.5)").state_dict["w"], [0.5 * 3.0625])
    with pytest.raises(FedlibError, match="needs 'fednova' of every client"):
        step([])
    with pytest.raises(FedlibError, match="per layer"):
        step([1, 1], "fednova+ldawa")


def test_fednova_knows_how_far_steps_carry():
    part = ALGORITHMS.make("fednova")
    for momentum, expected in [(0.0, 3.0), (0.5, 1 + 1.5 + 1.75)]:  # a constant gradient of 1 over three steps
        c = client(momentum=momentum)
        part.begin(c)
        for _ in range(3):
            part.gradient(c)
        part.end(c)
        assert c.uploads["fednova"] == pytest.approx(expected)


def test_fednova_with_equal_steps_is_fedavg():
    same = TINY.replace(partition="iid", clients=2, participation=1.0)
    nova, avg = (simulate(same.replace(algorithm=a)).series["loss"] for a in ("fednova", "fedavg"))
    assert nova == pytest.approx(avg, rel=1e-5)


def test_moon_term_is_the_written_loss_and_leaves_the_model_alone():
    torch.manual_seed(0)
    live, previous = (FlatModel(build("cnn_fmnist", (1, 12, 12), 3, seed)) for seed in (1, 2))
    anchor = copy.deepcopy(live)
    live.model.train()
    c = Client(0, 2, live.model, live.layout, live.theta, live.grad, anchor.theta)
    c.state["moon"] = {name: t.clone() for name, t in previous.model.state_dict().items()}
    part, x = ALGORITHMS.make("moon(mu=2.0, temperature=0.25)"), torch.randn(4, 1, 12, 12)
    part.begin(c)
    live.theta.add_(torch.randn_like(live.theta), alpha=0.05)
    z = live.model.features(x)
    before = [t.clone() for t in (live.theta, live.buffers)]
    mine = part.loss(c, Batch(x, torch.zeros(4), z, live.model.classifier(z)))
    with torch.no_grad():
        z_g, z_prev = (m.model.eval().features(x) for m in (anchor, previous))
    e_g, e_prev = ((nn.functional.cosine_similarity(z, other) / 0.25).exp() for other in (z_g, z_prev))
    written = 2.0 * -(e_g / (e_g + e_prev)).log().mean()
    torch.testing.assert_close(mine, written)
    expected, live.grad[:] = torch.autograd.grad(written, z, retain_graph=True)[0], 0
    torch.testing.assert_close(torch.autograd.grad(mine, z, retain_graph=True)[0], expected)
    mine.backward()
    assert live.grad.abs().sum() > 0 and live.model.training
    assert all(torch.equal(a, b) for a, b in zip(before, (live.theta, live.buffers), strict=True))


def test_moon_without_strength_is_fedavg_bit_for_bit():
    spec = TINY.replace(model=CNN, subset=40, test_subset=20, participation=1.0, clients=2, rounds=2)
    plain = trained(spec)
    assert torch.equal(trained(spec.replace(algorithm="moon(mu=0)")), plain)
    assert not torch.equal(trained(spec.replace(algorithm="moon")), plain)
    first = spec.replace(rounds=1)
    assert torch.equal(trained(first.replace(algorithm="moon")), trained(first)), "no previous model yet"


def test_feduv_is_zero_where_the_paper_wants_it_and_survives_small_batches():
    part = ALGORITHMS.make("feduv(variance=2.0, uniformity=4.0)")
    # One-hot predictions of a balanced batch vary enough. Two pairs of points: distances^2 are 0, 0, 1, 1, 1, 1.
    logits = 200 * torch.eye(4)
    features = torch.tensor([[0.0], [0.0], [1.0], [1.0]], requires_grad=True)
    loss = part.loss(None, Batch(None, torch.arange(4), features, logits))
    close(loss.detach(), 4.0 * (2 + 4 * math.exp(-1)) / 6)
    # Constant predictions lack 1/sqrt(4) of deviation; coinciding features have no kernel.
    alike = torch.ones(3, 1, requires_grad=True)
    loss = part.loss(None, Batch(None, torch.arange(3), alike, alike.expand(3, 4)))
    close(loss.detach(), 2.0 * 0.5)
    assert part.loss(None, Batch(None, torch.arange(1), features[:1], logits[:1])) is None


def dw_client(omega: torch.Tensor) -> Client:
    torch.manual_seed(0)
    flat = FlatModel(build("feddw_cnn_mnist(bias=False)", (1, 16, 16), 3, seed=1))
    flat.grad.zero_()
    return Client(0, 1, flat.model, flat.layout, flat.theta, flat.grad, flat.theta.clone(), {}, {"omega": omega})


@pytest.mark.parametrize("form", ["square", "linear", "relu"])
def test_dw_gradient_is_autograd_of_the_written_loss(form):
    omega = torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.5, 0.2], [0.0, 0.4, 0.6]])
    c, part = dw_client(omega), ALGORITHMS.make(f"dw(mu=0.7, form={form})")
    part.begin(c)
    part.epoch(c)
    w0 = c.model.classifier.weight.detach().clone()
    c.model.classifier.weight.data.mul_(3).add_(0.1)  # away from A_0
    part.gradient(c)
    w = c.model.classifier.weight.detach().clone().requires_grad_()
    products = [v @ v.T for v in (w, w0)]
    a, a0 = (torch.softmax(p.relu() if form == "relu" else p, 1) for p in products)
    near = a0.T @ a + a.T @ a0 - a0.T @ a0 if form == "linear" else a
    (expected,) = torch.autograd.grad(0.7 / 9 * (omega - near).square().sum(), w)
    torch.testing.assert_close(c.model.classifier.weight.grad, expected)
    assert c.grad.count_nonzero() == expected.numel(), "no other parameter is touched"


def test_dw_linear_form_meets_the_printed_one_at_its_reference():
    torch.manual_seed(1)
    omega, a0 = torch.rand(3, 3).softmax(1), torch.rand(3, 3).softmax(1).requires_grad_()
    a = a0.detach().clone().requires_grad_()
    (printed,) = torch.autograd.grad((omega - a0.T @ a0).square().sum(), a0)
    fixed = a0.detach()
    (linear,) = torch.autograd.grad((omega - fixed.T @ a - a.T @ fixed + fixed.T @ fixed).square().sum(), a)
    torch.testing.assert_close(linear, printed)


def test_dw_server_by_hand():
    # Class 0: two samples, class 1 nobody's: its row stays the identity's, then what the second round makes of it.
    sums, counts = [torch.tensor([[0.6, 0.4], [0.0, 0.0]]), torch.tensor([[0.8, 0.2], [0.0, 0.0]])], [1.0, 0.0]
    w = {"w": torch.zeros(1)}

    def step(form, sums, counts, state=None):
        uploads = {"soft_labels": sums, "class_counts": [torch.tensor(c) for c in counts]}
        return fedlib.aggregate(form, w, [w] * len(sums), [1] * len(sums), uploads=uploads, state=state).state

    memory = step("dw", sums, [counts, counts])
    close(memory["dw"]["omega"], [[0.7, 0.3], [0.0, 1.0]])
    second = [torch.tensor([[0.0, 0.0], [0.5, 1.5]])]
    memory = step("dw", second, [[0.0, 2.0]], memory)
    close(memory["dw"]["omega"], [[0.7, 0.3], [0.25, 0.75]])
    # As released: all rounds so far, and half of the Omega before.
    memory = step("dw(variant=released)", sums, [counts, counts])
    close(memory["dw"]["omega"], [[0.85, 0.15], [0.0, 1.0]])
    memory = step("dw(variant=released)", second, [[0.0, 2.0]], memory)
    close(memory["dw"]["omega"], [[0.775, 0.225], [0.125, 0.875]])


def test_dw_released_divides_mu_in_every_ninth_round():
    c, part = dw_client(torch.eye(3)), ALGORITHMS.make("dw(mu=1.0, variant=released)")
    strengths = []
    for c.round in (1, 8, 9, 17, 18):
        part.begin(c)
        strengths.append(c.memo["mu"])
    assert strengths == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_dw_without_strength_is_fedavg_bit_for_bit():
    spec = TINY.replace(model="feddw_cnn_mnist(bias=False)", subset=40, test_subset=20, participation=1.0, clients=2)
    plain = trained(spec.replace(rounds=2))
    assert torch.equal(trained(spec.replace(rounds=2, algorithm="dw(mu=0)")), plain)
    assert not torch.equal(trained(spec.replace(rounds=2, algorithm="dw(mu=10)")), plain)


def test_dw_sends_the_mean_soft_labels_of_the_trained_model():
    c = dw_client(torch.eye(3))
    c.data, c.classes = (torch.rand(5, 1, 16, 16), torch.tensor([0, 2, 2, 0, 2])), 3
    ALGORITHMS.make("dw").end(c)
    p = c.model.eval()(c.data[0]).softmax(1).detach()
    expected = torch.stack([p[[0, 3]].sum(0), torch.zeros(3), p[[1, 2, 4]].sum(0)])
    torch.testing.assert_close(c.uploads["soft_labels"], expected)
    assert c.uploads["class_counts"].tolist() == [2, 0, 3]


def test_state_is_kept_for_the_clients_that_took_part_and_no_others():
    """What 1,000 clients would hold is a multiple of this: one model's length each, once they have been drawn."""
    spec = TINY.replace(clients=8, participation=0.25, algorithm="scaffold+feddyn")
    fed, algorithm = Federation(spec), Algorithm(spec.algorithm)
    run = fed.start()
    drawn = set()
    for number in (1, 2):
        drawn |= set(fed.train_cohort(number, algorithm, run, {}).ids)
        assert set(run.clients) == drawn
    for kept in run.clients.values():
        assert {name: len(vector) for name, vector in kept.items()} == dict.fromkeys(
            ("scaffold", "feddyn"), fed.flat.layout.size
        )


@pytest.mark.parametrize(
    "algorithm",
    [
        "feddyn",
        "feddyn(variant=authors)+lws",
        "scaffold",
        "moon+fednova",
        "moon+dw(mu=10)",
        "dw(mu=10, variant=released)",
    ],
)
def test_client_state_survives_a_stop(algorithm, stopped):
    """Partial participation, stopped and taken up again: the same numbers as without a stop."""
    spec = TINY.replace(algorithm=algorithm, rounds=4, lr=0.1)
    resumed, straight = simulate(spec, stopped(spec)), simulate(spec)
    assert resumed.series == straight.series
    assert straight.series["loss"] != simulate(spec.replace(algorithm="fedavg")).series["loss"]
