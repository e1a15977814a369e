"""The networks have exactly the published sizes, their parts compose, and they learn."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from fedlib.core.errors import FedlibError
from fedlib.core.registry import canonical
from fedlib.models import MODELS, build

MNIST, CIFAR, TINY, IMDB = (1, 28, 28), (3, 32, 32), (3, 64, 64), (200,)

# Trainable parameters of the released models.
COUNTS = [
    ("mlp", MNIST, 10, 199_210),
    ("mlp", CIFAR, 10, 656_810),
    ("lenet", MNIST, 10, 28_938),
    ("simple_cnn", CIFAR, 10, 122_570),
    ("simple_cnn", CIFAR, 100, 128_420),
    ("cnn_fmnist", MNIST, 10, 39_786),
    ("resnet8", CIFAR, 10, 78_042),
    ("resnet8(width=4)", CIFAR, 10, 1_227_594),
    ("resnet20", CIFAR, 10, 272_474),
    ("resnet20", CIFAR, 100, 278_324),
    ("resnet56", CIFAR, 10, 855_770),
    ("resnet110", CIFAR, 10, 1_730_714),
    ("wrn56_4", CIFAR, 10, 13_628_234),
    ("wrn56_4", CIFAR, 100, 13_651_364),
    ("resnet18", TINY, 200, 11_271_432),
    ("densenet121", CIFAR, 10, 6_956_298),
    ("densenet121", CIFAR, 100, 7_048_548),
    ("vit", CIFAR, 10, 9_523_722),
    ("vit", CIFAR, 100, 9_569_892),
    ("feddw_cnn_mnist", MNIST, 10, 121_642),
    ("feddw_cnn_cifar10", CIFAR, 10, 139_714),
    ("feddw_resnet18", CIFAR, 100, 11_350_756),
    ("feddw_shufflenet", CIFAR, 100, 1_130_424),
    ("feddw_mobilenet", CIFAR, 100, 807_660),
    ("feddw_bilstm", IMDB, 2, 1_593_858),
]

# No released model to compare with: our own arithmetic on the form we chose, so that it cannot change unnoticed.
CHOSEN = [
    ("mlp(hidden=64)", MNIST, 10, 784 * 64 + 64 + 64 * 10 + 10),
    ("resnet20(shortcut=A)", CIFAR, 10, 272_474 - (16 * 32 + 64) - (32 * 64 + 128)),
    ("alexnet", CIFAR, 10, 2_472_266),
    ("textcnn", IMDB, 4, 32_000 * 32 + (3 + 4 + 5) * 32 * 100 + 300 + 300 * 4 + 4),
    ("feddw_mean", IMDB, 2, 10_000 * 32 + 32 * 256 + 256 + 256 * 128 + 128 + 128 * 2 + 2),
    ("amazon_mlp", (5000,), 2, 5_001_000 + 500_500 + 50_100 + 202),
    ("projected", CIFAR, 10, 139_714 - 1_290 + (128 * 128 + 128) + (128 * 256 + 256) + (256 * 10 + 10)),
]

IMAGE_MODELS = [
    ("mlp", MNIST),
    ("mlp(hidden=64)", CIFAR),
    ("lenet", MNIST),
    ("simple_cnn", MNIST),
    ("simple_cnn", CIFAR),
    ("cnn_fmnist", MNIST),
    ("alexnet", CIFAR),
    ("resnet8", MNIST),
    ("resnet20", CIFAR),
    ("resnet20(shortcut=A)", CIFAR),
    ("feddw_cnn_mnist", MNIST),
    ("feddw_cnn_cifar10", CIFAR),
    ("projected", CIFAR),
    ("feddw_shufflenet", CIFAR),
    ("feddw_mobilenet", CIFAR),
    ("vit(dim=32, depth=2, heads=2, mlp=32)", MNIST),
]
TEXT_MODELS = [
    ("textcnn(vocabulary=17)", (64,)),
    ("feddw_bilstm(vocabulary=17)", (64,)),
    ("feddw_mean(vocabulary=17)", (64,)),
    ("amazon_mlp", (64,)),
]
SMALL = IMAGE_MODELS + TEXT_MODELS
HEAVY = [
    ("resnet56", CIFAR),
    ("resnet110", CIFAR),
    ("wrn56_4", CIFAR),
    ("resnet18", TINY),
    ("feddw_resnet18", CIFAR),
    ("densenet121", CIFAR),
    ("vit", CIFAR),
]


def digits(shape, n=16):
    """Real handwritten digits: as images of this shape, or as the sequence of their 64 grey levels 0..16."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x[:n], dtype=torch.float32), torch.tensor(y[:n])
    if len(shape) == 1:
        return x, y
    images = F.interpolate(x.view(n, 1, 8, 8) / 16, shape[1:], mode="bilinear")
    return images.repeat(1, shape[0], 1, 1), y


