"""A notebook as a page: verdicts first, code folded, every claim with a place of its own."""

import copy
import csv
import io
import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

import nbformat

from fedlib.runs.record import Record
from fedlib.workbook import MIME
from fedlib.workbook.notebooks import Notebook, duration
from fedlib.workbook.site.parts import anchor, grade, name, number, side, verdict

SHOWN = 16  # verdicts at the head of a page; of more, only what is decided
FIRST = re.compile(r"(<tr><td[^>]*)><b>(\w+)</b></td>")  # the first cell of a claim's row


def page(nb: Notebook, claims: list[dict], plan: dict, records: dict[str, Record]) -> nbformat.NotebookNode:
    """The notebook as the site shows it; its numbers are untouched."""
    node, seen = copy.deepcopy(nb.node), set()
    title, _, rest = node.cells[0].source.partition("\n")
    node.cells[0].source = "\n\n".join([title, top(nb, claims), rest, run_this(nb, plan, records)])
    heading = ""
    for cell in node.cells:
        if cell.cell_type != "code":
            headings = [line.lstrip("# ") for line in cell.source.splitlines() if line.startswith("## ")]
            heading = headings[-1] if headings else heading
            continue
        cell.metadata.tags = [*cell.metadata.get("tags", ()), "hide-input"]
        cell.metadata.mystnb = {"image": {"alt": f"{nb.title}. {heading or 'Figure'}"}}
        for output in cell.outputs:
            if output.get("data", {}).get(MIME):  # a page may have no claims
                output.data["text/html"] = FIRST.sub(lambda m: _anchored(m, seen), output.data["text/html"])
    return node


def _anchored(match: re.Match, seen: set[str]) -> str:
    start, claim = match.groups()
    id = "" if claim.lower() in seen else f' id="{claim.lower()}"'
    seen.add(claim.lower())
    return f'{start}{id}><a href="#{claim.lower()}"><b>{claim}</b></a></td>'


def top(nb: Notebook, claims: list[dict]) -> str:
    """Where one is, and every verdict as a link to its row."""
    found = {
        c[
            "id"
        ]: f'<a class="verdict {side(c)}" href="#{anchor(c)}" title="{escape(c["sentence"])}">{number(c)} {verdict(c)}'
        f" <small>{escape(grade(c))}</small></a>"
        for c in claims
    }
    folded = [c["id"] for c in claims if side(c) in ("open", "none")] if len(claims) > SHOWN else []
    crumbs = (
        f'<a href="../../index.html">fedlib</a> › <a href="../../papers/{nb.paper}/README.html">{name(nb.paper)}</a>'
    )
    short = nb.heading.partition(":")[0]
    strip = "".join(text for id, text in found.items() if id not in folded)
    strip = f'<div class="verdicts">{strip}</div>' if strip else ""
    if folded:
        rest = "".join(found[id] for id in folded)
        strip += f'<details><summary>{len(folded)} claims open or without evidence</summary><div class="verdicts">{rest}</div></details>'
    return f'<p class="crumbs">{crumbs} › {escape(short)}</p>\n{strip}\n<p class="switch"><a href="#records">Records behind the numbers</a></p>'


def run_this(nb: Notebook, plan: dict, records: dict[str, Record]) -> str:
    """A form that writes the command, what its runs took, and the record of every run."""
    jobs = {job.id for job in plan.values()}
    found = {id: records[id] for id in jobs & records.keys()}
    took = duration(sum(r.json["seconds"] for r in found.values()))
    given = "".join(
        f'<label>{escape(k)} <input value="{escape(written(v))}" data-name="{escape(k)}"></label>'
        for k, v in nb.defaults.items()
    )
    return "\n".join([
        '<details class="run"><summary>Run this</summary>',
        f'<div class="highlight"><pre class="command">fedlib run {nb.name}</pre></div>',
        f'<div class="parameters">{given}</div>',
        f"<p>As it stands: {len(jobs)} runs, {len(found)} of them on record, which took {took} on one core and are not trained again. "
        f"Other values are given with <code>-p name value</code>; <code>fedlib plan</code> in place of <code>fedlib run</code> says how long the missing runs will take.</p>",
        f'<p><a href="{nb.path.stem}.ipynb" download>The notebook</a>, without outputs.</p>',
        "</details>",
        f'<details class="run" id="records"><summary>Records: the {len(jobs)} runs behind the numbers</summary>',
        "<p>A record is <code>papers/runs/ID.json</code> in the repository: spec, accuracy by round, environment; <code>fedlib show ID</code> prints it. "
        f'Accuracy is of its last round. All of them with their specs: <a href="{nb.path.stem}.runs.csv" download>CSV</a>.</p>',
        f"<table><tr><th>run</th><th>seed</th><th>accuracy</th><th>record</th></tr>{''.join(lines(plan, found))}</table>",
        "</details>",
    ])  # fmt: skip


def lines(plan: dict, found: dict[str, Record]) -> list[str]:
    """A row for each run of the plan: what it is, its seed, how it ended, its id."""
    return [
        f"<tr><td>{escape(what)}</td><td>{seed or '–'}</td><td>{score or '–'}</td><td><code>{id}</code></td></tr>"
        for what, seed, id, score, *_ in _told(plan, found)
    ]


def runs(plan: dict, found: dict[str, Record]) -> str:
    """The same as CSV, with rounds, seconds and the spec of each."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(("run", "seed", "record", "accuracy", "rounds", "seconds", "spec"))
    writer.writerows(_told(plan, found))
    return file.getvalue()


def _told(plan: dict, found: dict[str, Record]) -> Iterator[tuple]:
    for key, job in plan.items():
        seed, record = getattr(job, "seed", None), found.get(job.id)
        parts = key if isinstance(key, tuple) else (key,)
        what = ", ".join(str(part) for part in parts[: -1 if parts[-1] == seed and len(parts) > 1 else None])
        score, rounds, seconds, spec = "", "", "", ""
        if record is not None:
            seconds, spec = record.json["seconds"], json.dumps(record.json.get("spec", record.json.get("measurement")))
            if record.json.get("series", {}).get("accuracy"):
                score, rounds = f"{record.accuracy[-1]:.2f}", record.rounds_done
        yield what, seed, job.id, score, rounds, seconds, spec


def written(value: Any) -> str:
    """A parameter as one types it after ``-p``."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
