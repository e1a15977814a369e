"""The methods: one table of all, and a page for each with its code, cost, uses and claims."""

import dataclasses
import inspect
import json
import re
import statistics
from collections.abc import Iterable
from html import escape
from pathlib import Path

import yaml

from fedlib.algorithms import ALGORITHMS, Local, Server, Weighting
from fedlib.core.paths import ROOT
from fedlib.core.registry import parse
from fedlib.runs.record import Record
from fedlib.workbook.notebooks import Notebook
from fedlib.workbook.settings import names
from fedlib.workbook.site.charts import forest, legend
from fedlib.workbook.site.parts import badge, exhibit, name, number, ours, place

COMMENT = re.compile(r"^    (\w+): [^\n#]*# ([^\n]*)$", re.MULTILINE)  # what a class says beside a parameter
KINDS = {"on the clients": Local, "how much each client counts": Weighting, "on the server": Server}


def label(method: str) -> str:
    return names()["methods"].get(method, [method])[0]


def acts(method: str) -> str:
    """Where it acts."""
    return ", ".join(word for word, kind in KINDS.items() if issubclass(ALGORITHMS.entries[method], kind))


def summary(method: str) -> str:
    """The first sentence of its docstring."""
    return (inspect.getdoc(ALGORITHMS.entries[method]) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "")


def source(method: str) -> str:
    """Name and citation, from the first line of its file."""
    return (inspect.getdoc(inspect.getmodule(ALGORITHMS.entries[method])) or "").partition("\n")[0]


def equation(method: str) -> list[str]:
    """What it computes, typeset."""
    found = yaml.safe_load((ROOT / "docs" / "equations.yaml").read_text(encoding="utf-8")).get(method)
    return ["$$", found.strip(), "$$", ""] if found else []


def mentions(method: str, claims: list[dict]) -> list[dict]:
    """The claims whose sentence names it."""
    word = re.compile(rf"(?<![\w-]){re.escape(label(method))}(?![\w-])")
    return [c for c in claims if word.search(c["sentence"])]


def index(used: dict, cost: dict, claims: list[dict]) -> str:
    """All methods in a table that sorts."""
    rows = []
    for method in sorted(ALGORITHMS.entries):
        ratio = cost.get(method, (None, 0))[0]
        cells = (
            f'<td><a href="{method}.html">{method}</a></td>', f"<td>{escape(label(method))}</td>",
            f"<td>{acts(method)}</td>", f"<td>{escape(summary(method))}</td>",
            f'<td data-value="{ratio or ""}">{f"{ratio:.2f}" if ratio else "–"}</td>',
            f"<td>{len(used.get(method, ()))}</td>", f"<td>{len(mentions(method, claims))}</td>",
        )  # fmt: skip
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = ("written", "name", "acts", "what it does", "cost × FedAvg", "pages", "claims")
    head = "".join(f"<th{' data-number' * (k > 3)}>{h}</th>" for k, h in enumerate(heads))
    lines = [
        "---", "hide-toc: true", "---", "", "# Methods", "",
        "Each is a part that acts in one place, and parts are joined with `+`. *Cost* is the time of a whole run over that",
        "of FedAvg with the same data, network, rounds and seed: the median over such pairs of records, with evaluation.",
        "Records come from a shared machine, so small differences mean nothing.", "",
        f'<div class="explorer methods"><table><thead><tr>{head}</tr></thead>', "<tbody>", *rows, "</tbody></table></div>",
    ]  # fmt: skip
    every = "\n".join(f"{method} <{method}>" for method in sorted(ALGORITHMS.entries))
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", every, "```", ""])


def method_page(method: str, used: dict, cost: dict, claims: list[dict]) -> str:
    """What it computes, its parameters, its code, what it costs, where it is used, and every claim about it."""
    cls = ALGORITHMS.entries[method]
    file = Path(inspect.getsourcefile(cls)).resolve().relative_to(ROOT).as_posix()
    lines = [
        f"# {method}" if label(method) == method else f"# {label(method)}: {method}", "",
        f'<p class="crumbs"><a href="../index.html">fedlib</a> › <a href="index.html">Methods</a> › {method}</p>', "",
        f"{source(method)} Acts {acts(method)}.", "", *equation(method), inspect.getdoc(cls) or "", "",
        f"Code: [{file}](/{file}). ",
    ]  # fmt: skip
    if method in cost:
        ratio, pairs = cost[method]
        lines[-1] += f"Cost: {ratio:.2f} × FedAvg ({pairs} pairs of runs)."
    if given := [f for f in dataclasses.fields(cls) if f.init] if dataclasses.is_dataclass(cls) else []:
        said = {m[1]: m[2] for m in COMMENT.finditer(inspect.getsource(cls))}
        lines += ["", "## Parameters", "", "| name | default | |", "|---|---|---|"]
        lines += [
            f"| `{f.name}` | `{f.default!r}` | {said.get(f.name, '').replace('|', chr(92) + '|')} |" for f in given
        ]
    code = inspect.getsource(cls).rstrip()
    lines += ["", "## Code", "", "```python", code, "```"]
    if about := mentions(method, claims):
        rows = [
            f'<tr><td><a href="{place(c, "../")}">{name(c["paper"])} {exhibit(c)} {number(c)}</a></td>'
            f"<td>{escape(c['sentence'])}</td><td>{badge(c)}</td><td>{ours(c)}</td></tr>"
            for c in about
        ]
        head = "<tr><th>claim</th><th>sentence</th><th>verdict</th><th>effect, 95% interval</th></tr>"
        drawn = [c for c in about if c["unit"] == "points" and c["effect"] is not None and "FedAvg" in c["sentence"]]
        if drawn:
            lines += ["", "## Beside FedAvg", "", forest(drawn, "../"), legend()]
        lines += ["", f"## Claims that name it: {len(about)}", "", f"<table>{head}{''.join(rows)}</table>"]
    if method in used:
        lines += ["", "## Used in", "", *(f"- [{nb.title}](/notebooks/{nb.name}.ipynb)" for nb in used[method])]
    return "\n".join(lines) + "\n"


def uses(plans: dict[Notebook, dict]) -> dict[str, list[Notebook]]:
    """The notebooks whose runs have an algorithm in them, by its name."""
    found: dict[str, list[Notebook]] = {}
    for nb, plan in plans.items():
        texts = {getattr(run, "algorithm", "") for run in plan.values()} - {""}
        for part in sorted({part for text in texts for part, _ in parse(text)}):
            found.setdefault(part, []).append(nb)
    return found


def costs(records: Iterable[Record]) -> dict[str, tuple[float, int]]:
    """Seconds of a run over those of the FedAvg run that differs in nothing else: (median, how many pairs)."""
    whole = [r for r in records if "spec" in r.json and r.status == "ok" and not r.probes]
    runs = [(r.spec.algorithm, _rest(r), r.json["seconds"]) for r in whole]
    base = {rest: seconds for algorithm, rest, seconds in runs if algorithm == "fedavg"}
    ratios: dict[str, list[float]] = {}
    for algorithm, rest, seconds in runs:
        names = {name for name, _ in parse(algorithm)} - {"fedavg"}
        if len(names) == 1 and base.get(rest):
            ratios.setdefault(names.pop(), []).append(seconds / base[rest])
    return {name: (statistics.median(found), len(found)) for name, found in ratios.items()}


def _rest(record: Record) -> str:
    """All that decides a run but its algorithm."""
    return json.dumps({k: v for k, v in record.json["spec"].items() if k != "algorithm"}, sort_keys=True)
