"""The first picture of the README, one claim of each paper (docs/papers.yaml): reported and found, as SVG."""

import textwrap
from collections.abc import Callable
from html import escape

import yaml

from fedlib.core.paths import ROOT
from fedlib.workbook.claims import MARKS, OPEN, Claim
from fedlib.workbook.settings import names
from fedlib.workbook.tables import effect_text

PATH = ROOT / "docs" / "headlines.svg"
WIDTH, ROW, TOP, LEFT, RIGHT = 900, 66, 40, 330, 640  # the axis runs from LEFT to RIGHT
COLOURS = {"✓": "#1b7837", "✗": "#b2182b", "?": "#555", "–": "#999"}


def picture(claims: list[dict], link: Callable[[dict], str] | None = None) -> str:
    """A line for each paper: its claim, an open diamond as reported, a dot with its interval as found, the verdict.

    The dot is full at the paper's own setting (or its first rounds) and hollow below.
    ``link`` gives each line its address.
    """
    facts = yaml.safe_load((ROOT / "docs" / "papers.yaml").read_text(encoding="utf-8"))
    chosen = [c | {"of": paper} for paper, fact in facts.items() for c in claims if c["id"] == fact["claim"]]
    values = [c[k] for c in chosen for k in ("effect", "low", "high", "reported") if c[k] is not None]
    limit = 1.08 * max(map(abs, values), default=1.0)
    at = lambda v: (LEFT + RIGHT) / 2 + v / limit * (RIGHT - LEFT) / 2  # noqa: E731
    tall = TOP + ROW * len(chosen) + 34
    role = "group" if link else "img"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" role="{role}" font-family="sans-serif" '
        'font-size="13" aria-label="One claim of each paper: effect as reported and as found, with what it stands on">',
        f'<rect width="{WIDTH}" height="{tall}" fill="white"/>',
        _text(12, 20, "what the paper claims", "#555"),
        _text((LEFT + RIGHT) / 2, 20, "◇ reported   ● found, 95% interval", "#555", "middle"),
        _text(RIGHT + 24, 20, "verdict, and what it stands on", "#555"),
        f'<path d="M{at(0)} {TOP - 8}V{tall - 30}" stroke="#333"/>',
    ]
    step = next(s for s in (0.5, 1, 2, 5, 10, 20, 50) if limit / s < 3.5)
    for n in range(-int(limit / step), int(limit / step) + 1):
        lines.append(_text(at(n * step), tall - 14, f"{n * step:+g}" if n else "0 points", "#555", "middle"))
    for k, c in enumerate(chosen):
        y, claim = TOP + ROW * k + ROW / 2 - 6, Claim.of(c)
        verdict = OPEN if c["dagger"] else c["verdict"]
        colour = COLOURS[MARKS[verdict]]
        lines += [f'<path d="M12 {y + ROW / 2 + 3}H{WIDTH - 12}" stroke="#ddd"/>'] if k < len(chosen) - 1 else []
        lines += [f'<a href="{escape(link(c))}">'] if link else []
        lines.append(_text(12, y - 14, names()["papers"][c["of"]], "#111", weight="bold"))
        for line, part in enumerate(textwrap.wrap(c["sentence"], 48, max_lines=2, placeholder=" …")):
            lines.append(_text(12, y + 4 + 16 * line, part, "#333"))
        if c["reported"] is not None:
            x = at(c["reported"])
            lines.append(f'<path d="M{x} {y - 8}l7 8l-7 8l-7 -8z" fill="white" stroke="#b35806" stroke-width="2"/>')
        if c["low"] is not None:
            lines.append(f'<path d="M{at(c["low"])} {y}H{at(c["high"])}" stroke="{colour}" stroke-width="3"/>')
        if c["effect"] is not None:
            fill = colour if (c["grade"] or "").startswith("own") else "white"
            lines.append(
                f'<circle cx="{at(c["effect"])}" cy="{y}" r="6" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
            )
        stands = claim.stands_on.replace("own", "the paper's own setting", 1) if claim.grade else ""
        lines.append(_text(RIGHT + 24, y - 6, f"{MARKS[verdict]} {verdict}", colour, weight="bold"))
        lines.append(_text(RIGHT + 24, y + 10, stands, "#333"))
        lines.append(_text(RIGHT + 24, y + 26, effect_text(claim), "#555"))
        lines += ["</a>"] if link else []
    return "\n".join([*lines, "</svg>", ""])


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", weight: str = "normal") -> str:
    look = f'fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'
