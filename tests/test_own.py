"""Data sets and models of one's own: from whatever one has, checked in sentences, with their content in the id."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import fedlib
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Layout

PLUGIN = """
from pathlib import Path
import numpy as np, torch
from torch import nn
from fedlib.data import DATASETS, Dataset
from fedlib.models import MODELS

@DATASETS.register("mine")
class Mine:
    "Two classes."
    def load(self):
        found = np.load(Path(__file__).with_name("mine.npz"))
        x, y = torch.from_numpy(found["x"]), torch.from_numpy(found["y"])
        return Dataset("mine", x, y, x, y, 2, ("a", "b"), "my file")

@MODELS.register("plain")
class Plain:
    "A plain module."
    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes))
"""
BROKEN = """
from fedlib.data.partition import PARTITIONS, Iid
Iid.split = lambda self, data, rng: 1 / 0
"""
OPTIONS = ["--dataset=mine", "--model=plain", "--partition=iid", "--clients=2", "--rounds=2", "--json", "-q"]


def samples(count: int = 40, seed: int = 0):
    y = torch.arange(count) % 2
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed)) + 3 * y[:, None], y


def spec(name: str, **changes) -> fedlib.RunSpec:
    fields = {"dataset": name, "model": "mlp(hidden=4)", "partition": "iid", "clients": 2, "rounds": 2} | changes
    return fedlib.RunSpec(**fields)


def test_all_forms_are_one_data_set(tmp_path):
    x, y = samples()
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=y.numpy())
    forms = {"pair": (x, y), "arrays": (x.numpy(), y.numpy()), "pairs": TensorDataset(x, y)}
    forms |= {"file": tmp_path / "mine.npz"}
    for name, form in forms.items():
        fedlib.register_dataset(f"own_{name}", form, form)
    assert len({tuple(spec(f"own_{name}").revisions.values()) for name in forms}) == 1
    assert fedlib.simulate(spec("own_pair", rounds=20, lr=0.1)).accuracy[-1] > 90


def test_a_folder_of_images(tmp_path):
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for n in range(3):
            Image.fromarray(np.full((8, 8, 3), 200 * k + n, np.uint8)).save(tmp_path / name / f"{n}.png")
    fedlib.register_dataset("own_images", tmp_path, tmp_path)
    found = fedlib.load("own_images")
    assert found.class_names == ("cat", "dog") and found.shape == (3, 8, 8) and found.x_train.dtype == torch.uint8


def test_other_content_is_another_run():
    x, y = samples()
    fedlib.register_dataset("own_changing", (x, y), (x, y))
    before = spec("own_changing").id
    fedlib.register_dataset("own_changing", (x, 1 - y), (x, y))
    assert spec("own_changing").id != before


@pytest.mark.parametrize(
    "train, sentence",
    [
        ((torch.zeros(3, 4), [0, 1]), "3 samples and 2 labels"),
        ((torch.zeros(2, 4), [0, -1]), "int64 from 0 to"),
        ("nowhere.npz", "cannot be read"),
        (7, "give a pair"),
    ],
)
def test_what_cannot_be_used_is_said(train, sentence):
    with pytest.raises(FedlibError, match=sentence):
        fedlib.register_dataset("own_wrong", train, samples())


def test_a_plain_module_trains_where_no_features_are_needed():
    fedlib.register_dataset("own_plain", samples(), samples(20, 1))
    fedlib.register_model("own_net", lambda shape, classes: nn.Sequential(nn.Linear(*shape, 8), nn.Linear(8, classes)))
    for algorithm in ("fedavg", "fedprox(mu=0.1)+lws", "scaffold", "fedrep"):
        assert fedlib.simulate(spec("own_plain", model="own_net", algorithm=algorithm, local_epochs=2)).status == "ok"
    for change in ({"algorithm": "moon"}, {"probes": "ensemble"}):
        with pytest.raises(FedlibError, match="looks at a model's features, which own_net does not have"):
            fedlib.simulate(spec("own_plain", model="own_net", **change))


def test_changed_data_of_a_plugin_is_run_again(tmp_path, shell):
    """The class leaves out sizes, shape, class_names and about, and its file changes behind it."""
    x, y = samples()
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=y.numpy())
    (tmp_path / "plugin.py").write_text(PLUGIN)
    plugin = {"FEDLIB_PLUGINS": "plugin.py"}
    first = shell("simulate", *OPTIONS, **plugin)
    assert first.returncode == 0, first.stderr
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=(1 - y).numpy())
    second = shell("simulate", *OPTIONS, **plugin)
    assert second.returncode == 0 and second.stdout != first.stdout
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2
    listed = shell("data", **plugin)
    assert listed.returncode == 0 and "Two classes." in listed.stdout, listed.stderr


def test_a_bare_layer_is_one_layer():
    assert [layer.name for layer in Layout.of_model(nn.Linear(2, 2)).layers] == ["layer"]


def test_an_edited_class_makes_another_run():
    ids = set()
    for power in (1, 2):
        names = {"__name__": "my_notebook"}
        code = "from fedlib.algorithms import Weighting, register\n@register('own_rule')\nclass Rule(Weighting):\n"
        exec(f"{code}    def weigh(self, r, weights):\n        return weights ** {power}\n", names)
        ids.add(fedlib.RunSpec(dataset="digits", model="mlp", partition="iid", algorithm="own_rule").id)
    assert len(ids) == 2


@pytest.mark.parametrize(
    "plugin, says",
    [
        (PLUGIN.replace('2, ("a", "b"), "my file"', '("a", "b")'), "The data set mine cannot be loaded: TypeError: "),
        (
            PLUGIN.replace("nn.Linear(8, classes)", "nn.Linear(8, klasses)"),
            "plain cannot be built for samples of shape",
        ),
        (PLUGIN + BROKEN, "cannot begin: ZeroDivisionError: "),
    ],
)
def test_what_a_plugin_gets_wrong_is_a_sentence_with_its_place(tmp_path, shell, plugin, says):
    x, y = samples()
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=y.numpy())
    (tmp_path / "plugin.py").write_text(plugin)
    done = shell("simulate", *OPTIONS, FEDLIB_PLUGINS="plugin.py")
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "(plugin.py, line " in done.stderr
