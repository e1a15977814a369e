"""The house has floors, its rooms are small, and what the guides say of it is so."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "fedlib").rglob("*.py"))


def late_imports(source: str) -> int:
    """How many statements inside functions import fedlib."""
    found = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    names = ["fedlib"] if node.level else [node.module]
                if any(name.split(".")[0] == "fedlib" for name in names):
                    found.add(node)
    return len(found)


def test_few_imports_hide_in_functions_and_one_comment_names_them():
    source = (
        "import fedlib\ndef f():\n    from fedlib import a\n    def g():\n        import fedlib.b\n        import os\n"
    )
    assert late_imports(source) == 2, "it counts"
    late = {path: count for path in FILES if (count := late_imports(path.read_text()))}
    assert sum(late.values()) <= 12
    comment = re.search(
        r"# Imports of fedlib inside functions.*?\n[^#]", (ROOT / "fedlib/__init__.py").read_text(), re.S
    )
    named = set(re.findall(r"(?:runs|workbook|federation|data)(?:\.\w+)+", comment[0]))
    assert named == {".".join(path.relative_to(ROOT / "fedlib").with_suffix("").parts) for path in late}


def test_no_file_is_longer_than_350_lines():
    long = {str(path): lines for path in FILES if (lines := len(path.read_text().splitlines())) > 350}
    assert not long


def test_readme_names_every_folder_and_contributing_every_floor():
    readme = (ROOT / "README.md").read_text().partition("## Where things are")[2]
    listed = re.findall(r"^fedlib/(\w+)/ ", readme, re.M)
    assert sorted(listed) == sorted(path.parent.name for path in (ROOT / "fedlib").glob("*/__init__.py"))
    floors = re.search(r"## Floors.*?```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)[1]
    names = [name for line in floors.splitlines() for name in re.findall(r"\w+", line[:13])]
    assert names == listed
