"""Local methods and averaging on numbers worked out by hand, and their limits."""

import math

import pytest
import torch
from torch import nn

import fedlib
from fedlib.algorithms import Client
from fedlib.algorithms.awa import AWA
from fedlib.algorithms.lap import FedLap, neurons
from fedlib.algorithms.prox import FedProx
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel


def client(model: nn.Module, anchor: torch.Tensor, channels_last=False) -> Client:
    flat = FlatModel(model, channels_last=channels_last)
    return Client(0, 1, flat.model, flat.layout, flat.theta, flat.grad, anchor)


def test_fedprox_gradient_by_hand():
    c = client(nn.Linear(2, 1, bias=False), anchor=torch.tensor([1.0, 1.0]))
    c.theta.copy_(torch.tensor([3.0, 0.0]))
    c.grad.copy_(torch.tensor([0.5, 0.5]))
    FedProx(mu=0.1).gradient(c)
    torch.testing.assert_close(c.grad, torch.tensor([0.7, 0.4]))  # 0.5 + 0.1*2, 0.5 - 0.1*1


def test_fedlap_dissimilarity_and_distance_by_hand():
    # Neuron 0 turned by 90 degrees, neuron 1 only grew: lambda is 1 and 0, d is 2 and 1.
    anchor = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    local = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    lam, d = neurons(local, anchor)
    torch.testing.assert_close(lam, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(d, torch.tensor([2.0, 1.0]))


def test_fedlap_ignores_a_dead_neuron():
    lam, _ = neurons(torch.ones(2, 1), torch.zeros(2, 1))
    assert lam.tolist() == [0.0]


def test_fedlap_pulls_only_turned_neurons_and_never_biases():
    c = client(nn.Linear(2, 2), anchor=torch.tensor([1.0, 1.0, 0.0, 0.0, 5.0, 5.0]))
    c.theta.copy_(torch.tensor([0.0, 2.0, 1.0, 0.0, 9.0, 9.0]))
    part = FedLap(q=0.5)
    part.begin(c)
    part.epoch(c)
    part.gradient(c)
    assert c.grad.abs().sum() == 0, "lambda is zero in the first epoch"
    c.epoch = 1
    part.epoch(c)
    part.gradient(c)
    # q * lambda_j * (w - w_g) on the weights [[w00, w01], [w10, w11]], column j being neuron j.
    torch.testing.assert_close(c.grad, torch.tensor([-0.5, 0.0, 0.5, 0.0, 0.0, 0.0]))
    part.end(c)
    assert c.logs["lap_term"] == pytest.approx(0.5 * 0.5 * 1.0 * 2.0)  # (1/2) q <lambda, d>
    assert c.logs["lap_dissimilarity"] == pytest.approx(0.5)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("reading", ["scale", "power"])
def test_fedlap_gradient_is_autograd_of_the_written_loss(reading, channels_last):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 5))
    part = FedLap(q=0.7, reading=reading, refresh="batch")
    c = client(model, anchor=torch.randn(sum(p.numel() for p in model.parameters())), channels_last=channels_last)
    part.begin(c)
    part.gradient(c)
    term = 0.0
    for w in c.layout.weights:
        local = w.view(c.theta).clone().requires_grad_()
        lam, d = neurons(local, w.view(c.anchor))
        term = 0.5 * torch.dot(part.factor(lam).detach(), d)
        (expected,) = torch.autograd.grad(term, local)
        torch.testing.assert_close(w.view(c.grad), expected)