def loss(net, x, y):
    torch.manual_seed(0)  # the same dropout every time
    return F.cross_entropy(net(x), y)


@pytest.mark.parametrize("text, shape, classes, expected", COUNTS + CHOSEN)
def test_number_of_parameters(text, shape, classes, expected):
    net = build(text, shape, classes, seed=0)
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == expected


def test_every_model_is_counted_and_run():
    def names(cases):
        return {case[0].partition("(")[0] for case in cases}

    assert names(COUNTS + CHOSEN) == names(SMALL + HEAVY) == set(MODELS.names())


@pytest.mark.parametrize("text, shape", SMALL + HEAVY)
def test_forward_is_classifier_of_features(text, shape):
    net = build(text, shape, 10, seed=0).eval()
    x, _ = digits(shape, n=2)
    with torch.no_grad():
        features = net.features(x)
        assert type(net.classifier) is nn.Linear and features.shape == (2, net.classifier.in_features)
        assert torch.equal(net(x), net.classifier(features))
        assert not torch.equal(features[0], features[1])


@pytest.mark.parametrize("text, shape", SMALL)
def test_one_step_lowers_the_loss_and_reaches_every_parameter(text, shape):
    net = build(text, shape, 10, seed=0)
    x, y = digits(shape)
    before = loss(net, x, y)
    before.backward()
    # A bias right before batch norm has no effect; every other tensor must be in use.
    assert [n for n, p in net.named_parameters() if p.grad is None or (p.ndim > 1 and not p.grad.any())] == []
    torch.optim.SGD(net.parameters(), lr=0.001).step()  # deep nets with batch norm overshoot at 0.01
    assert loss(net, x, y) < before


