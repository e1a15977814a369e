"""Learned aggregation weights and distillation on the proxy set: by hand, and their properties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedlib
from fedlib.algorithms import ALGORITHMS, Algorithm, Round
from fedlib.algorithms.law import swa_rate
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel, Layout
from fedlib.core.random import stream
from fedlib.core.registry import canonical
from fedlib.core.spec import RunSpec
from fedlib.models import build
from fedlib.runs.execute import simulate

LN2 = math.log(2)
ONE = (torch.ones(1, 1), torch.tensor([0]))  # one sample x = 1 of class 0


class Three(nn.Linear):
    """Three numbers: the logits themselves, at x = 1."""

    def __init__(self):
        super().__init__(1, 3, bias=False)


def three(*values) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor(values)[:, None]}


def by_hand(algorithm: str, clients=((2 * LN2, 0.0, 0.0), (0.0, 0.0, 0.0)), sizes=(1, 1), **more):
    more = {"model": Three(), "proxy": ONE} | more
    return fedlib.aggregate(algorithm, three(0.0, 0.0, 0.0), [three(*c) for c in clients], list(sizes), **more)


# The average of the two clients is (ln 2, 0, 0): softmax (1/2, 1/4, 1/4), so dL/dtheta = (-1/2, 1/4, 1/4) and
# <dL/dtheta, w_k> = (-ln 2, 0). One step of plain SGD with lr 1 follows from Eq. 10.
STEP = "optimizer=sgd, lr=1, epochs=1"


def test_law_exponential_by_hand():
    result = by_hand(f"law({STEP})")
    # dz = -ln2/2, dx = (-ln2/4, +ln2/4)
    assert result.factors["gamma"] == pytest.approx(math.sqrt(2))
    share = math.sqrt(2) / (1 + math.sqrt(2))
    assert result.weights.tolist() == pytest.approx([share, 1 - share])
    expected = three(math.sqrt(2) * share * 2 * LN2, 0.0, 0.0)["weight"]
    torch.testing.assert_close(result.state_dict["weight"], expected)
    assert result.factors["lambda"] == {"0": round(share, 4), "1": round(1 - share, 4)}


def test_law_quadratic_by_hand():
    result = by_hand(f"law({STEP}, function=quad)")
    one, two = (1 + LN2) ** 2, (1 - LN2) ** 2
    assert result.factors["gamma"] == pytest.approx(one)
    assert result.weights.tolist() == pytest.approx([one / (one + two), two / (one + two)])


def test_gws_and_attentive_by_hand():
    gws = by_hand(f"gws({STEP})")
    assert gws.factors["gamma"] == pytest.approx(math.sqrt(2)) and gws.weights.tolist() == [0.5, 0.5]
    torch.testing.assert_close(gws.state_dict["weight"], three(math.sqrt(2) * LN2, 0.0, 0.0)["weight"])
    attentive = by_hand(f"attentive({STEP})")
    share = math.sqrt(2) / (1 + math.sqrt(2))
    assert attentive.weights.tolist() == pytest.approx([share, 1 - share])
    torch.testing.assert_close(attentive.state_dict["weight"], three(share * 2 * LN2, 0.0, 0.0)["weight"])


def test_law_starts_from_the_sizes_in_both_parametrisations():
    for function in ("exp", "quad"):
        still = by_hand(f"law(optimizer=sgd, lr=1e-9, epochs=1, function={function})", sizes=(3, 1))
        assert still.weights.tolist() == pytest.approx([0.75, 0.25])
    released = by_hand("law(variant=released, optimizer=sgd, lr=1e-9, epochs=1, function=quad)", sizes=(3, 1))
    assert released.weights.tolist() == pytest.approx([0.5, 0.5])


def test_two_stages_in_the_papers_order_and_the_other():
    """Gamma first: it is learned at the sizes. Lambda first: gamma is learned at the lambda found."""
    half = "optimizer=sgd, lr=1e-9, epochs=14, swa=True"
    for first in ("gamma", "weights"):
        learned = by_hand(f"law({half}, first={first})", sizes=(3, 1))
        assert learned.factors["gamma"] == pytest.approx(1.0)
        assert learned.weights.tolist() == pytest.approx([0.75, 0.25], abs=1e-6)
    settings = "optimizer=sgd, lr=0.1, epochs=40"
    gamma = by_hand(f"gws({settings[:-2]}20)").factors["gamma"]
    assert by_hand(f"law({settings}, swa=True)").factors["gamma"] == pytest.approx(gamma)
    weights = by_hand(f"attentive({settings[:-2]}20, swa=True)").weights
    torch.testing.assert_close(by_hand(f"law({settings}, swa=True, first=weights)").weights, weights)
    assert by_hand(f"law({settings}, swa=True, first=weights)").factors["gamma"] != pytest.approx(gamma)


def test_swa_averages_the_later_logits():
    """At a vanishing rate for the first seven epochs, SWA's own rate moves the rest; the mean lies in between."""
    swa = by_hand("attentive(optimizer=sgd, lr=1e-9, epochs=20, swa=True)").weights[0]
    assert 0.5 < swa < by_hand("attentive(optimizer=sgd, lr=0.05, epochs=20)").weights[0]