def test_fedlap_through_lambda_is_the_slope_of_the_whole_term():
    """Algorithm 1, line 18: finite differences of (q/2) sum <lambda, d>, lambda moving too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 4))
    part = FedLap(q=0.7, refresh="batch", through=True)
    c = client(model, anchor=torch.randn(sum(p.numel() for p in model.parameters())))
    part.begin(c)
    part.gradient(c)

    def term(theta):
        pairs = [neurons(w.view(theta), w.view(c.anchor.double())) for w in c.layout.weights]
        return 0.5 * 0.7 * sum(torch.dot(lam, d) for lam, d in pairs)

    steps = 1e-6 * torch.eye(len(c.theta), dtype=torch.float64)
    here = c.theta.double()
    slopes = torch.stack([(term(here + e) - term(here - e)) / 2e-6 for e in steps])
    torch.testing.assert_close(c.grad.double(), slopes, rtol=1e-4, atol=1e-5)
    assert c.grad.abs().sum() > 0


def test_fedlap_through_lambda_needs_a_lambda_that_follows():
    with pytest.raises(FedlibError, match="refresh=batch"):
        FedLap(through=True)


def test_fedlap_power_reading_meets_both_ends():
    lam = torch.tensor([0.0, 0.3, 1.0, 1.7])
    assert FedLap(q=1.0, reading="power").factor(lam).tolist() == [1.0, 1.0, 1.0, 1.0]  # FedProx with mu = 1
    assert FedLap(q=0.0, reading="power").factor(lam).tolist() == [0.0] * 4


def states(*values):
    return [{"w": torch.tensor(v)} for v in values]


def test_fedavg_by_size_and_uniform_by_hand():
    clients = states([1.0, 0.0], [5.0, 4.0])
    by_size = fedlib.aggregate("fedavg", *states([0.0, 0.0]), clients, sizes=[3, 1])
    torch.testing.assert_close(by_size.state_dict["w"], torch.tensor([2.0, 1.0]))
    assert by_size.weights.tolist() == [0.75, 0.25]
    alike = fedlib.aggregate("fedavg(weights=uniform)", *states([0.0, 0.0]), clients, sizes=[3, 1])
    torch.testing.assert_close(alike.state_dict["w"], torch.tensor([3.0, 2.0]))
    half = fedlib.aggregate("fedavg", *states([0.0, 0.0]), clients, sizes=[3, 1], server_lr=0.5)
    torch.testing.assert_close(half.state_dict["w"], torch.tensor([1.0, 0.5]))


def test_aggregate_averages_batchnorm_statistics_and_keeps_dtypes():
    one, two = nn.BatchNorm1d(2).state_dict(), nn.BatchNorm1d(2).state_dict()
    two["running_mean"] = torch.tensor([4.0, 8.0])
    two["num_batches_tracked"] = torch.tensor(10)
    result = fedlib.aggregate("fedavg", one, [one, two], sizes=[1, 1]).state_dict
    assert result["running_mean"].tolist() == [2.0, 4.0]
    assert result["num_batches_tracked"].dtype == torch.int64 and int(result["num_batches_tracked"]) == 5


def test_aggregate_refuses_clients_that_do_not_fit():
    with pytest.raises(FedlibError, match="one size per client"):
        fedlib.aggregate("fedavg", *states([1.0]), states([1.0]), sizes=[1, 2])
    with pytest.raises(FedlibError, match="differs from the global one at v"):
        fedlib.aggregate("fedavg", *states([1.0]), [{"w": torch.ones(1), "v": torch.ones(1)}], sizes=[1])


@pytest.mark.parametrize(
    "models, more, says",
    [
        ([{"w": torch.tensor([1.0])}, {"w": torch.tensor([math.nan])}], {}, "Client 1 has diverged"),
        ([{"w": torch.ones(1)}] * 2, {"cout": 3}, "takes no cout; besides its arguments: model, proxy"),
        ([torch.nn.Linear(1, 1)] * 2, {}, "got Linear: pass model.state_dict()"),
    ],
)
def test_aggregate_says_what_it_cannot_take(models, more, says):
    with pytest.raises(FedlibError, match=says):
        fedlib.aggregate("fedavg", {"w": torch.zeros(1)}, models, sizes=[1, 1], **more)


def test_a_lacking_part_of_the_context_is_named_and_a_proxy_only_where_it_is_one():
    with pytest.raises(FedlibError, match=r"needs counts: pass counts=… to fedlib.aggregate\.$"):
        fedlib.aggregate("feddisco", *states([0.0]), states([1.0]), sizes=[1])


def test_weights_of_another_shape_are_refused(monkeypatch):
    monkeypatch.setattr(AWA, "weigh", lambda self, r, weights: weights[:1])
    with pytest.raises(FedlibError, match=r"'awa' returned weights of shape \(1,\) for 2 clients"):
        fedlib.aggregate("awa", *states([0.0]), states([1.0], [2.0]), sizes=[1, 1])
