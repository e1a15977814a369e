"""What a page shows as a table: the same bytes every time, numbers to the right, the best marked."""

import html
import re
from collections.abc import Iterable
from dataclasses import asdict

import numpy as np
import pandas as pd
from IPython.display import display
from numpy.typing import ArrayLike

from fedlib.workbook import HEADLINE, MIME
from fedlib.workbook.claims import MARKS, Claim
from fedlib.workbook.evidence import GRADES, PART
from fedlib.workbook.statistics import interval

NUMBER = re.compile(r"[-+−]?\d[\d,.]*%?( ± [\d.]+)?( \(.*\))?")
GAP = "–"


def show_table(
    frame: pd.DataFrame, title: str = "", empty: str = "nothing", fold: bool = False, best: Iterable[str] = ()
) -> None:
    """Display a frame whole, without its index, or the sentence ``empty``. What is missing is a dash.

    ``fold`` hides it behind its title; of the columns ``best`` the largest number is marked.
    """
    frame = frame.astype({c: object for c in frame if frame[c].isna().any()}).fillna(GAP)
    texts = frame.map(str)
    for column in best:
        numbers = texts[column].str.extract(r"^([-+−]?\d[\d.]*)")[0].astype(float)
        texts[column] = texts[column].where(numbers != numbers.max(), texts[column] + " *")
    if frame.empty:
        body, plain = f"<p>{html.escape(empty)}</p>", empty
    else:
        rows = [[_marked(html.escape(cell)) for cell in row] for row in texts.to_numpy()]
        body, plain = html_table(texts.columns, rows), texts.to_string(index=False)
    head = html.escape(title)
    if fold:
        body = f"<details><summary>{head or 'Numbers'}</summary>\n{body}\n</details>"
    elif title:
        body = f"<p><b>{head}</b></p>\n{body}"
    display({"text/html": body, "text/plain": f"{title}\n{plain}".strip()}, raw=True)


def _marked(cell: str) -> str:
    return f"<b>{cell.removesuffix(' *')}</b>" if cell.endswith(" *") else cell


