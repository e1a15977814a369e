"""The line below a page's title: what its verdicts stand on, taken from its outputs."""

from pathlib import Path

import nbformat

from fedlib.runs.files import write_atomically
from fedlib.workbook import HEADLINE, MIME
from fedlib.workbook.evidence import REDUCED, STAND_IN

TRANSFER = "[do small runs transfer?](../synthesis/transfer.ipynb)"  # the same from every page


def shown(node: nbformat.NotebookNode, mime: str) -> list:
    """What the outputs of an executed notebook hold of one kind."""
    outputs = (output for cell in node.cells for output in cell.get("outputs", ()))
    return [output["data"][mime] for output in outputs if mime in output.get("data", {})]


def linked(node: nbformat.NotebookNode) -> str:
    """The headline, with a link where a verdict stands on less than the paper's own setting."""
    line = " · ".join(shown(node, HEADLINE))
    small = any(claim["grade"] in (REDUCED, STAND_IN) for claims in shown(node, MIME) for claim in claims)
    return f"{line} · {TRANSFER}" if line and small else line


def headed(source: str, line: str) -> str:
    """A first cell with ``line`` below its title, in place of the one that stood there."""
    title, *rest = source.splitlines()
    rest = [text for text in rest if not text.startswith("> ")]
    while rest and not rest[0].strip():
        rest.pop(0)
    return "\n".join([title, "", f"> {line}", "", *rest]) if line else source


def renew(path: Path) -> bool:
    """Bring a committed page's line up to date with its outputs, without executing it; whether it changed."""
    node = nbformat.read(path, as_version=4)
    before, node.cells[0].source = node.cells[0].source, headed(node.cells[0].source, linked(node))
    if changed := node.cells[0].source != before:
        write(node, path)
    return changed


def write(node: nbformat.NotebookNode, path: Path) -> None:
    """In place of the file, whole or not at all."""
    write_atomically(path, f"{nbformat.writes(node)}\n".encode())
