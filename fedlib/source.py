"""The code that computes an equation, on the page beside it."""

import inspect
from pathlib import Path

from IPython.display import Markdown

ROOT = Path(__file__).resolve().parents[1]


def show(*things) -> Markdown:
    """The source of classes, functions or modules, each under the name of its file."""
    blocks = []
    for thing in things:
        file = Path(inspect.getsourcefile(thing)).resolve()
        where = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
        blocks.append(f"`{where}`\n```python\n{inspect.getsource(thing).rstrip()}\n```")
    return Markdown("\n\n".join(blocks))
