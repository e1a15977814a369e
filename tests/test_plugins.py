"""A method in a file of one's own is a method like any other: the README's example, as it is printed there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import write_notebook

ROOT = Path(__file__).resolve().parents[1]
RUN = ["simulate", "--dataset", "digits", "--model", "mlp(hidden=16)", "--partition", "dirichlet(alpha=0.1)"]
RUN += ["--clients", "5", "--rounds", "2", "--subset", "200", "--json"]

DATA_AND_MODEL = """
import numpy as np
import torch

import fedlib
from fedlib.data import Dataset
from fedlib.data.base import DATASETS
from fedlib.data.partition import PARTITIONS
from fedlib.models import MODELS
from fedlib.probes import PROBES, Probe


@DATASETS.register("stripes")
class Stripes:
    \"\"\"Two classes of noise, one with a stripe.\"\"\"

    def load(self, progress=True):
        y = torch.arange(240) % 2
        x = torch.randint(0, 200, (240, 1, 6, 6), generator=torch.Generator().manual_seed(0)).byte()
        x[y == 1, :, 2] = 255
        return Dataset("stripes", x[:200], y[:200], x[200:], y[200:], 2, ("plain", "striped"), "made here")


@MODELS.register("one_layer")
class OneLayer:
    \"\"\"Nothing but a linear layer.\"\"\"

    def build(self, shape, classes):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(int(np.prod(shape)), classes))


@PARTITIONS.register("every_kth")
class EveryKth:
    \"\"\"Sample i goes to client i modulo their number.\"\"\"

    def split(self, data, rng):
        return [np.arange(k, len(data.y), data.clients) for k in range(data.clients)]


@PROBES.register("largest")
class Largest(Probe):
    \"\"\"The largest parameter.\"\"\"

    def measure(self, fed, r):
        return {"value": float(r.aggregate.abs().max())}
"""
OTHERS = """
import numpy as np
import torch

from fedlib.algorithms import Server, register
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.data.corruption import CORRUPTIONS
from fedlib.data.proxy import PROXIES
from fedlib.runs.measures.base import MEASURES, Measurement


@register("count_proxy")
class CountProxy(Server):
    \"\"\"Logs how many samples the server has; the average stays.\"\"\"

    needs_proxy = True

    def step(self, r):
        r.log("proxy_samples", len(r.need("proxy")[0][1]))
        return r.aggregate


@OPTIMIZERS.register("still")
class Still:
    \"\"\"Moves nothing.\"\"\"

    def state(self, theta):
        return {}

    def step(self, theta, grad, state, lr):
        pass


@PROXIES.register("one_each")
class OneEach:
    \"\"\"One sample of every class.\"\"\"

    def counts(self, classes):
        return np.ones(classes, int)


@CORRUPTIONS.register("all_zero")
class AllZero:
    \"\"\"Every label is the first class.\"\"\"

    def apply(self, labels, partition, seed):
        open("corrupted", "w").close()
        return np.zeros_like(labels)


@MEASURES.register("answer")
class Answer(Measurement):
    \"\"\"A number.\"\"\"

    half: int = 21
    seconds = 0.1

    def measure(self, on_turn):
        return {"answer": 2 * self.half}
