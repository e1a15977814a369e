"""What tripped people up on their first day."""

import nbformat
import pytest

import fedlib
from fedlib.core.errors import FedlibError
from fedlib.workbook import settings
from fedlib.workbook.notebooks import BUILD, Notebook, execute, folder_of


def test_every_public_name_is_offered_and_there():
    assert set(fedlib.__all__) <= set(dir(fedlib))
    for name in fedlib.__all__:
        assert getattr(fedlib, name).__doc__, name


def test_a_misspelt_command_is_guessed(shell):
    done = shell("simulat")
    assert done.returncode == 2 and "did you mean 'simulate'?" in done.stderr


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