@pytest.mark.parametrize("text, shape", IMAGE_MODELS)
def test_channels_last_gives_the_same_numbers(text, shape):
    net = build(text, shape, 10, seed=0).eval()
    x, _ = digits(shape, n=4)
    with torch.no_grad():
        plain = net(x)
        last = net.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(last, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text, shape", [("simple_cnn", CIFAR), ("cnn_fmnist", MNIST), ("textcnn", IMDB)])
def test_build_depends_on_the_seed_alone(text, shape):
    state = torch.get_rng_state()
    one = build(text, shape, 10, seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again, other = build(text, shape, 10, seed=1).state_dict(), build(text, shape, 10, seed=2).state_dict()
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not torch.equal(one["classifier.weight"], other["classifier.weight"])


def test_a_fresh_model_has_untouched_batch_norm_and_is_in_training_mode():
    net = build("cnn_fmnist", MNIST, 10, seed=0)
    assert net.training and net.bn1.training
    assert net.bn1.num_batches_tracked == 0 and not net.bn1.running_mean.any()


def layers(text, shape):
    """Modules that hold parameters, as the plots name them."""
    net = build(text, shape, 10, seed=0)
    return [n for n, m in net.named_modules() if any(True for _ in m.parameters(recurse=False))]


def test_layers_have_readable_names_and_the_classifier_comes_last():
    assert layers("mlp", MNIST) == ["fc1", "fc2", "classifier"]
    assert layers("simple_cnn", CIFAR) == ["conv1", "conv2", "conv3", "fc1", "classifier"]
    names = layers("resnet8", CIFAR)
    assert names[:3] == ["conv1", "bn1", "layer1.0.conv1"] and "layer2.0.shortcut.conv" in names
    assert names[-1] == "classifier"
    vit = layers("vit(dim=32, depth=1, heads=1, mlp=32)", CIFAR)
    attention, mlp = ["attention.norm", "attention.qkv", "attention.out"], ["mlp.norm", "mlp.fc1", "mlp.fc2"]
    assert vit[:2] == ["embedding", "embedding.patch"] and vit[-2:] == ["norm", "classifier"]
    assert vit[2:-2] == [f"blocks.0.{part}" for part in attention + mlp]


def test_the_mapping_layers_end_linear():
    """FedDW: ReLU after fc1 only, so the 128 features take both signs; all other CNN features are after a ReLU."""
    x, _ = digits(CIFAR)
    assert build("feddw_cnn_cifar10", CIFAR, 10, seed=0).features(x).min() < 0
    assert build("simple_cnn", CIFAR, 10, seed=0).features(x).min() == 0


@pytest.mark.parametrize("name", ["feddw_cnn_mnist", "feddw_cnn_cifar10", "feddw_shufflenet", "feddw_mobilenet"])
def test_the_classifier_bias_can_be_removed(name):
    assert build(f"{name}(bias=False)", CIFAR, 10, seed=0).classifier.bias is None
    assert build(name, CIFAR, 10, seed=0).classifier.bias is not None


@pytest.mark.parametrize("name", ["feddw_bilstm", "feddw_mean"])
def test_the_classifier_bias_of_texts_can_be_removed(name):
    assert build(f"{name}(vocabulary=17, bias=False)", IMDB, 2, seed=0).classifier.bias is None
    assert build(f"{name}(vocabulary=17)", IMDB, 2, seed=0).classifier.bias is not None


def test_the_mean_of_words_does_not_know_their_order():
    words = torch.arange(12).reshape(1, 12)
    for name, same in (("feddw_mean", True), ("feddw_bilstm", False)):
        net = build(f"{name}(vocabulary=17)", (12,), 2, seed=0).eval()
        assert torch.allclose(net(words), net(words.flip(1)), atol=1e-6) == same, name


def test_a_projection_head_is_what_the_classifier_and_moon_see():
    net = build("projected(model=feddw_cnn_cifar10, size=40)", CIFAR, 10, seed=0).eval()
    x, _ = digits(CIFAR)
    inner = net.encoder.features(x)
    z = net.projection2(torch.relu(net.projection1(inner)))
    assert z.shape[1] == 40 and torch.equal(net.features(x), z) and torch.equal(net(x), net.classifier(z))
    with pytest.raises(FedlibError, match="at least 1"):
        MODELS.make("projected(size=0)")


def test_shortcut_a_keeps_the_input():
    """With its convolutions silenced, a block of type A passes the subsampled input between zero channels."""
    block = build("resnet8(shortcut=A)", CIFAR, 10, seed=0).layer2[0].eval()
    nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 16, 8, 8)
    out = block(x)
    assert out.shape == (2, 32, 4, 4)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2]) and not out[:, :8].any() and not out[:, 24:].any()


def test_one_hidden_layer_has_one_written_form():
    assert canonical(MODELS.make("mlp(hidden=(64,))")) == canonical(MODELS.make("mlp(hidden=64)")) == "mlp(hidden=64)"
    assert canonical(MODELS.make("mlp(hidden=(200, 200))")) == "mlp"


@pytest.mark.parametrize(
    "text, shape, message",
    [
        ("mpl", MNIST, "Unknown model 'mpl'.*lenet.*simple_cnn.*wrn56_4"),
        ("mlp(hidden=0)", MNIST, "positive"),
        ("mlp(hidden=(200, 0.5))", MNIST, "positive"),
        ("resnet20(width=0)", CIFAR, "at least 1"),
        ("resnet20(shortcut=C)", CIFAR, "one of A, B"),
        ("vit(dropout=1.0)", CIFAR, "dropout"),
        ("vit(patch=5)", CIFAR, "divides"),
        ("simple_cnn", (1, 8, 8), "at least 18 pixels"),
        ("simple_cnn", IMDB, "channels, height, width"),
        ("textcnn", MNIST, "token numbers"),
    ],
)
def test_what_cannot_be_built_is_refused_with_a_sentence(text, shape, message):
    with pytest.raises(FedlibError, match=message):
        build(text, shape, 10, seed=0)


@pytest.mark.parametrize(
    "name, smallest",
    [
        ("simple_cnn", 18),
        ("lenet", 4),
        ("cnn_fmnist", 12),
        ("feddw_cnn_mnist", 16),
        ("alexnet", 29),
        ("densenet121", 8),
    ],
)
def test_the_smallest_image_named_in_the_error_is_the_smallest_that_works(name, smallest):
    x = torch.zeros(2, 1, smallest, smallest)
    assert build(name, x.shape[1:], 10, seed=0)(x).shape == (2, 10)
    with pytest.raises(FedlibError, match=f"at least {smallest} pixels"):
        build(name, (1, smallest - 1, smallest), 10, seed=0)