def test_swa_rate_meets_its_ends():
    assert swa_rate(0.01, 0) == 0.01
    base = 0.01 * (1 + math.cos(math.pi * 6 / 100)) / 2
    assert swa_rate(0.01, 6) == pytest.approx(base)
    assert swa_rate(0.01, 11) == pytest.approx((base + 0.05) / 2)
    assert swa_rate(0.01, 16) == swa_rate(0.01, 40) == pytest.approx(0.05)


def test_attentive_stops_after_a_round():
    learned = by_hand(f"attentive({STEP}, until=3)", round=3)
    stopped = by_hand(f"attentive({STEP}, until=3)", round=4)
    assert learned.weights[0] > 0.58 and stopped.weights.tolist() == [0.5, 0.5]
    assert stopped.factors["lambda"] == {"0": 0.5, "1": 0.5}
    torch.testing.assert_close(stopped.state_dict["weight"], three(LN2, 0.0, 0.0)["weight"])


def test_server_learning_rate_is_part_of_what_is_optimised():
    """w_g - eta_g g_g is shrunk as a whole (Eq. 4): at eta = 1/2 the average is (ln2 / 2, 0, 0)."""
    still = [
        by_hand(f"{name}(optimizer=sgd, lr=1e-9, epochs=1)", server_lr=0.5) for name in ("law", "gws", "attentive")
    ]
    for result in still:
        torch.testing.assert_close(result.state_dict["weight"], three(LN2 / 2, 0.0, 0.0)["weight"])


def test_what_earlier_server_parts_did_is_kept():
    still = by_hand("gamma(gamma=0.5)+law(optimizer=sgd, lr=1e-9, epochs=1)")
    torch.testing.assert_close(still.state_dict["weight"], three(LN2 / 2, 0.0, 0.0)["weight"])
    both = by_hand(f"law({STEP})+lws")
    assert set(both.factors["gamma"]) > {"model"}


numbers = st.floats(-2, 2, width=32)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(numbers, numbers, numbers), min_size=2, max_size=5),
    st.sampled_from(["law(epochs=14, swa=True)", "law(epochs=5, function=quad)", "attentive(epochs=5)"]),
)
def test_weights_are_a_distribution_that_follows_the_clients(clients, algorithm):
    sizes = list(range(1, len(clients) + 1))
    result = by_hand(algorithm, clients, sizes)
    assert (result.weights >= 0).all() and float(result.weights.sum()) == pytest.approx(1, abs=1e-5)
    assert result.factors["gamma"] > 0
    average = result.weights @ torch.tensor(clients)
    expected = result.factors["gamma"] * average
    torch.testing.assert_close(result.state_dict["weight"][:, 0], expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(4)), st.sampled_from(["exp", "quad"]))
def test_permuting_the_clients_permutes_the_weights(order, function):
    clients = [(1.0, 0.0, 0.0), (0.0, 1.5, 0.3), (0.2, 0.4, -1.0), (-0.5, 0.1, 0.7)]
    straight = by_hand(f"law(epochs=10, function={function})", clients, [1, 2, 3, 4])
    permuted = by_hand(f"law(epochs=10, function={function})", [clients[i] for i in order], [i + 1 for i in order])
    torch.testing.assert_close(permuted.weights, straight.weights[list(order)], rtol=1e-4, atol=1e-5)
    assert permuted.factors["gamma"] == pytest.approx(straight.factors["gamma"], rel=1e-4)


@pytest.mark.parametrize("algorithm", ["attentive(epochs=10)", "feddf(optimizer=sgd, epochs=10)"])
def test_identical_clients_stay_the_average(algorithm):
    result = by_hand(algorithm, [(0.3, -0.2, 0.9)] * 3, [1, 5, 2])
    torch.testing.assert_close(result.state_dict["weight"], three(0.3, -0.2, 0.9)["weight"])


