"""FedAWA's equations on small models, its gradient against autograd, and where its objective leads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlib
from fedlib.algorithms import Round
from fedlib.algorithms.awa import AWA, cosines
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Layout


def states(*values):
    return [{"a.weight": torch.tensor(v[:2]), "b.weight": torch.tensor(v[2:])} for v in values]


def make_round(clients: int = 5, seed: int = 0, scale: float = 0.1, sizes=None) -> Round:
    """Clients around a global model of two layers with 6 and 4 parameters."""
    torch.manual_seed(seed)
    layout = Layout.of_state({"a.weight": torch.zeros(3, 2), "b.weight": torch.zeros(4)})
    theta = torch.randn(10)
    thetas = theta + scale * torch.randn(clients, 10)
    sizes = torch.arange(1.0, clients + 1) if sizes is None else torch.tensor(sizes)
    nothing = torch.zeros(0)
    return Round(layout, theta, nothing, thetas, nothing.expand(clients, 0), sizes, list(range(clients)))


def weigh(part: AWA, r: Round) -> torch.Tensor:
    return part.weigh(r, r.sizes / r.sizes.sum())


def printed(part: AWA, lam: torch.Tensor, theta: torch.Tensor, thetas: torch.Tensor) -> torch.Tensor:
    """Eq. 3 as it is printed, with every vector written out."""
    tau = thetas - theta
    merged = lam @ tau
    value = (lam * (tau - merged).norm(dim=1)).sum() * (1 if part.sign == "minimise" else -1)
    if part.alignment == "euclidean":
        value = value + (lam @ thetas - theta).norm()
    if part.alignment == "cosine":
        value = value + 1 - torch.cosine_similarity(lam @ thetas, theta, dim=0)
    return value


def test_products_are_those_of_the_vectors_written_out(monkeypatch):
    monkeypatch.setattr("fedlib.algorithms.base.BLOCK", 4)  # a layer of 6 is cut in two
    r = make_round()
    for i, s in enumerate((slice(0, 6), slice(6, 10))):
        g, w = (r.thetas - r.theta)[:, s].double(), r.theta[s].double()
        torch.testing.assert_close(r.products.gram[i], g @ g.T, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(r.products.inner[i], g @ w, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(r.products.square[i], w @ w, rtol=1e-5, atol=1e-7)
    whole = r.products.model()
    torch.testing.assert_close(whole.gram[0], r.updates.double() @ r.updates.double().T, rtol=1e-5, atol=1e-7)
    cos = torch.cosine_similarity(r.thetas, r.theta[None]).double()
    torch.testing.assert_close(cosines(whole)[0], cos, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alignment", ["cosine", "euclidean", "none"])
@pytest.mark.parametrize("sign", ["minimise", "maximise"])
def test_objective_and_its_slope_are_the_printed_equation_and_autograd(alignment, sign):
    r, part = make_round(scale=1.0), AWA(alignment=alignment, sign=sign)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    lam = logits.softmax(0)
    expected = printed(part, lam, r.theta.double(), r.thetas.double())
    (slope,) = torch.autograd.grad(expected, logits)
    lam = lam.detach()
    value, mine = part.objective(lam[None], r.products.model())
    torch.testing.assert_close(value[0, 0], expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close((lam * (mine - (lam * mine).sum()))[0], slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("granularity", ["model", "layer"])
def test_hundred_steps_are_those_of_torch_on_the_printed_equation(granularity):
    r = make_round()
    part = AWA(granularity=granularity, lr=0.01)
    weights = weigh(part, r)
    slices = [slice(0, 10)] if granularity == "model" else [slice(0, 6), slice(6, 10)]
    for s, mine in zip(slices, weights.view(5, -1).T, strict=True):
        logits = (r.sizes / r.sizes.sum()).double().log().requires_grad_()
        adam = torch.optim.Adam([logits], lr=0.01, betas=(0.5, 0.999))
        for _ in range(100):
            adam.zero_grad()
            printed(part, logits.softmax(0), r.theta[s].double(), r.thetas[:, s].double()).backward()
            adam.step()
        torch.testing.assert_close(mine, logits.softmax(0).float().detach(), rtol=1e-4, atol=1e-5)


def test_first_step_by_hand():
    # Sizes 1:3 and tau = 0, 4: f = 2 l (1 - l) * 4 with l = 1/4 rises with l, so Adam moves T by -lr and +lr.
    clients = states([1.0, 0.0, 0.0], [5.0, 0.0, 0.0])
    result = fedlib.aggregate("awa(alignment=none, steps=1, lr=0.1)", *states([1.0, 0.0, 0.0]), clients, [1, 3])
    expected = (torch.tensor([0.25, 0.75]).log() + torch.tensor([-0.1, 0.1])).softmax(0)
    torch.testing.assert_close(result.weights, expected)
    torch.testing.assert_close(result.state_dict["a.weight"], torch.stack([1 + 4 * expected[1], torch.zeros(())]))
    other = fedlib.aggregate(
        "awa(alignment=none, steps=1, lr=0.1, sign=maximise)", *states([1.0, 0.0, 0.0]), clients, [1, 3]
    )
    assert other.weights[0] > 0.25


def test_cosine_rule_by_hand():
    # tau = (1, 0), (0, 1), (-1, 0) with equal sizes: tau_g = (0, 1/3), cosines 0, 1, 0.
    clients = states([1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [-1.0, 0.0, 1.0])
    start = states([0.0, 0.0, 1.0])
    assert fedlib.aggregate("awa(rule=cosine)", *start, clients, [1, 1, 1]).weights.tolist() == [0.0, 1.0, 0.0]
    soft = fedlib.aggregate("awa(rule=cosine, normalise=softmax)", *start, clients, [1, 1, 1]).weights
    torch.testing.assert_close(soft, torch.tensor([0.0, 1.0, 0.0]).softmax(0))
    # Layer by layer the second layer never moved: nothing to go by, so the weights before stay.
    layers = fedlib.aggregate("awa(rule=cosine, granularity=layer)", *start, clients, [1, 1, 2]).weights
    torch.testing.assert_close(layers[:, 1], torch.tensor([0.25, 0.25, 0.5]))
    # Sizes 1, 1, 2: tau_g = (-1/4, 1/4); the first client points away and gets nothing.
    torch.testing.assert_close(layers[:, 0], torch.tensor([0.0, 0.5, 0.5]))


def test_cosines_times_sizes_by_hand():
    # tau = (1, 0), (0, 1) with sizes 1 and 3: tau_g = (1, 3) / 4, cosines 1 and 3 over the root of 10.
    start, clients = states([0.0, 0.0, 1.0]), states([1.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    given = {
        rule: fedlib.aggregate(f"awa(rule=cosine, {rule})", *start, clients, [1, 3]).weights
        for rule in ("sized=False", "sized=True", "normalise=softmax, sized=True")
    }
    torch.testing.assert_close(given["sized=False"], torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(given["sized=True"], torch.tensor([0.1, 0.9]))  # 1 x 1 to 3 x 3
    soft = torch.tensor([1.0, 3.0]) * (torch.tensor([1.0, 3.0]) / 10**0.5).exp()
    torch.testing.assert_close(given["normalise=softmax, sized=True"], soft / soft.sum())


def test_layers_are_optimised_apart_and_averaged_apart():
    r = make_round()
    global_state = {"a.weight": r.theta[:6].view(3, 2), "b.weight": r.theta[6:]}
    clients = [{"a.weight": t[:6].view(3, 2), "b.weight": t[6:]} for t in r.thetas]
    result = fedlib.aggregate("awa(granularity=layer)", global_state, clients, [1, 2, 3, 4, 5])
    assert result.weights.shape == (5, 2) and not torch.allclose(*result.weights.T)
    torch.testing.assert_close(result.state_dict["b.weight"], result.weights[:, 1] @ r.thetas[:, 6:])


def test_objective_is_zero_at_every_vertex_and_positive_between():
    r, part = make_round(), AWA(alignment="none")
    p = r.products.model()
    for vertex in torch.eye(5, dtype=torch.float64):
        assert part.objective(vertex[None], p)[0] == pytest.approx(0, abs=1e-7)
    for _ in range(50):
        assert part.objective(torch.rand(1, 5, dtype=torch.float64).softmax(1), p)[0] > 0.1


@pytest.mark.parametrize("alignment", ["none", "cosine", "euclidean"])
@pytest.mark.parametrize("seed", range(3))
def test_solved_to_convergence_the_printed_objective_keeps_a_single_client(alignment, seed):
    r, part = make_round(seed=seed), AWA(alignment=alignment, steps="converged", lr=0.05)
    weights = weigh(part, r)
    assert weights.max() > 0.999
    p = r.products.model()
    start = part.objective((r.sizes / r.sizes.sum()).double()[None], p)[0]
    assert part.objective(weights.double()[None], p)[0] < start


def test_converged_layers_may_each_keep_another_client():
    weights = weigh(AWA(granularity="layer", steps="converged", lr=0.05), make_round())
    assert weights.amax(0).min() > 0.999


def test_weights_follow_the_client_and_not_its_position():
    r = make_round(clients=3, sizes=[1.0, 1.0, 1.0])
    part, memory = AWA(lr=0.01), {}
    r.state = memory
    first = weigh(part, r)
    moved = {k: float(v) for k, v in memory["moved"].items()}
    order = [2, 0]
    again = Round(r.layout, r.theta, r.buffers, r.thetas[order], r.client_buffers[:2], r.sizes[:2], order)
    again.state = memory
    # One step of almost no length: the weights are those kept, renormalised over who is there.
    kept = weigh(AWA(lr=1e-9, steps=1), again)
    torch.testing.assert_close(kept, first[order] / first[order].sum(), rtol=1e-5, atol=1e-6)
    assert float(memory["moved"][1]) == moved[1], "who is away keeps what it had"


def test_the_released_t_goes_with_its_place_or_with_its_client():
    """A round of clients 0, 1, 2, then one in the order 2, 0, 1: whose T of the first round does each start from?"""
    r = make_round(clients=3, sizes=[1.0, 2.0, 3.0])
    order = [2, 0, 1]
    again = Round(r.layout, r.theta, r.buffers, r.thetas[order], r.client_buffers, r.sizes[order], order)
    for kept, place in {"client": order, None: [0, 1, 2], "place": [0, 1, 2]}.items():
        part, r.state = AWA(variant="released", kept=kept), {}
        weigh(part, r)
        memory = r.state["T"]
        first = torch.stack([memory[k] for k in range(3)], 1)[0] if kept == "client" else memory[0]
        again.state = r.state
        expected = first[place].softmax(0).float()
        torch.testing.assert_close(weigh(part, again), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(FedlibError, match="variant=released"):
        AWA(kept="place")


def test_composition_starts_from_the_weights_before_and_survives_a_checkpoint(tmp_path):
    r = make_round(clients=3)
    global_state = {"w": r.theta}
    clients = [{"w": t} for t in r.thetas]
    uniform = fedlib.aggregate("fedavg(weights=uniform)+awa(lr=1e-9)", global_state, clients, [1, 2, 3])
    torch.testing.assert_close(uniform.weights, torch.full((3,), 1 / 3))
    one = fedlib.aggregate("awa", global_state, clients, [1, 2, 3])
    torch.save(one.state, tmp_path / "state")
    saved = torch.load(tmp_path / "state", weights_only=True)
    two = fedlib.aggregate("awa", global_state, clients, [1, 2, 3], state=one.state)
    resumed = fedlib.aggregate("awa", global_state, clients, [1, 2, 3], state=saved)
    assert two.weights.equal(resumed.weights) and not two.weights.equal(one.weights)


def test_mistakes_are_refused_with_a_sentence():
    for wrong in ("awa(steps=0)", "awa(lr=0)", "awa(variant=released, granularity=layer)", "awa(steps=soon)"):
        with pytest.raises(FedlibError):
            fedlib.aggregate(wrong, *states([1.0, 1.0, 1.0]), states([1.0, 1.0, 1.0]), [1])
    with pytest.raises(FedlibError, match="one weight per client"):
        fedlib.aggregate("ldawa+awa", *states([1.0, 1.0, 1.0]), states([1.0, 1.0, 1.0]), [1])


forms = st.sampled_from(
    [
        AWA(),
        AWA(granularity="layer"),
        AWA(rule="cosine"),
        AWA(rule="cosine", normalise="softmax"),
        AWA(variant="released"),
    ]
)
spreads = st.sampled_from([0.0, 1e-4, 0.1, 10.0])
sizes = st.lists(st.integers(0, 1000), min_size=2, max_size=8).filter(lambda s: sum(s) > 0)


@given(part=forms, scale=spreads, sizes=sizes, seed=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_weights_are_a_distribution_and_permute_with_the_clients(part, scale, sizes, seed):
    r = make_round(len(sizes), seed, scale, [float(s) for s in sizes])
    weights = weigh(part, r)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(0), torch.ones_like(weights.sum(0)))
    order = torch.randperm(len(sizes))
    other = Round(r.layout, r.theta, r.buffers, r.thetas[order], r.client_buffers, r.sizes[order], order.tolist())
    if scale:
        torch.testing.assert_close(weigh(part, other), weights[order], rtol=1e-3, atol=1e-4)


@given(part=forms, sizes=sizes, seed=st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_identical_clients_give_their_model(part, sizes, seed):
    r = make_round(len(sizes), seed, 0.1, [float(s) for s in sizes])
    r.thetas[:] = r.thetas[0]
    weights = weigh(part, r)
    average = weights @ r.thetas if weights.ndim == 1 else weights[:, 0] @ r.thetas
    torch.testing.assert_close(average, r.thetas[0])


@pytest.mark.parametrize("granularity", ["model", "layer"])
def test_identical_clients_leave_the_weights_alone(granularity):
    r = make_round()
    r.thetas[:] = r.thetas[0]
    weights = weigh(AWA(granularity=granularity), r)
    expected = r.sizes / r.sizes.sum()
    expected = expected if granularity == "model" else expected[:, None].expand(5, 2)
    # Where rows of equal numbers have products that differ in their last digit, Adam makes 1e-4 of it in 100 steps;
    # of a real slope it would make 0.1.
    torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-4)
