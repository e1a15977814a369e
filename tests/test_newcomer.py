"""What tripped people up on their first day."""

import json
import subprocess
import sys

import nbformat
import pytest
import torch

import fedlib
from fedlib.cli import cli
from fedlib.core import paths
from fedlib.core.device import device
from fedlib.core.errors import FedlibError
from fedlib.workbook import settings
from fedlib.workbook.notebooks import BUILD, Notebook, execute, folder_of


def test_every_public_name_is_offered_and_there():
    assert set(fedlib.__all__) <= set(dir(fedlib))
    for name in fedlib.__all__:
        assert getattr(fedlib, name).__doc__, name


def test_a_misspelt_command_is_guessed(shell):
    done = shell("simulat")
    assert done.returncode == 2 and "Did you mean 'simulate'?" in done.stderr


@pytest.mark.parametrize(
    "words, found",
    [
        ("fedlib sim", "simulate"),
        ("fedlib run fedlap/fig", "fedlap/figure01_no_stragglers"),
        ("fedlib simulate --algorithm fedavg+lw", "fedavg+lws"),
    ],
)
def test_the_shell_completes(shell, words, found):
    count = str(len(words.split()) - 1)
    done = shell(_FEDLIB_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=count)
    assert f"plain,{found}" in done.stdout.splitlines(), done.stdout + done.stderr


def test_a_page_with_other_parameters_does_not_replace_the_usual_one(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_STORE", str(tmp_path / "runs"))
    usual, other = (execute(Notebook(notebook), changes, tmp_path / "out") for changes in ({}, {"seeds": [1, 2]}))
    assert usual != other and usual.exists() and other.parent.parent.name == "smoke,seeds=1,2"
    assert nbformat.read(usual, 4).metadata.papermill.output_path == str(usual)


def test_folders_are_short_and_plain():
    assert folder_of("laptop", {"scale": "laptop"}) == "laptop" and BUILD.name == "notebooks"
    assert folder_of("laptop", {"also": ["a/../b", "c d"]}) == "laptop,also=a..b,cd"
    long = [folder_of("laptop", {"also": ["x" * 300, n]}) for n in (1, 2)]
    assert max(map(len, long)) < 81 and long[0] != long[1]


def test_a_panel_without_a_scale_is_one_sentence(monkeypatch):
    panels = {"defaults": {}, "panels": {"digits": {"paper": {"dataset": "digits"}}}}
    monkeypatch.setattr(settings, "read", lambda paper, name: panels)
    with pytest.raises(FedlibError, match="There is no 'laptop:' in the panel digits of papers/mine/settings.yaml"):
        settings.setting("mine", "digits", "laptop")


@pytest.mark.parametrize("arguments", [["list"], ["plan"], ["run"], ["report"], ["site"], ["run", "fedlap"], ["audit"]])
def test_without_the_clone_the_workbooks_commands_say_so(monkeypatch, arguments):
    """They listed, planned and regenerated nothing without a word."""
    monkeypatch.setattr(paths, "IN_CLONE", False)
    with pytest.raises(FedlibError, match="installed without it: clone the repository"):
        cli.main(arguments, standalone_mode=False)


def test_one_thing_by_its_name(shell):
    (found,) = json.loads(shell("params", "fedlap", "--json").stdout)
    assert (
        found["kind"] == "algorithm"
        and {"name": "q", "type": "float", "default": 0.5, "about": ""} in found["parameters"]
    )
    told = shell("params", "dirichlet").stdout
    assert told.startswith("dirichlet, a partition") and "always written out" in told
    assert "did you mean 'fedprox'?" in shell("params", "fedprx").stderr


def test_the_device_is_chosen(monkeypatch, shell):
    monkeypatch.setenv("FEDLIB_DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device().type == "cpu"
    monkeypatch.delenv("FEDLIB_DEVICE")
    assert device().type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device().type == "cpu"
    monkeypatch.setenv("FEDLIB_DEVICE", "cuda")
    with pytest.raises(FedlibError, match="sees no card here"):
        device()
    with pytest.raises(FedlibError, match="^FEDLIB_DEVICE is cuda"):
        fedlib.run([fedlib.RunSpec(dataset="digits", model="mlp", partition="iid", seed=s) for s in (1, 2)], store="no")
    run = ["simulate", "--dataset=digits", "--model=mlp", "--partition=iid", "--rounds=1", "-q"]
    assert shell(*run, "--device=cpu").returncode == 0
    assert "is cpu or cuda; got 'tpu'" in shell(*run, "--seed=7", FEDLIB_DEVICE="tpu").stderr


def test_one_run_waits_for_no_estimate_and_makes_no_room_for_a_billion_processes(tmp_path, environment):
    """The estimate imports torch's compiler, and there was a list of as many places as jobs."""
    code = (
        "import fedlib, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n"
        "spec = fedlib.RunSpec(dataset='digits', model='mlp(hidden=4)', partition='iid', rounds=1, clients=2)\n"
        "fedlib.run(spec, jobs=10**9, progress=False)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