def test_learning_lowers_the_proxy_loss_of_a_real_network():
    torch.manual_seed(0)
    model = build("cnn_fmnist", (1, 28, 28), 10, 0).eval()
    x, y = torch.randn(40, 1, 28, 28), torch.arange(40) % 10

    def noisy():
        return {n: t + 0.1 * torch.randn(t.shape) if t.is_floating_point() and t.ndim else t for n, t in state.items()}

    state = {n: t.clone() for n, t in model.state_dict().items()}
    clients = [noisy() for _ in range(3)]
    for c in clients:
        for n in c:
            if n.endswith("running_var"):
                c[n] = c[n].abs()

    def loss(algorithm):
        learned = fedlib.aggregate(algorithm, state, clients, [1, 1, 1], model=model, proxy=(x, y)).state_dict
        model.load_state_dict(learned)
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model.eval()(x), y))

    before = loss("fedavg")
    for algorithm in ("law(epochs=10)", "gws(epochs=10)", "attentive(epochs=10)", "server_ft(epochs=10)"):
        assert loss(algorithm) < before, algorithm


def round_of(model: nn.Module, clients: int, proxy, train: bool) -> Round:
    flat = FlatModel(model)
    flat.model.train(train)
    thetas = flat.theta + 0.1 * torch.randn(clients, len(flat.theta))
    buffers = flat.buffers + torch.rand(clients, len(flat.buffers))
    context = {"model": flat, "proxy": proxy, "seed": 0}
    return Round(
        flat.layout, flat.theta.clone(), flat.buffers.clone(), thetas, buffers, torch.ones(clients),
        list(range(clients)), context=context,
    )  # fmt: skip


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "algorithm", ["law(epochs=1)", "gws(epochs=1, bn=proxy)", "feddf(epochs=1)", "fedbe(epochs=1)"]
)
def test_the_models_mode_comes_back(algorithm, train):
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    r = round_of(net, 3, (torch.randn(6, 4), torch.arange(6) % 2), train)
    Algorithm(algorithm).aggregate(r, {})
    assert r.context["model"].model.training is train


def test_batchnorm_statistics_averaged_or_from_the_proxy():
    torch.manual_seed(1)
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    x = torch.randn(50, 2) * 3 + 5
    r = round_of(net, 2, (x, torch.arange(50) % 2), True)
    Algorithm("law(epochs=5)").aggregate(r, {})
    torch.testing.assert_close(r.aggregate_buffers, r.weights @ r.client_buffers)
    Algorithm("law(epochs=60, bn=proxy)").aggregate(r, {})
    state = r.layout.unpack(r.aggregate, r.aggregate_buffers)
    torch.testing.assert_close(state["0.running_mean"], x.mean(0), rtol=0.02, atol=0)
    torch.testing.assert_close(state["0.running_var"], x.var(0), rtol=0.02, atol=0)
    assert int(state["0.num_batches_tracked"]) == 60


def test_balanced_sampling_shows_every_class_alike():
    y = torch.tensor([0] * 90 + [1] * 10)
    r = round_of(nn.Linear(1, 2), 1, (torch.zeros(100, 1), y), True)
    part = ALGORITHMS.make("gws(sampling=balanced, batch=30)")
    rng = stream(0, "proxy batches", 1)
    epochs = [torch.cat(list(batches)) for batches in part.passes(r, 50, rng)]
    assert len(epochs[0]) == 100
    assert float(y[torch.cat(epochs)].float().mean()) == pytest.approx(0.5, abs=0.03)
    shuffled = [torch.cat(list(b)) for b in ALGORITHMS.make("gws").passes(r, 2, rng)]
    assert sorted(shuffled[0].tolist()) == list(range(100)) and shuffled[0].tolist() != shuffled[1].tolist()


def test_feddf_by_hand():
    """Mean logits (ln 2, 0, 0) from clients of unequal size: the target is (1/2, 1/4, 1/4), not the sizes' mix."""
    result = by_hand("feddf(optimizer=sgd, lr=1, epochs=1)", sizes=(1, 3))
    start = torch.tensor([LN2 / 2, 0.0, 0.0])
    expected = start - (start.softmax(0) - torch.tensor([0.5, 0.25, 0.25]))
    torch.testing.assert_close(result.state_dict["weight"][:, 0], expected)


def test_server_ft_by_hand():
    result = by_hand("server_ft(optimizer=sgd, lr=1, epochs=1)")
    torch.testing.assert_close(result.state_dict["weight"], three(LN2 + 0.5, -0.25, -0.25)["weight"])


