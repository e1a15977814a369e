"""FedLWS and its neighbours on numbers worked out by hand, and what their equations promise."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedlib
from fedlib import RunSpec
from fedlib.algorithms import ALGORITHMS, Algorithm
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Layout
from fedlib.models import build
from fedlib.runs.execute import simulate

# Two layers, three numbers: ||w|| is 5 and 2; the two clients' updates are (2, 0), (0, 0) and 2, 0.
GLOBAL = {"a.weight": torch.tensor([3.0, 4.0]), "b.weight": torch.tensor([2.0])}
CLIENTS = [
    {"a.weight": torch.tensor([5.0, 4.0]), "b.weight": torch.tensor([4.0])},
    {"a.weight": torch.tensor([3.0, 4.0]), "b.weight": torch.tensor([2.0])},
]


def outcome(algorithm, anchor=GLOBAL, clients=CLIENTS, sizes=None, **more):
    result = fedlib.aggregate(algorithm, anchor, clients, sizes or [1] * len(clients), **more)
    return result, torch.cat([t.flatten() for t in result.state_dict.values()])


@st.composite
def cohorts(draw):
    """A global model of two layers, two to five clients, their sizes."""
    number = st.floats(-3, 3, width=32).map(lambda x: round(x, 3))
    model = st.lists(number, min_size=5, max_size=5)

    def state(values):
        weight, bias, other = torch.tensor(values).split([3, 1, 1])
        return {"a.weight": weight, "a.bias": bias, "b.weight": other}

    rows = draw(st.lists(model, min_size=3, max_size=6))
    sizes = draw(st.lists(st.integers(1, 9), min_size=len(rows) - 1, max_size=len(rows) - 1))
    return state(rows[0]), [state(row) for row in rows[1:]], sizes


# FedLWS


@pytest.mark.parametrize(
    ("terms", "expected"),
    [  # aggregate (4, 4, 3); gamma 5 / (0.5 * 1 * 1 + 5) = 10/11 and 2 / 2.5 = 0.8
        ("both", [40 / 11, 40 / 11, 2.4]),
        ("opt", [3 + 10 / 11, 4.0, 2.8]),  # w + gamma * step
        ("reg", [4 - 3 / 11, 4 - 4 / 11, 2.6]),  # w + step - (1 - gamma) w
    ],
)
def test_lws_by_hand(terms, expected):
    result, out = outcome(f"lws(beta=0.5, terms={terms})")
    torch.testing.assert_close(out, torch.tensor(expected))
    assert result.factors["gamma"] == pytest.approx({"a": 10 / 11, "b": 0.8})
    assert result.factors["tau"] == pytest.approx({"a": 1.0, "b": 1.0})


def test_lws_of_the_whole_model_by_hand():
    result, out = outcome("lws(beta=0.5, granularity=model)")
    gamma = 29**0.5 / (0.5 * 2**0.5 * 2**0.5 + 29**0.5)  # tau and the step are both (1, 0, 1)
    torch.testing.assert_close(out, gamma * torch.tensor([4.0, 4.0, 3.0]))
    assert result.factors["gamma"] == pytest.approx({"model": gamma})


def test_lws_clamps_where_asked():
    assert outcome("lws(beta=0.5, clamp=(0.0, 0.1))")[0].factors["gamma"] == pytest.approx({"a": 5 / 5.1, "b": 2 / 2.1})
    # As released: no bias, so one run of sqrt(29) that moved by sqrt(2), and beta * tau is cut to 0.2.
    gamma = outcome("lws(beta=0.5, variant=released)")[0].factors["gamma"]
    assert gamma == pytest.approx({"a": 29**0.5 / (0.2 * 2**0.5 + 29**0.5)})
    with pytest.raises(FedlibError, match="a pair"):
        Algorithm("lws(clamp=(1, 0))")


def test_lws_follows_the_server_learning_rate():
    """eta_g g_g is what the aggregate moved by, so half a step means half the regularisation."""
    gamma = outcome("lws(beta=0.5)", server_lr=0.5)[0].factors["gamma"]
    assert gamma == pytest.approx({"a": 5 / 5.25, "b": 2 / 2.25})


def test_lws_leaves_a_layer_of_zeros_and_batch_statistics_alone():
    anchor = nn.BatchNorm1d(2).state_dict() | {"head.weight": torch.zeros(1, 2)}
    clients = [{n: t + k for n, t in anchor.items()} for k in (1, 3)]
    plain, shrunk = (outcome(a, anchor, clients)[0] for a in ("fedavg", "lws(beta=0.5)"))
    for name in ("running_mean", "running_var", "num_batches_tracked", "head.weight"):
        assert torch.equal(plain.state_dict[name], shrunk.state_dict[name]), name
    assert shrunk.factors["gamma"]["head"] == 1.0
    assert (shrunk.state_dict["weight"] < plain.state_dict["weight"]).all()


def test_lws_released_groups_of_the_papers_models():
    def groups(model, shape=(3, 32, 32)):
        part = ALGORITHMS.make("lws(variant=released)")
        return part.groups(Layout.of_model(build(model, shape, 10, seed=0)))

    assert [name for name, _, _ in groups("simple_cnn")] == ["conv1", "conv2", "conv3", "fc1", "classifier"]
    assert len(groups("resnet20")) == 22  # 19 convolutions, two shortcuts, the classifier
    name, theta, buffers = groups("resnet20")[1]
    assert name == "layer1.0.conv1" and buffers == slice(0, 33), "the statistics of bn1 fall to the next group"
    blocks = [f"blocks.{i}.attention.norm" for i in range(1, 6)]
    names = [name for name, _, _ in groups("vit(dim=8, heads=1, mlp=8)")]
    assert names == ["embedding", *blocks, "norm", "classifier"], "six blocks, the first with the embeddings"


@settings(max_examples=15, deadline=None)
@given(cohorts())
def test_lws_promises(cohort):
    anchor, clients, sizes = cohort
    plain = outcome("fedavg", *cohort)[1]
    for form in ("", ", variant=released", ", granularity=model"):
        result, out = outcome(f"lws(beta=0.3{form})", *cohort)
        assert all(0 < gamma <= 1 for gamma in result.factors["gamma"].values())
        turned = outcome(f"lws(beta=0.3{form})", anchor, clients[::-1], sizes[::-1])[1]
        torch.testing.assert_close(turned, out, rtol=1e-4, atol=1e-4)
        unclamped = form + ", clamp=(0.0, 1e9)"
        assert torch.equal(outcome(f"lws(beta=0.0{unclamped})", *cohort)[1], plain), "beta 0 is the base"
        torch.testing.assert_close(outcome(f"lws(beta=1e-9{unclamped})", *cohort)[1], plain)
    alike = anchor, [clients[0]] * len(clients), sizes
    torch.testing.assert_close(outcome("lws(beta=0.3)", *alike)[1], outcome("fedavg", *alike)[1], rtol=1e-4, atol=1e-4)


# fixed and best gamma


def test_fixed_gamma_for_all_or_per_layer():
    torch.testing.assert_close(outcome("gamma(gamma=0.5)")[1], torch.tensor([2.0, 2.0, 1.5]))
    torch.testing.assert_close(outcome("gamma(gamma=(1.0, 0.5))")[1], torch.tensor([4.0, 4.0, 1.5]))
    assert str(Algorithm("gamma(gamma=[1, 0.5])")) == str(Algorithm("fedavg+gamma(gamma=(1.0, 0.5))"))
    with pytest.raises(FedlibError, match="3 factors but the model has 2 layers: a, b"):
        outcome("gamma(gamma=(1.0, 0.9, 0.8))")
    for bad in ("gamma(gamma=0.0)", "gamma(gamma=())", "gamma(gamma=(1, 'x'))"):
        with pytest.raises(FedlibError, match="positive number or one per layer"):
            Algorithm(bad)


@pytest.mark.parametrize(("share", "gamma"), [(0.8, 0.8), (0.7, 0.7), (1.3, 1.0)])
def test_oracle_gamma_finds_the_best_factor(share, gamma):
    """One input, labels right nine times in ten: the cross-entropy is least where the margin is log 9."""
    model = nn.Linear(1, 2, bias=False)
    margin = math.log(9) / share
    x, y = torch.ones(10, 1), torch.tensor([0] * 9 + [1])
    weight = torch.tensor([[margin / 2], [-margin / 2]])
    clients = [{"weight": weight + 0.1}, {"weight": weight - 0.1}]
    anchor = {"weight": 2 * weight}
    result, out = outcome("oracle_gamma", anchor, clients, model=model, test=(x, y))
    found = result.factors
    assert found["gamma"] == pytest.approx(gamma, abs=2e-3)
    torch.testing.assert_close(out, found["gamma"] * weight.flatten())
    assert found["tau"] == pytest.approx(0.1 * 2**0.5, rel=1e-4)
    assert found["r"] == pytest.approx((1 - found["gamma"]) / found["gamma"] * 2, abs=1e-4)  # ||2w|| / ||w - 2w||
    with pytest.raises(FedlibError, match="needs model and test"):
        outcome("oracle_gamma", anchor, clients)


# adaptive decay at the server


def test_awd_by_hand_over_two_rounds():
    step = (2**0.5) / (29**0.5)  # ||g|| / ||w||
    first = 0.9 * 0.1 * step
    result, out = outcome("awd(strength=0.1)")
    torch.testing.assert_close(out, torch.tensor([4.0, 4.0, 3.0]) - first * torch.tensor([3.0, 4.0, 2.0]))
    result, _ = outcome("awd(strength=0.1)", state=result.state)
    assert result.factors["decay"] == pytest.approx(0.1 * first + first)


def test_adadecay_by_hand():
    # Layer a moved by (1, 0): standardised +1 and -1. Layer b is a single weight: standardised 0, the plain decay.
    high, low = 2 / (1 + math.exp(-4)), 2 / (1 + math.exp(4))
    _, out = outcome("adadecay(decay=0.1)")
    torch.testing.assert_close(out, torch.tensor([4 - 0.1 * high * 3, 4 - 0.1 * low * 4, 3 - 0.1 * 2]))


@settings(max_examples=20, deadline=None)
@given(cohorts())
def test_no_decay_is_the_base_and_decay_pulls_towards_zero(cohort):
    anchor = torch.cat(list(cohort[0].values()))
    plain = outcome("fedavg", *cohort)[1]
    assert torch.equal(outcome("awd(strength=0.0)", *cohort)[1], plain)
    assert torch.equal(outcome("adadecay(decay=0.0)", *cohort)[1], plain)
    for algorithm in ("awd", "adadecay(decay=0.1)"):
        assert ((plain - outcome(algorithm, *cohort)[1]) * anchor >= -1e-6).all()


# FedDisco


@pytest.mark.parametrize(
    ("metric", "d"), [("kl", math.log(2)), ("l2", 0.5**0.5), ("l1", 1.0), ("cosine", 1 - 0.5**0.5)]
)
def test_feddisco_by_hand(metric, d):
    """One client has one class of two, the other both evenly."""
    for variant, far in (("paper", d), ("released", 1.0 if metric == "kl" else d)):
        result, _ = outcome(f"feddisco(metric={metric}, a=0.25, b=0.1, variant={variant})", counts=[[2, 0], [1, 1]])
        one, two = 0.5 - 0.25 * far + 0.1, 0.6
        assert result.weights.tolist() == pytest.approx([one / (one + two), two / (one + two)])


def test_feddisco_needs_counts_and_some_weight():
    with pytest.raises(FedlibError, match="needs counts"):
        outcome("feddisco")
    with pytest.raises(FedlibError, match="leaves no client any weight"):
        outcome("feddisco(a=2.0)", counts=[[2, 0], [0, 1]])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(sum), min_size=2, max_size=6),
    st.sampled_from(["kl", "l2", "l1", "cosine"]),
    st.sampled_from(["paper", "released"]),
)
def test_feddisco_promises(counts, metric, variant):
    sizes, clients = [sum(c) for c in counts], [CLIENTS[0]] * len(counts)
    form = f"feddisco(metric={metric}, a=0.1, b=0.3, variant={variant})"
    weights = outcome(form, GLOBAL, clients, sizes, counts=counts)[0].weights
    assert (weights >= 0).all() and float(weights.sum()) == pytest.approx(1, abs=1e-5)
    turned = outcome(form, GLOBAL, clients, sizes[::-1], counts=counts[::-1])[0].weights
    torch.testing.assert_close(turned.flip(0), weights)
    base = outcome(f"feddisco(metric={metric}, a=0.0, b=0.0)", GLOBAL, clients, sizes, counts=counts)[0].weights
    torch.testing.assert_close(base, torch.tensor(sizes) / sum(sizes))


# L-DAWA


def test_ldawa_by_hand():
    anchor = {"a.weight": torch.tensor([1.0, 0.0]), "b.weight": torch.tensor([2.0])}
    clients = [
        {"a.weight": torch.tensor([1.0, 0.0]), "b.weight": torch.tensor([1.0])},
        {"a.weight": torch.tensor([0.0, 3.0]), "b.weight": torch.tensor([-1.0])},
    ]
    for variant in ("paper", "released"):  # cosines 1, 0 and 1, -1; sizes play no part
        _, out = outcome(f"ldawa(variant={variant})", anchor, clients, [9, 1])
        torch.testing.assert_close(out, torch.tensor([0.5, 0.0, 1.0]))
    _, out = outcome("ldawa(warmup=1)", anchor, clients, [9, 1])
    torch.testing.assert_close(out, torch.tensor([0.9, 0.3, 0.8]))


def test_ldawa_layers_are_modules_in_the_paper_and_tensors_as_released():
    anchor = {"a.weight": torch.tensor([3.0]), "a.bias": torch.tensor([4.0])}
    client = {"a.weight": torch.tensor([4.0]), "a.bias": torch.tensor([3.0])}
    torch.testing.assert_close(outcome("ldawa", anchor, [client])[1], 0.96 * torch.tensor([4.0, 3.0]))  # cos 24/25
    torch.testing.assert_close(outcome("ldawa(variant=released)", anchor, [client])[1], torch.tensor([4.0, 3.0]))


def test_ldawa_averages_statistics_and_stands_tensors_of_zeros():
    anchor = nn.BatchNorm1d(2).state_dict()
    clients = [{n: t + k if t.is_floating_point() else t for n, t in anchor.items()} for k in (-0.5, 0.5)]
    clients = [c | {"weight": torch.tensor([1.0, 0.5])} for c in clients]
    result, _ = outcome("ldawa", anchor, clients)
    lowest, highest = (c["running_var"] for c in clients)
    assert (result.state_dict["running_var"] >= lowest).all() and (result.state_dict["running_var"] <= highest).all()
    assert torch.isfinite(outcome("ldawa(variant=released)", anchor, clients)[1]).all()


@settings(max_examples=40, deadline=None)
@given(cohorts())
def test_ldawa_promises(cohort):
    anchor, clients, sizes = cohort
    result, out = outcome("ldawa", *cohort)
    assert (result.weights.abs() <= 1 / len(sizes) + 1e-6).all(), "it can only shrink"
    turned = outcome("ldawa", anchor, clients[::-1], sizes[::-1])[0].weights
    torch.testing.assert_close(turned.flip(0), result.weights)
    stay = anchor, [anchor] * len(sizes), sizes
    torch.testing.assert_close(outcome("ldawa", *stay)[1], outcome("fedavg", *stay)[1])
    with pytest.raises(FedlibError, match="throw away"):
        Algorithm("feddisco+ldawa")


# server optimisers


def two_rounds(algorithm: str) -> list[float]:
    """A single weight; every round the clients move by +1 from where the server put it."""
    w, seen, memory = 0.0, [], {}
    for _ in range(2):
        anchor, client = {"w": torch.tensor([w])}, {"w": torch.tensor([w + 1])}
        result, w = outcome(algorithm, anchor, [client], state=memory)
        w, memory = float(w), result.state
        seen.append(w)
    return seen


def test_server_optimisers_by_hand():
    assert two_rounds("fedavgm(momentum=0.5)") == pytest.approx([1.0, 2.5])
    assert two_rounds("fedavgm(momentum=0.0)") == pytest.approx([1.0, 2.0])
    m, tau = (0.1, 0.19), 0.5
    starts = {
        "fedadagrad": (1.25, 2.25),
        "fedyogi(beta2=0.9)": (0.25 + 0.1, 0.35 + 0.1),
        "fedadam(beta2=0.9)": (0.9 * 0.25 + 0.1, 0.9 * 0.325 + 0.1),
        "fedadam(beta2=0.9, variant=released)": (0.1, 0.19),
    }
    for name, v in starts.items():
        form = f"{name[:-1]}, lr=2.0, tau=0.5)" if name.endswith(")") else f"{name}(lr=2.0, tau=0.5)"
        first = 2 * m[0] / (v[0] ** 0.5 + tau)
        assert two_rounds(form) == pytest.approx([first, first + 2 * m[1] / (v[1] ** 0.5 + tau)], rel=1e-5), name


def test_server_optimisers_average_the_buffers():
    anchor = nn.BatchNorm1d(2).state_dict()
    clients = [{n: t + 2 for n, t in anchor.items()}] * 2
    for name in ("fedavgm", "fedadam", "fedadagrad", "fedyogi"):
        state = outcome(f"{name}", anchor, clients)[0].state_dict
        assert state["running_mean"].tolist() == [2.0, 2.0] and int(state["num_batches_tracked"]) == 2


# composed, in a run

RUN = RunSpec(dataset="digits", model="mlp(hidden=16)", partition="dirichlet(alpha=0.3)", rounds=2, clients=5)


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedprox(mu=0.01)+lws(beta=0.1)", "feddisco(a=0.1)+lws(beta=0.1)", "ldawa+lws", "gamma(gamma=0.9)",
        "fedadam(lr=0.01)+lws", "oracle_gamma(precision=0.05)", "awd(strength=0.5)", "adadecay(decay=0.1)",
    ],
)  # fmt: skip
def test_parts_compose_in_a_run(algorithm):
    plain, record = simulate(RUN), simulate(RUN.replace(algorithm=algorithm))
    assert record.status == "ok" and record.series["loss"] != plain.series["loss"]
    if "lws" in algorithm:
        assert len(record.curve("gamma/fc1")) == len(record.curve("gamma/classifier")) == 2
