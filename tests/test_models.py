"""The networks have exactly the published sizes, their parts compose, and they learn."""

import pytest
import torch

from fedlib.errors import FedlibError
from fedlib.models import build

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
COUNTS = [
    ("mlp", MNIST, 10, 199_210),
    ("mlp", CIFAR, 10, 656_810),
    ("mlp(hidden=64)", MNIST, 10, 784 * 64 + 64 + 650),
    ("simple_cnn", CIFAR, 10, 122_570),
    ("simple_cnn", CIFAR, 100, 128_420),
    ("cnn_fmnist", MNIST, 10, 39_786),
    ("lenet", MNIST, 10, 28_938),
]


def size(net):
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


@pytest.mark.parametrize("text, shape, classes, expected", COUNTS)
def test_number_of_parameters(text, shape, classes, expected):
    assert size(build(text, shape, classes, seed=0)) == expected


def test_unknown_model_lists_the_known_ones():
    with pytest.raises(FedlibError, match="simple_cnn"):
        build("mpl", MNIST, 10, seed=0)


def test_simple_cnn_takes_mnist_images():
    assert build("simple_cnn", MNIST, 10, seed=0)(torch.zeros(2, *MNIST)).shape == (2, 10)
