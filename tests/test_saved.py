"""The trained model and what every round has to tell."""

import pandas as pd
import pytest
import torch

import fedlib
from fedlib.core.errors import FedlibError
from fedlib.data import load, to_float
from fedlib.models.base import evaluate

SPEC = fedlib.RunSpec(dataset="digits", model="mlp(hidden=8)", partition="iid", clients=3, rounds=3, lr=0.1)
OPTIONS = ["--dataset=digits", "--model=mlp(hidden=8)", "--partition=iid", "--clients=3", "--rounds=3", "--lr=0.1"]


def test_a_saved_model_scores_what_its_record_says(tmp_path):
    path = tmp_path / "model.safetensors"
    record = fedlib.simulate(SPEC, save=path)
    model, data = fedlib.load_model(path), load("digits")
    assert model.run == record.id
    accuracy, _ = evaluate(model, to_float(data.x_test), data.y_test)
    assert 100 * accuracy == pytest.approx(record.accuracy[-1], abs=1e-3)


def test_what_cannot_be_saved_is_said_before_training(tmp_path):
    for spec, path, words in (
        (SPEC, "model.pt", "ends in .safetensors"),
        (SPEC, "nowhere/model.safetensors", "no folder"),
        (SPEC.replace(algorithm="fedper"), "model.safetensors", "no complete global model"),
    ):
        with pytest.raises(FedlibError, match=words):
            fedlib.simulate(spec, save=tmp_path / path, on_round=lambda done: pytest.fail("it was trained"))
    torch.save({}, tmp_path / "other.safetensors")
    with pytest.raises(FedlibError, match="not a model that fedlib has saved"):
        fedlib.load_model(tmp_path / "other.safetensors")


def test_every_round_is_told(tmp_path):
    told = []
    record = fedlib.simulate(SPEC.replace(eval_every=2), callback=lambda *both: told.append(both))
    assert [number for number, _ in told] == [1, 2, 3] and "train_loss" in told[0][1] and "accuracy" not in told[0][1]
    assert [m["accuracy"] for _, m in told if "accuracy" in m] == record.series["accuracy"]


def test_from_the_shell_a_record_is_made_again_and_must_come_out(shell, tmp_path):
    shell("simulate", *OPTIONS, "-q")
    done = shell("simulate", *OPTIONS, "--save=m.safetensors", "--log=rounds.csv", "--json")
    assert done.returncode == 0 and done.stderr == "", "no progress bar floods a log"
    assert list(pd.read_csv(tmp_path / "rounds.csv")["round"]) == [1, 2, 3]
    assert fedlib.load_model(tmp_path / "m.safetensors").run in done.stdout
    several = shell("simulate", *OPTIONS, "--save=m.safetensors", "--seed=1", "--seed=2")
    assert several.returncode == 2 and "for one run" in several.stderr
