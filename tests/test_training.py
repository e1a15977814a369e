"""The one training loop against plain PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedlib.algorithms import Algorithm, Client
from fedlib.core.errors import Diverged, FedlibError
from fedlib.core.layout import FlatModel, gather
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.data import load, to_float
from fedlib.data.augment import augment
from fedlib.federation.training import train
from fedlib.models import build
from fedlib.models.base import evaluate

SHAPES = {"mlp(hidden=16)": (1, 28, 28), "simple_cnn": (3, 32, 32), "resnet8": (3, 32, 32)}


def setting(model: str, **changes):
    shape = SHAPES[model]
    spec = RunSpec(dataset=f"digits(shape={shape})", model=model, partition="iid", batch_size=16, seed=3, **changes)
    data = load(spec.dataset)
    x, y = to_float(data.x_train[:70]), data.y_train[:70]
    flat = FlatModel(build(model, shape, 10, spec.seed), channels_last=model != "mlp(hidden=16)")
    return spec, flat, x, y


def ours(spec, flat, x, y, epochs):
    optimizer = OPTIMIZERS.make(spec.optimizer)
    client = Client(5, 2, flat.model, flat.layout, flat.theta, flat.grad, flat.theta.clone())
    if flat.layout.weights[0].channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    parts = Algorithm(spec.algorithm).locals
    loss = train(flat, x, y, client, parts, spec, optimizer, optimizer.state(flat.theta), epochs)
    return loss, flat.layout.unpack(flat.theta, flat.buffers)


def plain(spec, x, y, epochs, make):
    """What anybody would write: a module, torch.optim, the same batches; in the same memory format, because
    ReLU and BatchNorm blow the last digits of another one up."""
    model = build(spec.model, tuple(x.shape[1:]), 10, spec.seed).train()
    if "mlp" not in spec.model:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimizer, order, losses = make(model.parameters()), stream(spec.seed, "batches", 2, 5), []
    for _ in range(epochs):
        for batch in torch.from_numpy(order.permutation(len(y))).split(spec.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(gather(x, batch)), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return np.mean(losses), model.state_dict()


@pytest.mark.parametrize("model", SHAPES)
def test_training_equals_a_plain_pytorch_loop(model):
    spec, flat, x, y = setting(model, optimizer="sgd(momentum=0.9, weight_decay=0.001)", lr=0.002, lr_decay=0.9)
    epochs = 1 if model == "resnet8" else 2  # BatchNorm on few samples soon amplifies rounding
    loss, state = ours(spec, flat, x, y, epochs)
    expected, peer = plain(spec, x, y, epochs, lambda p: torch.optim.SGD(p, 0.0018, momentum=0.9, weight_decay=0.001))
    assert loss == pytest.approx(expected, rel=1e-5)
    for name, tensor in peer.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    "model, kind, degrees", [("simple_cnn", "crop_flip", 0), ("mlp(hidden=16)", "crop_flip_turn", 15)]
)
def test_a_clients_images_are_altered_anew_in_every_epoch(model, kind, degrees):
    spec, flat, x, y = setting(model, optimizer="sgd", lr=0.05, augment=kind)
    loss, state = ours(spec, flat, x, y, 2)
    order, rng = stream(spec.seed, "batches", 2, 5), stream(spec.seed, "augment", 2, 5)
    shape = SHAPES[model]
    form = torch.channels_last if model == "simple_cnn" else torch.contiguous_format
    peer = build(model, shape, 10, spec.seed).train().to(memory_format=form)
    optimizer, losses = torch.optim.SGD(peer.parameters(), 0.05), []
    for _ in range(2):
        shuffled = torch.from_numpy(order.permutation(len(y)))
        for xb, yb in zip(augment(x[shuffled], rng, degrees).split(16), y[shuffled].split(16), strict=True):
            optimizer.zero_grad()
            found = F.cross_entropy(peer(xb.contiguous(memory_format=form)), yb)
            found.backward()
            optimizer.step()
            losses.append(found.item())
    assert loss == pytest.approx(np.mean(losses), rel=1e-4)
    for name, tensor in peer.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    "text, make",
    [
        ("sgd", lambda p: torch.optim.SGD(p, 0.1)),
        ("sgd(momentum=0.9, weight_decay=0.01)", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)),
        ("adam", lambda p: torch.optim.Adam(p, 0.1)),
        ("adam(beta1=0.5, weight_decay=0.1)", lambda p: torch.optim.Adam(p, 0.1, (0.5, 0.999), weight_decay=0.1)),
    ],
)
def test_optimisers_are_torchs(text, make):
    torch.manual_seed(0)
    theta = torch.randn(50)
    peer = theta.clone().requires_grad_()
    ours, theirs = OPTIMIZERS.make(text), make([peer])
    state = ours.state(theta)
    for _ in range(10):
        gradient = torch.randn(50)
        ours.step(theta, gradient.clone(), state, 0.1)
        peer.grad = gradient
        theirs.step()
    torch.testing.assert_close(theta, peer.detach())


def test_sgd_clips_as_torch_does_every_client_by_itself():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])  # of lengths 5 and 0.5
    theta, sgd = torch.zeros(2, 2), OPTIMIZERS.make("sgd(clip=1)")
    sgd.step(theta, rows.clone(), sgd.state(theta), 1.0)
    torch.testing.assert_close(theta, -torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    for row, gradient in zip(theta, rows, strict=True):
        peer = torch.zeros(2, requires_grad=True)
        peer.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_([peer], 1.0)
        torch.testing.assert_close(-row, peer.grad)
    decayed, sgd = torch.ones(2), OPTIMIZERS.make("sgd(clip=1, weight_decay=0.5)")
    sgd.step(decayed, rows[0].clone(), {}, 1.0)
    torch.testing.assert_close(decayed, 1 - torch.tensor([0.6, 0.8]) - 0.5)
    with pytest.raises(FedlibError, match="clip >= 0"):
        OPTIMIZERS.make("sgd(clip=-1)")


@pytest.mark.parametrize("hidden", ["16", "(20, 30)"])
@pytest.mark.parametrize("batch", [1, 10, 33])
def test_closed_form_gradient_is_autograds(hidden, batch):
    flat = FlatModel(build(f"mlp(hidden={hidden})", (1, 28, 28), 10, 0))
    data = load("digits")
    x, y = to_float(data.x_train[:batch]), data.y_train[:batch]
    expected = F.cross_entropy(flat.model(x), y)
    expected.backward()
    gradient = flat.grad.clone()
    flat.grad.fill_(9.0)
    loss = flat.model.closed_form()(x, y)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(flat.grad, gradient)


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("same", ["fedprox(mu=0)", "fedlap(q=0)", "fedlap(q=0, reading=power)"])
def test_methods_switched_off_equal_fedavg_bit_for_bit(model, same):
    runs = []
    for algorithm in ("fedavg", same):
        spec, flat, x, y = setting(model, algorithm=algorithm)
        runs.append(ours(spec, flat, x, y, epochs=2)[1])
    for name, tensor in runs[0].items():
        assert torch.equal(runs[1][name], tensor), name


def test_gather_keeps_the_memory_format():
    x = torch.randn(6, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    index = torch.tensor([4, 0, 2])
    rows = gather(x, index)
    assert torch.equal(rows, x[index]) and rows.is_contiguous(memory_format=torch.channels_last)


def test_a_diverging_client_is_named():
    spec, flat, x, y = setting("mlp(hidden=16)", lr=1e6, optimizer="sgd(weight_decay=1000000.0)", local_epochs=5)
    with pytest.raises(Diverged, match="Client 5 diverged in round 2") as stop:
        ours(spec, flat, x, y, epochs=3)
    assert (stop.value.client, stop.value.round) == (5, 2)


def test_evaluate_by_hand():
    class Constant(torch.nn.Module):
        def forward(self, x):
            return torch.tensor([[2.0, 0.0]]).expand(len(x), 2)

    accuracy, loss = evaluate(Constant(), torch.zeros(5, 1), torch.tensor([0, 0, 0, 1, 0]), batch=2)
    assert accuracy == 0.8
    assert loss == pytest.approx(0.8 * np.log(1 + np.exp(-2)) + 0.2 * np.log(1 + np.exp(2)))
