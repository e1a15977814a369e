"""What a notebook puts on its page besides figures: the code beside an equation, and plain tables."""

import html
import inspect
from pathlib import Path

import pandas as pd
from IPython.display import Markdown, display

from fedlib.core.paths import ROOT


def show(*things) -> Markdown:
    """The source of classes, functions or modules, each under the name of its file."""
    blocks = []
    for thing in things:
        file = Path(inspect.getsourcefile(inspect.unwrap(thing))).resolve()  # not that of a decorator
        where = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
        blocks.append(f"`{where}`\n```python\n{inspect.getsource(thing).rstrip()}\n```")
    return Markdown("\n\n".join(blocks))


def show_table(frame: pd.DataFrame, title: str = "", empty: str = "nothing") -> None:
    """Display a frame whole, without its index, or the sentence ``empty``. What is missing is a dash."""
    frame = frame.astype({c: object for c in frame if frame[c].isna().any()}).fillna("–")
    if frame.empty:
        body, plain = f"<p>{html.escape(empty)}</p>", empty
    else:
        body = html_table(frame.columns, frame.map(lambda v: html.escape(str(v))).to_numpy())
        plain = frame.to_string(index=False)
    head = f"<p><b>{html.escape(title)}</b></p>\n" if title else ""
    display({"text/html": head + body, "text/plain": f"{title}\n{plain}".strip()}, raw=True)


def html_table(heads, rows) -> str:
    """Left-aligned cells (already HTML) without ids or classes: the same bytes every time, on every code host."""
    left = ' style="text-align:left"'
    lines = ["<table>", "<tr>" + "".join(f"<th{left}>{h}</th>" for h in heads) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td{left}>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])