def html_table(heads: Iterable, rows: Iterable) -> str:
    """Cells (already HTML) without ids or classes; columns of numbers to the right. A head may be (group, name)."""
    heads, rows = list(heads), [list(row) for row in rows]
    right = [_numeric([row[k] for row in rows]) for k in range(len(heads))]
    align = [f' style="text-align:{"right" if r else "left"}"' for r in right]
    lines = ["<table>"]
    if any(isinstance(head, tuple) for head in heads):
        groups = [head[0] if isinstance(head, tuple) else "" for head in heads]
        starts = [k for k, group in enumerate(groups) if k == 0 or group != groups[k - 1]]
        spans = [(groups[k], end - k) for k, end in zip(starts, [*starts[1:], len(groups)], strict=True)]
        top = "".join(f'<th colspan="{n}" style="text-align:center">{html.escape(group)}</th>' for group, n in spans)
        lines.append(f"<tr>{top}</tr>")
        heads = [head[1] if isinstance(head, tuple) else head for head in heads]
    names = [f"<th{a}>{html.escape(str(head))}</th>" for head, a in zip(heads, align, strict=True)]
    lines.append(f"<tr>{''.join(names)}</tr>")
    lines += ["<tr>" + "".join(f"<td{a}>{c}</td>" for c, a in zip(row, align, strict=True)) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def _numeric(cells: list[str]) -> bool:
    plain = [re.sub("<.*?>", "", cell) for cell in cells]
    return any(c != GAP for c in plain) and all(c in (GAP, "") or NUMBER.fullmatch(c) for c in plain)


def summary(scores: pd.DataFrame, digits: int = 1, limits: tuple[float, float] | None = None) -> pd.DataFrame:
    """Mean ± half-width of the 95% t-interval over seeds; "–" where no run has a value (a target never reached).

    Where that would go beyond ``limits``, such as (0, 100) for accuracies, the lowest and highest seed are shown.
    """
    groups = [n for n in scores.index.names if n != "seed"]
    return scores.groupby(groups, sort=False).agg(lambda values: mean_text(values, digits, limits))


def mean_text(values: ArrayLike, digits: int = 1, limits: tuple[float, float] | None = None) -> str:
    """Such as ``84.1 ± 0.6``, ``56.5 (12.0 to 80.1)`` or ``84.1 (in 2 of 3)`` where a run has no value."""
    values = np.asarray(values, float)
    reached = values[~np.isnan(values)]
    if not len(reached):
        return GAP
    mean, low, high = interval(reached)
    text = f"{mean:.{digits}f}"
    if limits and (low < limits[0] or high > limits[1]):
        text += f" ({reached.min():.{digits}f} to {reached.max():.{digits}f})"
    elif len(reached) > 1:
        text += f" ± {mean - low:.{digits}f}"
    return text if len(reached) == len(values) else f"{text} (in {len(reached)} of {len(values)})"


def at(alpha: float | str) -> str:
    """A column's partition: its alpha, or the name of another."""
    return alpha if isinstance(alpha, str) else f"alpha {alpha:g}"


# Claims.


def show_claims(claims: list[Claim], scale: str, headline: str) -> None:
    """Display the claims as data (for the scoreboard), HTML and text, with the line that heads the page."""
    data = []
    for claim in claims:
        paper, exhibit, _ = claim.id.split(".")
        data.append({"paper": paper, "exhibit": exhibit, "scale": scale} | asdict(claim))
    shown = {"text/html": claims_html(claims), "text/plain": claims_plain(claims)} if claims else {"text/plain": ""}
    display({MIME: data, HEADLINE: headline, **shown}, raw=True)


def effect_text(claim: Claim) -> str:
    """Effect, interval and unit."""
    if claim.effect is None:
        return GAP
    bounds = f" [{claim.low:+.2f}, {claim.high:+.2f}]" if claim.low is not None else ""
    return f"{claim.effect:+.2f}{bounds} {claim.unit}".strip()


def verdict_text(claim: Claim) -> str:
    """Mark, verdict and what it stands on."""
    return f"{MARKS[claim.verdict]} {claim.verdict}" + (f" ({claim.stands_on})" if claim.grade else "")


def remarks(claim: Claim) -> str:
    """All else that a reader must know, in one line."""
    said = [claim.count, *claim.remarks]
    if claim.detectable is not None:
        said.append(f"an effect of {claim.detectable:.2f} would have shown")
    for other in claim.beside:
        bounds = f" [{other['low']:+.2f}, {other['high']:+.2f}]" if other["low"] is not None else ""
        said.append(f"{other['grade']}: {other['verdict']}, {other['effect']:+.2f}{bounds}")
    if claim.uninformative:
        said.append(f"left out, hardly above chance: {'; '.join(claim.uninformative)}")
    return "; ".join(filter(None, said))


def reported_text(claim: Claim) -> str:
    return GAP if claim.reported is None else f"{claim.reported:+.2f}"


def claims_html(claims: list[Claim]) -> str:
    """The claims as a reader sees them."""
    rows = []
    for c in claims:
        whose = "" if c.whose == "paper" else " <i>(our own question)</i>"
        cells = (c.sentence, verdict_text(c), effect_text(c), reported_text(c), remarks(c))
        sentence, *rest = map(html.escape, cells)
        rows.append((f"<b>{c.number}</b>", f"{sentence}{whose}", *rest))
    heads = ["claim", "", "verdict", "effect, 95% interval", "reported", "remarks"]
    kept = [k for k in range(len(heads)) if k not in (4, 5) or any(row[k] not in (GAP, "") for row in rows)]
    return html_table([heads[k] for k in kept], [[row[k] for k in kept] for row in rows])


def claims_plain(claims: list[Claim]) -> str:
    lines = []
    for c in claims:
        lines.append(f"{c.id}  {verdict_text(c)}: {c.sentence}")
        seeds = ", ".join(map(str, c.seeds)) or GAP
        more = f" ({text})" if (text := remarks(c)) else ""
        lines.append(f"    effect {effect_text(c)}, reported {reported_text(c)}, seeds {seeds}{more}")
    return "\n".join(lines)


def counted(claims: list[Claim]) -> str:
    """Such as ``2 agree (stand-in), 1 open (own, 60 of 200 rounds)``, the best evidence first."""
    plural = {"agrees": "agree", "disagrees": "disagree", "holds so far": "hold so far", "matches": "match"}
    plural |= {"does not hold so far": "do not hold so far", "differs": "differ"}
    found: dict = {}
    for c in sorted(claims, key=lambda c: GRADES.index(c.grade) if c.grade else len(GRADES)):
        found.setdefault(c.grade or "", {}).setdefault(c.verdict, []).append(c)
    said = []
    for grade, verdicts in found.items():
        words = ", ".join(f"{len(v)} {plural.get(w, w) if len(v) > 1 else w}" for w, v in verdicts.items())
        first = next(iter(verdicts.values()))[0]
        said.append(f"{words} ({first.stands_on if grade == PART else grade})" if grade else words)
    return "; ".join(said)
