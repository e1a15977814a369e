"""A notebook as a page: verdicts first, code folded, every claim with a place of its own."""

import copy
import re
from html import escape

import nbformat

from fedlib.runs.store import Store
from fedlib.workbook import MIME
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
    crumbs = (
        f'<a href="../../index.html">fedlib</a> › <a href="../../papers/{nb.paper}/README.html">{name(nb.paper)}</a>'
    )
    short = nb.title.removeprefix(f"{name(nb.paper)}, ").partition(":")[0]
    strip = f'<div class="verdicts">{"".join(found)}</div>' if found else ""
    return f'<p class="crumbs">{crumbs} › {escape(short)}</p>\n{strip}\n<p class="switch"><a href="#records">Records behind the numbers</a></p>'


def run_this(nb: Notebook, plan: dict, records: Store) -> str:
    """The command, what can be changed, what its runs took, and the record of every run."""
    found = {job.id: records.get(job.id) for job in plan.values()}
    took = duration(sum(r.json["seconds"] for r in found.values() if r is not None))
    there = sum(r is not None for r in found.values())
    given = "".join(
        f"<li><code>{escape(k)}</code>, by default <code>{escape(repr(v))}</code></li>" for k, v in nb.defaults.items()
    )
    return "\n".join([
        '<details class="run"><summary>Run this</summary>',
        f'<div class="highlight"><pre>fedlib run {nb.name}</pre></div>',
        f"<p>{len(found)} runs, {there} of them on record; those took {took} on one core. Parameters are set with <code>-p name value</code>:</p>",
        f"<ul>{given}</ul>",
        f'<p><a href="{nb.path.stem}.ipynb" download>The notebook</a>, without outputs.</p>',
        "</details>",
        f'<details class="run" id="records"><summary>Records: the {len(found)} runs behind the numbers</summary>',
        "<p>A record is <code>papers/runs/ID.json</code>: spec, accuracy by round, environment. Accuracy is of its last round.</p>",
        f"<table><tr><th>run</th><th>seed</th><th>accuracy</th><th>record</th></tr>{''.join(lines(plan, found))}</table>",
        "</details>",
    ])  # fmt: skip


def lines(plan: dict, found: dict) -> list[str]:
    """A row for each run of the plan: what it is, its seed, how it ended, its id."""
    rows = []
    for key, job in plan.items():
        seed, record = getattr(job, "seed", None), found[job.id]
        parts = key if isinstance(key, tuple) else (key,)
        what = ", ".join(str(part) for part in parts[: -1 if parts[-1] == seed and len(parts) > 1 else None])
        score = f"{record.accuracy[-1]:.2f}" if record is not None and len(record.json.get("accuracy", ())) else "–"
        rows.append(
            f"<tr><td>{escape(what)}</td><td>{seed or '–'}</td><td>{score}</td><td><code>{job.id}</code></td></tr>"
        )
    return rows
