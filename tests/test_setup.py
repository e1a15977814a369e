"""The set-up files agree with each other and with what is installed."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = {
    canonical(name): version
    for name, version in re.findall(r"^([\w.-]+)==([\w.+!]+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
}
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


def test_every_line_of_the_lock_pins_one_version():
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(LOCK) and all(re.fullmatch(r"[\w.-]+==[\w.!]+", line) for line in lines)
    assert (LOCK["torch"], LOCK["torchvision"]) == ("2.13.0", "0.28.0")


def test_conda_installs_the_lock_and_nothing_that_contradicts_it():
    [pip] = [entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict)]
    assert pip == ["-r requirements.lock", "-e ."]
    conda = dict(entry.partition("=")[::2] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str))
    assert not set(conda) & set(LOCK), "a package is versioned in one place only"
    assert PROJECT["project"]["requires-python"] == f">={conda['python']}"
    assert f"python{conda['python']}" in (ROOT / "Makefile").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need a few packages more")
def test_the_lock_holds_everything_fedlib_needs_down_to_the_last_dependency():
    """Walks what the installed packages require, except the GPU libraries that only some builds of torch ask for."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"].items()
    optional = [name for _, names in extras for name in names]
    names = project["dependencies"] + optional + PROJECT["build-system"]["requires"]
    todo, seen = [Requirement(name) for name in names], set()
    while todo:
        requirement = todo.pop()
        name = canonical(requirement.name)
        if name.startswith(("nvidia-", "cuda-")) or name == "triton":
            continue
        assert name in LOCK, f"{name} is not locked"
        assert requirement.specifier.contains(LOCK[name], prereleases=True), f"{requirement} but {LOCK[name]} is locked"
        if (name, frozenset(requirement.extras)) not in seen:
            seen.add((name, frozenset(requirement.extras)))
            for text in metadata.requires(name) or ():
                needed = Requirement(text)
                extras = requirement.extras or {""}
                if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                    todo.append(needed)
    assert {name for name, _ in seen} == set(LOCK), "the lock holds packages that nothing needs"


def test_what_is_installed_is_what_is_locked():
    installed = {name: metadata.version(name).partition("+")[0] for name in LOCK}
    assert installed == LOCK


def test_every_import_is_a_declared_dependency():
    """A top-level import that comes only by way of another package would break when that one drops it."""
    imports = set()
    for path in ROOT.glob("fedlib/**/*.py"):
        imports |= set(re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE))
    owners = metadata.packages_distributions()
    needed = {canonical(owners[name][0]) for name in imports if name in owners} - {"fedlib", "fedlib-workbook"}
    extras = PROJECT["project"]["optional-dependencies"]
    declared = sum((extras[name] for name in ("clip", "flower", "ray", "site")), PROJECT["project"]["dependencies"])
    assert needed <= {canonical(Requirement(name).name) for name in declared}


def test_nothing_but_make_test_runs_in_ci():
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    commands = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for part in ("ruff check", "lint-imports", "mypy", "pytest", "--scale smoke", "--nbval ", "fedlib audit"):
        assert part in commands
    assert "exec make test" in (ROOT / ".ci" / "run").read_text()
