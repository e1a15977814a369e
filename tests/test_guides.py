"""What README and the guides tell people to run does run: every file's Python, as a script in an empty folder."""

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

import fedlib
from fedlib.core.paths import ROOT

GUIDES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
BLOCK = re.compile(r"^(?:<!-- (tested: \S+) -->\n)?```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def script(guide: str) -> str:
    """The Python blocks of a guide, one after the other; what is shown as a file of its own is tested elsewhere."""
    blocks = [code for named, code in BLOCK.findall((ROOT / guide).read_text(encoding="utf-8")) if not named]
    return "\n".join(code for code in blocks if "flower" not in code or find_spec("flwr"))


WITH_CODE = [guide for guide in GUIDES if script(guide)]


def run(code: str, folder, environment) -> subprocess.CompletedProcess:
    (folder / "guide.py").write_text(code, encoding="utf-8")
    return subprocess.run([sys.executable, "guide.py"], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("guide", WITH_CODE)
def test_the_snippets_run_as_a_script(guide, tmp_path, environment):
    done = run(script(guide), tmp_path, environment | {"FEDLIB_JOBS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]


def test_there_are_snippets():
    assert {"README.md", "docs/extending.md"} <= set(WITH_CODE)


@pytest.mark.parametrize("guide", [*GUIDES, "CONTRIBUTING.md"])
def test_every_command_that_is_named_exists(guide):
    from fedlib.cli import COMMANDS

    text = (ROOT / guide).read_text(encoding="utf-8")
    named = re.findall(r"(?:^|`)fedlib ([a-z]+)", text, re.MULTILINE)
    assert set(named) <= set(COMMANDS), sorted(set(named) - set(COMMANDS))
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / guide).parent / link).exists(), link


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = dict.fromkeys(re.findall(r"auto(?:class|function|exception):: (\S+)", text))
    assert {f"fedlib.{name}" for name in fedlib.__all__} <= set(shown)
    for full in shown:
        module, _, name = full.rpartition(".")
        assert getattr(import_module(module), name).__doc__, full
    for full, members in re.findall(r"autoclass:: (\S+)\n +:members: (.+)", text):
        module, _, name = full.rpartition(".")
        assert set(members.split(", ")) <= set(dir(getattr(import_module(module), name))), full
