"""The views stay views, and nothing is lost on the way to a state_dict and back."""

import copy

import pytest
import torch
from torch import nn

from fedlib.core.layout import FlatModel, Layout, matrix


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_round_trip_keeps_values_dtypes_and_order(channels_last):
    model = network()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    flat = FlatModel(model, channels_last=channels_last)
    after = flat.layout.unpack(flat.theta, flat.buffers)
    assert list(after) == list(before)
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype and torch.equal(after[name], tensor), name


def aliases(flat):
    """Every parameter, gradient and buffer follows the flat vectors."""
    flat.theta.fill_(2.0)
    flat.grad.fill_(3.0)
    flat.buffers.fill_(4.0)
    home = flat.theta.untyped_storage().data_ptr()
    return (
        all(bool((p == 2).all()) and bool((p.grad == 3).all()) for p in flat.model.parameters())
        and all(bool((b == 4).all()) for b in flat.model.buffers())
        and all(p.untyped_storage().data_ptr() == home for p in flat.model.parameters())
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_views_alias_after_a_step(channels_last):
    flat = FlatModel(network(), channels_last=channels_last)
    x = torch.randn(6, 3, 8, 8)
    theta, counter = flat.theta.clone(), flat.buffers.clone()
    flat.model(x).square().mean().backward()
    assert flat.grad.norm() > 0, "backward fills the flat gradient"
    flat.theta.add_(flat.grad, alpha=-0.1)
    assert not torch.equal(flat.theta, theta) and not torch.equal(flat.buffers, counter)
    assert aliases(flat)


def test_a_step_on_the_vector_equals_torch_sgd_on_the_tensors():
    flat, peer = FlatModel(network(), channels_last=True), network()
    x = torch.randn(6, 3, 8, 8)
    for model in (flat.model, peer):
        model(x).square().mean().backward()
    flat.theta.add_(flat.grad, alpha=-0.1)
    torch.optim.SGD(peer.parameters(), lr=0.1).step()
    mine = flat.layout.unpack(flat.theta, flat.buffers)
    for name, tensor in peer.state_dict().items():
        torch.testing.assert_close(mine[name], tensor)


def test_layers_are_modules_and_slices_cover_theta():
    layout = Layout.of_model(network())
    assert [layer.name for layer in layout.layers] == ["0", "1", "3", "4", "5"]
    assert [layer.slice.stop - layer.slice.start for layer in layout.layers] == [4 * 27 + 4, 8, 4 * 36 * 5 + 5, 10, 12]
    assert layout.layers[-1].slice.stop == layout.size
    assert layout.classifier.name == "5"
    assert layout.buffer_size == 9 + 11  # means, variances and the two counters


def test_a_state_dict_alone_tells_buffers_from_parameters():
    model = network()
    of_state, of_model = Layout.of_state(model.state_dict()), Layout.of_model(model)
    assert of_state.entries == of_model.entries


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_views_alias_on_cuda():
    assert aliases(FlatModel(network(), "cuda"))


def test_a_cohort_packs_into_rows_from_any_dtype():
    torch.manual_seed(0)
    states = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).state_dict() for _ in range(3)]
    for state in states:
        state["0.weight"] = state["0.weight"].double().requires_grad_()
        state["1.num_batches_tracked"] += 7
    for channels_last in (False, True):
        layout = Layout.of_state(states[0])
        layout = Layout([(e.name, e.shape, e.dtype, e.buffer) for e in layout.entries], channels_last)
        thetas, buffers = layout.pack_all(states)
        for theta, rest, state in zip(thetas, buffers, states, strict=True):
            for name, tensor in layout.unpack(theta, rest).items():
                torch.testing.assert_close(tensor, state[name].detach(), rtol=1e-7, atol=0)


def test_a_large_matrix_is_ordinary_memory():
    large = matrix(2, 1 << 22)
    large.fill_(1.0)
    assert large.shape == (2, 1 << 22) and float(large.sum()) == 2 * (1 << 22)
    twin = copy.deepcopy(large)
    large[1].mul_(3.0)
    assert twin.eq(1).all() and large[1].eq(3).all()