def test_fedbe_without_noise_draws_the_mean_direction():
    """Clients (2, 0, 0) and (0, 1, 0): unit directions e1 and e2, mean length 1.5, draw (0.75, 0.75, 0)."""
    clients = [(2.0, 0.0, 0.0), (0.0, 1.0, 0.0)]
    result = by_hand("fedbe(optimizer=sgd, lr=1, epochs=1, noise=0)", clients)
    teachers = torch.tensor([[1.0, 0.5, 0.0], *clients, [0.75, 0.75, 0.0]])
    start = teachers[0]
    expected = start - (start.softmax(0) - teachers.mean(0).softmax(0))
    torch.testing.assert_close(result.state_dict["weight"][:, 0], expected)


def test_the_released_server_keeps_its_momentum():
    first = by_hand("server_ft(variant=released, epochs=1)")
    again = by_hand("server_ft(variant=released, epochs=1)", state=first.state)
    afresh = by_hand("server_ft(variant=released, epochs=1)")
    torch.testing.assert_close(first.state_dict["weight"], afresh.state_dict["weight"])
    assert not torch.equal(again.state_dict["weight"], first.state_dict["weight"])
    paper = by_hand("server_ft")
    assert torch.equal(by_hand("server_ft", state=paper.state).state_dict["weight"], paper.state_dict["weight"])


def test_one_written_form_per_variant():
    for text in ("law(epochs=100)", "law(optimizer='adam(beta1=0.5, beta2=0.999)')", "law(bn=averaged, first=gamma)"):
        assert canonical(ALGORITHMS.make(text)) == "law"
    assert canonical(ALGORITHMS.make("law(variant=released, epochs=20, bn=proxy)")) == "law(variant=released)"
    assert canonical(ALGORITHMS.make("law(variant=released, epochs=100)")) == "law(variant=released, epochs=100)"
    for name, epochs in {"law": 100, "gws": 100, "attentive": 100, "feddf": 100, "fedbe": 100, "server_ft": 2}.items():
        part = ALGORITHMS.make(name)
        assert (part.resolved.epochs, part.resolved.optimizer) == (epochs, "adam(beta1=0.5)")


@pytest.mark.parametrize(
    "text",
    ["law(epochs=0)", "law(batch=0)", "law(lr=0)", "law(swa=True, epochs=12)", "fedbe(samples=-1)", "law(bn=x)"]
    + ["law(first=weights)", "law(variant=released, first=gamma)"],
)
def test_impossible_parameters_are_refused(text):
    with pytest.raises(FedlibError):
        Algorithm(text)


def test_a_missing_proxy_is_named():
    with pytest.raises(FedlibError, match="needs model and proxy"):
        fedlib.aggregate("law", three(0.0, 0.0, 0.0), [three(1.0, 0.0, 0.0)], [1])


SMALL = RunSpec(
    dataset="digits", model="mlp(hidden=16)", partition="dirichlet(alpha=0.5)", clients=5, rounds=3, lr=0.1,
    proxy="balanced(size=50)",
)  # fmt: skip


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedprox+law(epochs=10)", "fedlap+law(epochs=14, swa=True)", "fedprox+gws(epochs=10)", "feddf(epochs=5)",
        "attentive(epochs=7, swa=True, until=2)", "fedbe(epochs=5)", "server_ft(variant=released)",
    ],
)  # fmt: skip
def test_runs_compose_and_repeat(algorithm):
    one, two = simulate(SMALL.replace(algorithm=algorithm)), simulate(SMALL.replace(algorithm=algorithm))
    assert one.status == "ok" and one.series == two.series
    assert one.summary["last"] > 0.3
    if "law" in algorithm:
        assert len(one.curve("gamma")) == 3
        weights = [one.curve(name) for name in one.series if name.startswith("lambda/")]
        assert len(weights) == SMALL.clients and sum(weights) == pytest.approx(1, abs=1e-3)


def test_weights_per_layer_are_refused():
    layout = Layout.of_state(three(0.0, 0.0, 0.0))
    r = Round(layout, torch.zeros(3), torch.zeros(0), torch.ones(2, 3), torch.zeros(2, 0), torch.ones(2), [0, 1])
    r.weights, r.aggregate = torch.ones(2, 1) / 2, torch.ones(3)
    with pytest.raises(FedlibError, match="one weight per client"):
        ALGORITHMS.make("law").step(r)
