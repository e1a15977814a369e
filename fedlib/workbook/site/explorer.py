"""The page of all claims: a plain table that a small script filters and sorts; the same as CSV and JSON."""

import csv
import io
import json
from html import escape

from fedlib.workbook import report
from fedlib.workbook.claims import Claim
from fedlib.workbook.site.charts import interval, legend
from fedlib.workbook.site.parts import (
    CLASSES,
    badge,
    evidence,
    exhibit,
    grade,
    name,
    number,
    ours,
    place,
    theirs,
    verdict,
)
from fedlib.workbook.tables import remarks

HEADS = ("paper", "claim", "sentence", "verdict and evidence", "paper says", "we got, 95% interval", "seeds")
WHOSE = {"paper": "the papers' claims", "ours": "our own questions"}
NUMBERS = (4, 5, 6)  # columns that sort as numbers
FIELDS = (
    "id", "notebook", "whose", "sentence", "where", "verdict", "dagger", "grade", "rounds", "unit", "reported", "effect",
    "low", "high", "p", "adjusted_p", "detectable", "count", "seeds", "remarks",
)  # fmt: skip


def explorer(claims: list[dict]) -> str:
    """Markdown with the table in it, the best evidence first."""
    best = sorted(claims, key=lambda c: list(CLASSES).index(c["grade"]))
    heads = "".join(f"<th{' data-number' * (k in NUMBERS)}>{head}</th>" for k, head in enumerate(HEADS))
    lines = [
        "---", "hide-toc: true", "---", "", "# Every claim", "",
        "What the papers say and what our runs say of it, with 95% intervals over seeds; a positive effect is on the claimed",
        "side. *Reproduced* and *not reproduced* are said of a paper's own setting, run to its end; with less a claim *agrees*,",
        f"*disagrees* or stays *open* ([how verdicts are made](/docs/verdicts.md)). {report.FEWER} Sort by a column's head.", "",
        '<div class="filters" hidden></div>',
        '<p class="downloads"><span id="shown"></span> <a href="claims.csv" download>CSV</a> <a href="claims.json" download>JSON</a></p>',
        legend(),
        '<div class="explorer claims"><table>', f"<thead><tr>{heads}</tr></thead>", "<tbody>", *map(row, best), "</tbody>",
        "</table></div>", "",
    ]  # fmt: skip
    return "\n".join(lines)


def row(c: dict) -> str:
    """A claim: what it says, the verdict, the paper's number and ours."""
    facets = {"paper": name(c["paper"]), "verdict": verdict(c), "evidence": evidence(c), "whose": WHOSE[c["whose"]]}
    data = "".join(f' data-{k}="{escape(v)}"' for k, v in facets.items())
    link = f'<a href="{place(c, "../")}">{escape(exhibit(c))} {number(c)}</a>'
    more = f"<small>{escape(text)}</small>" if (text := remarks(Claim.of(c))) else ""
    seeds = ", ".join(map(str, c["seeds"])) or "none"
    own = " <i>(our own question)</i>" if c["whose"] == "ours" else ""
    runs = f'<a href="../notebooks/{c["notebook"]}.html#records" title="seeds {seeds}: their records">{len(c["seeds"])}</a>'
    value = lambda v: "" if v is None else f' data-value="{v}"'  # noqa: E731
    cells = [
        f"<td>{name(c['paper'])}</td>", f"<td>{link}</td>", f"<td>{escape(c['sentence'])}{own} {more}</td>",
        f'<td data-value="{verdict(c)} {grade(c)}">{badge(c)}</td>', f"<td{value(c['reported'])}>{theirs(c)}</td>",
        f"<td{value(c['effect'])}>{interval(c)} {ours(c)}</td>",
        f'<td data-value="{len(c["seeds"])}">{runs}</td>',
    ]  # fmt: skip
    return f'<tr id="{c["id"]}"{data}>{"".join(cells)}</tr>'


def as_json(claims: list[dict]) -> str:
    return json.dumps(claims, indent=1, ensure_ascii=False) + "\n"


def as_csv(claims: list[dict]) -> str:
    """One line for each claim; lists are joined by semicolons."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(FIELDS)
    for c in claims:
        writer.writerow("; ".join(map(str, c[f])) if isinstance(c[f], list) else c[f] for f in FIELDS)
    return file.getvalue()
