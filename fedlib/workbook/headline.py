"""What a page says on its first screen, and in what it differs from the paper."""

from typing import TYPE_CHECKING

import pandas as pd

from fedlib.core.spec import RunSpec
from fedlib.runs.partial import span
from fedlib.workbook import settings, tables
from fedlib.workbook.claims import Claim
from fedlib.workbook.evidence import chance, fields_of

if TYPE_CHECKING:
    from fedlib.workbook.page import Page


def headline(page: "Page", claims: list[Claim]) -> str:
    """Verdicts, what they stand on, how far the base method has come here and in the paper, seeds and rounds."""
    said = []
    for whose, what in (("paper", ""), ("ours", "our own questions: ")):
        if mine := [c for c in claims if c.whose == whose]:
            said.append(what + tables.counted(mine))
    runs = {key: job for key, job in page.jobs.items() if isinstance(job, RunSpec)}
    said.append(_levels(page, runs))
    if "seed" in page.names:
        said.append(f"seeds {', '.join(map(str, sorted({key[page.names.index('seed')] for key in page.jobs})))}")
    if runs:
        grades = [page.evidence.grades[key] for key in runs]
        here, there = {g.done for g in grades}, {g.due for g in grades} - {0}
        rounds = span(here) if here == there or not there else f"{span(here)} of {span(there)}"
        said.append(f"{rounds} round{'s' * (rounds != '1')}")
    return " · ".join(filter(None, said))


def _levels(page: "Page", runs: dict) -> str:
    """The base method's accuracy here, in the paper and by guessing."""
    base = [k for k in runs if "method" not in page.names or k[page.names.index("method")] == page.base]
    trained = {k: page.records[k] for k in base if page.records[k].json.get("series", {}).get("accuracy")}
    if not trained:
        return ""
    scores = page.scores[page.metric].loc[list(trained)]
    cells = [name for name in page.names if name != "seed"]
    here = scores.groupby(cells).mean().dropna() if cells else scores
    theirs = [value for key, value in page.reported.items() if key[-1] == page.base]
    guess = sorted({round(chance(runs[k]), 1) for k in trained})
    return ", ".join([
        f"{page.label(page.base)} {span(here, '.1f', 0.05)}% here",
        *([f"{span(theirs, '.1f', 0.05)}% in the paper"] if theirs else []),
        f"chance {' or '.join(f'{g:g}' for g in guess)}%",
    ])  # fmt: skip


def differences(page: "Page") -> pd.DataFrame:
    """Every field in which a run differs from the paper's own of its key, or else the nearest, once for every panel."""
    unstated, rows = settings.unstated(page.paper, page.exhibit), {}
    for key, grade in page.evidence.grades.items():
        own = page.paper_grid.get(key, grade.own)
        here, there = fields_of(page.jobs[key]), fields_of(own) if own else {}
        where = dict(zip(page.names, key, strict=True))
        panel = page.title(where.get("data") or where.get("panel") or str(key[0]))
        for name in here:
            if name in there and here[name] != there[name] and name not in ("seed", "probes", "eval_every"):
                paper = there[name] if there[name] is not None else "all" if "subset" in name else "–"
                paper = f"not stated ({paper} at paper scale)" if name in unstated else paper
                rows[panel, name, str(paper), str(here[name])] = None
    return pd.DataFrame(list(rows), columns=["panel", "setting", "paper", "here"])
