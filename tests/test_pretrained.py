"""Runs that start from a checkpoint: what they start at, what is refused, and that the weights are part of the id."""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedlib.algorithms import Algorithm
from fedlib.core.errors import FedlibError
from fedlib.core.spec import Measure, RunSpec
from fedlib.federation.federation import Federation
from fedlib.models import build, starts
from fedlib.models.starts import STARTS
from fedlib.runs.execute import execute, simulate
from fedlib.runs.pretrained import pretrain

CENTRAL = dict(partition="iid", clients=1, keep_optimizer=True, rounds=2, eval_every=2, subset=200, skip=100, seed=3)
RECIPE = RunSpec(dataset="digits(shape=(1, 16, 16))", model="cnn_fmnist", lr=0.05, **CENTRAL)
RUN = RunSpec(dataset=RECIPE.dataset, model=RECIPE.model, partition="iid", clients=3, rounds=1, subset=100, seed=4)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(starts, "FOLDER", tmp_path / "weights")
    monkeypatch.setenv("FEDLIB_STORE", str(tmp_path / "runs"))
    return tmp_path / "weights"


@pytest.fixture
def card(folder):
    return pretrain("mine", RECIPE)


def write_card(folder, name="mine", **changes):
    path = folder / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_run_starts_at_the_checkpoint(folder, card):
    fed = Federation(RUN.replace(start="mine"))
    weights = load_file(folder / "mine.safetensors")
    for name, tensor in fed.flat.layout.unpack(fed.flat.theta, fed.flat.buffers).items():
        assert torch.equal(tensor, weights[name]), name
    assert weights["bn1.num_batches_tracked"] == 2 * 7  # two epochs of seven batches: BatchNorm's state came along
    score = fed.evaluate(fed.flat.theta.clone(), fed.flat.buffers.clone(), Algorithm("fedavg"), {})
    assert round(score["accuracy"], 6) == card["accuracy"] > 0.3
    assert simulate(RUN.replace(start="mine")).summary["last"] != simulate(RUN).summary["last"]


def test_the_same_recipe_gives_the_same_weights_and_leaves_what_is_there(folder, card):
    before = (folder / "mine.safetensors").stat().st_mtime_ns
    assert pretrain("mine", RECIPE) == card
    assert pretrain("mine", RECIPE.replace(seed=5))["sha256"] != card["sha256"]
    assert (folder / "mine.safetensors").stat().st_mtime_ns == before


def test_training_goes_on_where_it_was_stopped(folder, monkeypatch):
    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "0")
    longer = RECIPE.replace(rounds=3, eval_every=3)
    epochs = []

    def stop(done):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain("stopped", longer, stop)
    whole = pretrain("stopped", longer, epochs.append)
    assert epochs == [2, 3]  # the second epoch was already there
    assert whole == pretrain("at_once", longer)


def test_the_weights_are_part_of_the_id(folder, card):
    spec = RUN.replace(start="mine")
    assert spec.revisions == {"mine": card["sha256"][:16]}
    assert spec.id != RUN.id
    assert RunSpec.from_json(spec.to_json()).id == spec.id
    write_card(folder, sha256="0" * 64)
    assert RUN.replace(start="mine").id != spec.id


def test_another_classifier_for_other_classes(folder, card):
    model = build(RUN.model, (1, 16, 16), 7, seed=0)
    fresh = model.classifier.weight.detach().clone()
    with pytest.raises(FedlibError, match=r"10 classes and this run 7: write mine\(classifier=fresh\)"):
        STARTS.make("mine").load_into(model)
    STARTS.make("mine(classifier=fresh)").load_into(model)
    weights = load_file(folder / "mine.safetensors")
    assert torch.equal(model.classifier.weight, fresh) and torch.equal(model.conv1.weight, weights["conv1.weight"])


def test_what_cannot_be_started_from_is_a_sentence(folder, card):
    with pytest.raises(FedlibError, match="Unknown start 'yours'; the known ones are: mine"):
        RUN.replace(start="yours")
    with pytest.raises(FedlibError, match="mine is a cnn_fmnist and this run's model is lenet"):
        RUN.replace(start="mine", model="lenet")
    with pytest.raises(FedlibError, match="does not fit this run's model, in conv1.weight"):
        STARTS.make("mine").load_into(build("cnn_fmnist", (3, 16, 16), 10, seed=0))
    write_card(folder, file="weights/elsewhere.npz", origin="it is on the moon")
    with pytest.raises(FedlibError, match="not at .*elsewhere.npz: it is on the moon"):
        Federation(RUN.replace(start="mine"))
    (folder / "mine.json").write_text("{}")
    with pytest.raises(FedlibError, match="not the card of a checkpoint"):
        RUN.replace(start="mine")


def test_damaged_weights_are_refused(folder, card):
    path = folder / "mine.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FedlibError, match="does not have the sha256 of the start mine"):
        Federation(RUN.replace(start="mine"))
    path.unlink()
    with pytest.raises(FedlibError, match="'fedlib pretrain mine' makes it"):
        Federation(RUN.replace(start="mine"))


def test_weights_of_others_by_other_names(folder, card, tmp_path, monkeypatch):
    """Plain arrays in the data directory, the classifier called linear, without BatchNorm's counters."""
    weights = load_file(folder / "mine.safetensors")
    theirs = {n.replace("classifier", "linear"): t.numpy() for n, t in weights.items() if "num_batches" not in n}
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    np.savez(tmp_path / "theirs.npz", **theirs)
    digest = hashlib.sha256((tmp_path / "theirs.npz").read_bytes()).hexdigest()
    write_card(folder, sha256=digest, file="theirs.npz", names={"linear": "classifier"})
    model = build(RUN.model, (1, 16, 16), 10, seed=0)
    STARTS.make("mine").load_into(model)
    assert torch.equal(model.classifier.bias, weights["classifier.bias"])


def test_features_of_a_checkpoint_tell_data_sets_apart(folder, card):
    text = f"data_distances(dataset='{RECIPE.dataset}', clients=2, partition=iid, subset=100, samples=10{{}})"
    pixels, features = Measure(text.format("")), Measure(text.format(", start=mine"))
    assert features.revisions == {"mine": card["sha256"][:16]} and pixels.revisions == {}
    first, again = (execute(features).result for _ in range(2))
    assert first == again != execute(pixels).result and first["distance"][0] > 0


def test_the_committed_cards_are_sound():
    STARTS.read()
    for name in [name for name, start in STARTS.entries.items() if "recipe" in start.card]:
        start = STARTS.make(name)
        start.load_into(build(start.card["model"], (3, 32, 32), 10, seed=0))
        recipe = RunSpec.from_json(start.card["recipe"])
        assert recipe.skip >= 10_000  # laptop runs use the first images of every class, and none of these
    shared = RunSpec(
        dataset="cifar10", model="resnet20(shortcut=A)", partition="iid", start="resnet20_cifar10_public",
        transform="imagenet",
    )  # fmt: skip
    assert shared.revisions == {"resnet20_cifar10_public": "7db2ed048755c815"}


def test_the_command(shell, tmp_path):
    """In a folder of its own: the command as such, with the committed cards."""
    listed = shell("pretrain")
    assert listed.returncode == 0 and "resnet20_cifar10_public  sha256 7db2ed" in listed.stdout
    taken = shell("pretrain", "resnet20_cifar10_public", "--lr", "0.5")
    assert taken.returncode == 2 and "choose another name" in taken.stderr
    unnamed = shell("pretrain", "../x", "--dataset", "digits", "--model", "mlp")
    assert unnamed.returncode == 2 and "named by letters" in unnamed.stderr
