"""A notebook as a page: verdicts first, code folded, every claim with a place of its own."""

import copy
import re
from html import escape

import nbformat

from fedlib.runs.store import Store
from fedlib.workbook.claims import MIME
from fedlib.workbook.notebooks import Notebook, duration
from fedlib.workbook.site.parts import anchor, grade, name, number, side, verdict

FIRST = re.compile(r"(<tr><td[^>]*)><b>(\w+)</b></td>")  # the first cell of a claim's row


def page(nb: Notebook, claims: list[dict], plan: dict, records: Store) -> nbformat.NotebookNode:
    """The notebook as the site shows it; its numbers are untouched."""
    node, seen = copy.deepcopy(nb.node), set()
    title, _, rest = node.cells[0].source.partition("\n")
    node.cells[0].source = "\n\n".join([title, top(nb, claims), rest, run_this(nb, plan, records)])
    for cell in node.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.tags = [*cell.metadata.get("tags", ()), "hide-input"]
        cell.metadata.mystnb = {"image": {"alt": f"Figure of the page {nb.title}"}}
        for output in cell.outputs:
            if MIME in output.get("data", {}):
                output.data["text/html"] = FIRST.sub(lambda m: _anchored(m, seen), output.data["text/html"])
    return node


def _anchored(match: re.Match, seen: set[str]) -> str:
    start, claim = match.groups()
    id = "" if claim.lower() in seen else f' id="{claim.lower()}"'
    seen.add(claim.lower())
    return f'{start}{id}><a href="#{claim.lower()}"><b>{claim}</b></a></td>'


def top(nb: Notebook, claims: list[dict]) -> str:
    """Where one is, and every verdict as a link to its row."""
    found = [
        f'<a class="verdict {side(c)}" href="#{anchor(c)}" title="{escape(c["sentence"])}">{number(c)} {verdict(c)}'
        f" <small>{escape(grade(c))}</small></a>"
        for c in claims
    ]
    crumbs = f'<a href="../../index.html">fedlib</a> › <a href="../../papers/{nb.paper}/README.html">{name(nb.paper)}</a>'
    short = nb.title.removeprefix(f"{name(nb.paper)}, ").partition(":")[0]
    strip = f'<div class="verdicts">{"".join(found)}</div>' if found else ""
    return f'<p class="crumbs">{crumbs} › {escape(short)}</p>\n{strip}\n<p class="switch"></p>'


def run_this(nb: Notebook, plan: dict, records: Store) -> str:
    """The command, what can be changed, what its runs took, and their records."""
    found = {id: records.get(id) for id in dict.fromkeys(job.id for job in plan.values())}
    took = duration(sum(r.json["seconds"] for r in found.values() if r is not None))
    there = sum(r is not None for r in found.values())
    given = "".join(f"<li><code>{escape(k)}</code>, by default <code>{escape(repr(v))}</code></li>" for k, v in nb.defaults.items())
    ids = ", ".join(f"<code>{id}</code>" for id in found)
    return "\n".join([
        '<details class="run"><summary>Run this</summary>',
        f'<p><code class="command">fedlib run {nb.name}</code></p>',
        f"<p>{len(found)} runs, {there} of them on record; those took {took} on one core. Parameters are set with <code>-p name value</code>:</p>",
        f"<ul>{given}</ul>",
        f'<p><a href="{nb.path.stem}.ipynb" download>The notebook</a></p>',
        f'<details><summary>Records behind this page: <code>papers/runs/ID.json</code></summary><p class="ids">{ids}</p></details>',
        "</details>",
    ])  # fmt: skip