"""


@pytest.fixture
def plugin(tmp_path) -> Path:
    found = re.search(r"<!-- tested: (\S+) -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / found[1]
    path.write_text(found[2])
    assert len(found[2].splitlines()) <= 18, "it is to be short"
    return path


def test_the_example_runs_alone_and_composed_and_in_workers(plugin, shell):
    done = shell(*RUN, "--algorithm", "cosine(sharpness=2)+lws", "--seed", 1, "--seed", 2, FEDLIB_PLUGINS=str(plugin))
    assert done.returncode == 0, done.stderr
    assert len(list((plugin.parent / "runs").glob("*.json"))) == 2
    assert all('"cosine"' in path.read_text() for path in (plugin.parent / "runs").glob("*.json")), "what it logged"


def test_another_file_makes_other_runs(plugin, shell):
    assert shell(*RUN, "--algorithm", "cosine", FEDLIB_PLUGINS=str(plugin)).returncode == 0
    plugin.write_text(plugin.read_text().replace("exp(self", "exp(2 * self"))
    assert shell(*RUN, "--algorithm", "cosine", FEDLIB_PLUGINS=str(plugin)).returncode == 0
    assert len(list((plugin.parent / "runs").glob("*.json"))) == 2


def test_a_bad_file_is_named_in_one_sentence(plugin, shell):
    plugin.write_text("1 / 0")
    done = shell("algorithms", FEDLIB_PLUGINS=str(plugin))
    assert done.returncode and "cosine.py cannot be loaded: ZeroDivisionError" in done.stderr
    assert "Traceback" not in done.stderr
    done = shell("algorithms", FEDLIB_PLUGINS="missing.py")
    assert "'missing.py', which is no file" in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_ends_the_process_is_named_too(plugin, shell):
    plugin.write_text("import sys\nsys.exit(0)")
    done = shell("algorithms", FEDLIB_PLUGINS=str(plugin))
    assert done.returncode == 2 and "cosine.py cannot be loaded: SystemExit: 0." in done.stderr


def test_annotations_from_the_future_are_read(plugin, shell):
    plugin.write_text("from __future__ import annotations\n" + plugin.read_text())
    done = shell(*RUN, "--algorithm", "cosine(sharpness=2)", FEDLIB_PLUGINS=str(plugin))
    assert done.returncode == 0, done.stderr


def test_one_command_takes_data_model_partition_and_probe_of_ones_own(tmp_path, shell):
    (tmp_path / "mine.py").write_text(DATA_AND_MODEL)
    run = ["simulate", "--dataset=stripes", "--model=one_layer", "--partition=every_kth", "--probes=largest(every=1)"]
    done = shell(*run, "--clients=4", "--rounds=3", "--lr=0.1", FEDLIB_PLUGINS="mine.py")
    assert done.returncode == 0, done.stderr
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json"))
    assert record["partition"]["sizes"] == [50] * 4
    assert len(record["probes"]["largest(every=1)"]["series"]["value"]) == 3
    assert record["series"]["accuracy"][-1] > 0.6, "it learns"


def test_one_command_takes_method_optimiser_proxy_and_corruption_of_ones_own(tmp_path, shell):
    (tmp_path / "mine.py").write_text(OTHERS)
    run = [*RUN, "--algorithm=count_proxy", "--optimizer=still", "--proxy=one_each", "--corruption=all_zero"]
    done = shell(*run, FEDLIB_PLUGINS="mine.py")
    assert done.returncode == 0, done.stderr
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json"))
    assert record["series"]["proxy_samples"] == [10, 10]
    assert len(set(record["series"]["accuracy"])) == 1, "the optimiser moves nothing"
    assert (tmp_path / "corrupted").exists()


def test_a_page_takes_a_measurement_of_ones_own(tmp_path, shell):
    (tmp_path / "mine.py").write_text(OTHERS)
    (tmp_path / "mine").mkdir()
    page = nbformat.read(write_notebook(tmp_path / "mine" / "answer.ipynb", "print(records[0].result['answer'])"), 4)
    grid = "from fedlib import Measure\n\ngrid = {0: Measure('answer(half=4)')}"
    (cell,) = [cell for cell in page.cells if "grid" in cell.metadata.get("tags", ())]
    cell.source = grid
    page.cells = [cell for cell in page.cells if "show_claims" not in cell.source]
    nbformat.write(page, tmp_path / "mine" / "answer.ipynb")
    done = shell("run", "mine/answer.ipynb", "--out", tmp_path / "out", FEDLIB_PLUGINS=str(tmp_path / "mine.py"))
    assert done.returncode == 0, done.stderr
    shown = nbformat.read(next((tmp_path / "out").rglob("answer.ipynb")), 4).cells[-1].outputs
    assert shown[0].text == "8\n"


def test_the_listings_name_them(tmp_path, environment):
    (tmp_path / "one.py").write_text(DATA_AND_MODEL)
    (tmp_path / "two.py").write_text(OTHERS)
    listed = {
        "data": "stripes", "models": "one_layer", "partitions": "every_kth", "probes": "largest",
        "algorithms": "count_proxy", "optimizers": "still", "proxies": "one_each", "corruptions": "all_zero",
        "measures": "answer",
    }  # fmt: skip
    code = (
        "import json\nfrom click.testing import CliRunner\nfrom fedlib.cli import cli\n"
        f"print(json.dumps({{name: CliRunner().invoke(cli, [name]).output for name in {list(listed)}}}))"
    )
    variables = environment | {"FEDLIB_PLUGINS": os.pathsep.join(["one.py", "two.py"])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    for command, name in listed.items():
        assert re.search(rf"^{name}\b", shown[command], re.M), command


@pytest.mark.slow
def test_one_command_sets_it_beside_every_method(plugin, shell, tmp_path):
    names = re.search(r"fedlib run synthesis/all_methods -p also \"(.*)\"", (ROOT / "README.md").read_text())[1]
    run = ["run", "synthesis/all_methods", "--scale", "smoke", "--out", tmp_path / "out", "-p", "also", names]
    done = shell(*run, FEDLIB_PLUGINS=str(plugin))
    assert done.returncode == 0, done.stderr
    page = json.loads(next((tmp_path / "out").rglob("all_methods.ipynb")).read_text())
    shown = json.dumps([cell.get("outputs") for cell in page["cells"]])
    assert "cosine+lws" in shown, "its rows are in the tables"
