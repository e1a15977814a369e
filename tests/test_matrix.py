"""Every model with every algorithm, at toy size: two rounds, no error, every loss a number."""

import pytest

from fedlib.algorithms import ALGORITHMS
from fedlib.core.spec import RunSpec
from fedlib.models import MODELS
from fedlib.runs.execute import simulate

SMALL, CIFAR = "digits(shape=(1, 16, 16))", "digits(shape=(3, 32, 32))"
MODEL = {  # in a form that is quick, on data of its kind; the others as they are, on SMALL
    "mlp": ("mlp(hidden=16)", SMALL),
    "alexnet": ("alexnet", CIFAR),
    "simple_cnn": ("simple_cnn", CIFAR),
    "resnet18": ("resnet18", CIFAR),
    "feddw_shufflenet": ("feddw_shufflenet", CIFAR),
    "feddw_mobilenet": ("feddw_mobilenet", CIFAR),
    "feddw_cnn_mnist": ("feddw_cnn_mnist", "digits"),
    "feddw_cnn_cifar10": ("feddw_cnn_cifar10", CIFAR),
    "wrn56_4": ("wrn56_4(width=1)", SMALL),
    "vit": ("vit(dim=16, depth=1, heads=2, mlp=16)", SMALL),
    "textcnn": ("textcnn(vocabulary=258, dim=4)", "digit_words"),
    "feddw_bilstm": ("feddw_bilstm(vocabulary=258)", "digit_words"),
    "feddw_mean": ("feddw_mean(vocabulary=258)", "digit_words"),
    "amazon_mlp": ("amazon_mlp", "digit_counts"),
}
SHORT = "features=2, steps=2, epochs=2"
ALGORITHM = {"creff": f"creff({SHORT})", "clip2fl": f"clip2fl({SHORT}, clip={{clip}})"}
CLIPS = {"mlp": "tiny16"} | dict.fromkeys(["simple_cnn", "resnet8", "resnet20", "resnet56", "resnet110"], "tiny64")
FAST = [("fedavg", model) for model in MODELS.names()]
FAST += [(name, model) for name in ALGORITHMS.names() for model in ("mlp", "resnet8") if name != "fedavg"]
REST = [(name, model) for name in ALGORITHMS.names() for model in MODELS.names() if (name, model) not in FAST]


@pytest.mark.parametrize("name, model", FAST + [pytest.param(*one, marks=pytest.mark.slow) for one in REST])
def test_it_trains(name, model, request, monkeypatch):
    text, dataset = MODEL.get(model, (model, SMALL))
    if name == "clip2fl":
        if model not in CLIPS:
            pytest.skip("it needs pictures, and as many features as its CLIP has; the test's have 16 or 64")
        monkeypatch.setenv("FEDLIB_DATA", str(request.getfixturevalue("clip_folder")))
    learns = getattr(ALGORITHMS.entries[name], "needs_proxy", False)
    form = ALGORITHM.get(name, f"{name}(epochs=2)" if learns else name)
    spec = RunSpec(
        dataset=dataset, model=text, algorithm=form.format(clip=CLIPS.get(model)), partition="dirichlet(alpha=1.0)",
        subset=60, test_subset=20, proxy="balanced(size=10)" if learns else None, clients=3, rounds=2, local_epochs=2,
        batch_size=8, lr=0.01,
    )  # fmt: skip
    record = simulate(spec)
    assert record.status == "ok", record.error
    series = record.series
    assert len(series["loss"]) == 2 and all(x is not None for x in series["loss"] + series["train_loss"])
