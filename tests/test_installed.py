"""An installed wheel without the clone: the library and its commands work, those of the workbook say what they need."""

import json
import subprocess
import sys

import pytest
from test_guides import WITH_CODE, run, script

from fedlib.core.paths import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder into which a wheel of this clone was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


@pytest.fixture
def installed(site, tmp_path, environment):
    """The environment of a user who has only the wheel."""
    del environment["FEDLIB_STORE"]
    return environment | {"PYTHONPATH": str(site), "HOME": str(tmp_path), "FEDLIB_JOBS": "1"}


@pytest.fixture
def fedlib(installed, tmp_path):
    """Call the command of the wheel in an empty folder."""

    def call(*arguments):
        command = [sys.executable, "-m", "fedlib", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=installed, capture_output=True, text=True)

    return call


def test_runs_are_simulated_listed_and_kept_outside_of_what_is_installed(fedlib, site, tmp_path):
    options = ["--dataset=digits", "--model=mlp(hidden=16)", "--partition=shards", "--clients=5", "--rounds=2"]
    done = fedlib("simulate", *options, "--subset=200")
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.rglob("runs/*.json")
    assert len(json.loads(record.read_text())["series"]["accuracy"]) == 2
    assert record.stem in fedlib("runs", "--json").stdout
    listed = fedlib("algorithms")
    assert listed.returncode == 0 and "fedprox(mu=" in listed.stdout
    assert not (site / "build").exists()


def test_models_of_ones_own_are_averaged(installed, site, tmp_path):
    code = (
        "import fedlib, torch\n"
        f"assert fedlib.__file__.startswith({str(site)!r})\n"
        "layer = lambda value: {'weight': torch.full((2, 3), value), 'bias': torch.full((2,), value)}\n"
        "new = fedlib.aggregate('fedavg', layer(0.0), [layer(1.0), layer(4.0)], [2, 1])\n"
        "assert torch.allclose(new.state_dict['weight'], torch.full((2, 3), 2.0))\n"
    )
    done = run(code, tmp_path, installed)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("command", ["list", "site", "run", "audit"])
def test_commands_of_the_workbook_say_in_one_sentence_what_they_need(fedlib, command):
    done = fedlib(*command.split())
    assert done.returncode == 2 and "needs the workbook's clone" in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout


@pytest.mark.slow
def test_the_guides_run_as_they_stand(installed, site, tmp_path):
    whole = f"import fedlib\nassert {str(site)!r} in fedlib.__file__\n" + "\n".join(map(script, WITH_CODE))
    done = run(whole, tmp_path, installed)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not (site / "build").exists(), "nothing is written where packages are installed"
