"""Pictures as SVG in the page: they follow its colours, need no script, and every point is a link."""

from html import escape

import numpy as np

from fedlib.workbook.site.parts import CLASSES, EVIDENCE, exhibit, grade, number, ours, place, theirs, verdict

SIZE, EDGE = 260, 34  # of a panel and its margin
WIDE, ROW, LEFT = 640, 22, 150  # of a forest plot


def marker(x: float, y: float, kind: str, r: float = 4.5) -> str:
    """A circle for the paper's own setting, a diamond for its first rounds, a square, a triangle for less."""
    if kind == "own":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    shapes = {
        "part": [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
        "reduced": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    }
    corners = shapes.get(kind, [(0, -1.1), (1.1, 0.9), (-1.1, 0.9)])
    return f'<polygon points="{" ".join(f"{x + r * a:.1f},{y + r * b:.1f}" for a, b in corners)}"/>'


def comparable(claims: list[dict]) -> list[dict]:
    """The papers' claims with an effect in points of accuracy, theirs and ours."""
    return [
        c for c in claims
        if c["whose"] == "paper" and c["unit"] == "points" and None not in (c["reported"], c["effect"])
    ]  # fmt: skip


def against_reported(title: str, claims: list[dict]) -> str:
    """Reported effect (across) against ours (up) with intervals, the diagonal and the two zero lines."""
    values = [max(abs(c["reported"]), abs(c["effect"])) for c in claims]
    limit = max(1.0, float(np.quantile(values, 0.9)) * 1.15) if values else 1.0
    scale = (SIZE / 2 - EDGE) / limit
    put = lambda v: max(-limit, min(limit, v)) * scale  # noqa: E731
    low, high, middle = EDGE, SIZE - EDGE, SIZE / 2
    lines = [
        f'<svg class="drawn panel" viewBox="0 0 {SIZE} {SIZE}" role="group" aria-label="{escape(title)}: reported against ours">',
        f'<text class="title" x="{middle}" y="16">{escape(title)}</text>',
        f'<rect class="frame" x="{low}" y="{low}" width="{high - low}" height="{high - low}"/>',
        f'<path class="zero" d="M{low} {middle}H{high}M{middle} {low}V{high}"/>',
        f'<path class="diagonal" d="M{low} {high}L{high} {low}"/>',
        f'<text x="{middle}" y="{SIZE - 4}">reported, points</text>',
        f'<text transform="translate(11 {middle}) rotate(-90)">ours, points</text>',
    ]
    for v in (-limit, 0, limit):
        at = f"{v:+.0f}" if abs(v) >= 10 else f"{v:+.1f}" if v else "0"
        lines.append(f'<text class="tick" x="{middle + v * scale:.1f}" y="{high + 13}">{at}</text>')
        lines.append(f'<text class="tick end" x="{low - 3}" y="{middle - v * scale + 3:.1f}">{at}</text>')
    for c in sorted(claims, key=lambda c: -list(CLASSES).index(c["grade"])):  # the best evidence on top
        kind, x, y = CLASSES[c["grade"]], middle + put(c["reported"]), middle - put(c["effect"])
        far = " far" * (max(abs(c["reported"]), abs(c["effect"])) > limit)
        told = (
            f"{exhibit(c)} {number(c)}: {c['sentence']} Reported {theirs(c)}, ours {ours(c)}: {verdict(c)}, {grade(c)}"
        )
        bar = ""
        if c["low"] is not None:
            bar = f'<path d="M{x:.1f} {middle - put(c["low"]):.1f}V{middle - put(c["high"]):.1f}"/>'
        lines.append(
            f'<a class="{kind}{far}" href="{place(c)}"><title>{escape(told)}</title>{bar}{marker(x, y, kind)}</a>'
        )
    return "\n".join([*lines, "</svg>"])


def legend() -> str:
    """What markers and colours mean."""
    words = {kind: word for kind, word in EVIDENCE.items() if kind != "none"}
    drawn = [
        f'<span><svg class="drawn key" viewBox="0 0 14 14" aria-hidden="true"><g class="{kind}">{marker(7, 7, kind)}</g></svg> {word}</span>'
        for kind, word in words.items()
    ]
    return f'<p class="legend">{"".join(drawn)}</p>'


def interval(claim: dict) -> str:
    """A small picture: zero, our effect with its interval, and the paper's as a tick."""
    found = [claim[k] for k in ("effect", "low", "high", "reported") if claim[k] is not None]
    if claim["effect"] is None or not (limit := max(map(abs, found))):
        return ""
    width, height = 96, 16
    at = lambda v: f"{width / 2 + v / limit * (width / 2 - 5):.1f}"  # noqa: E731
    y = height / 2
    parts = [f'<path class="zero" d="M{width / 2} 0V{height}"/>']
    if claim["reported"] is not None:
        parts.append(f'<path class="theirs" d="M{at(claim["reported"])} 1V{height - 1}"/>')
    if claim["low"] is not None:
        parts.append(f'<path class="bar" d="M{at(claim["low"])} {y}H{at(claim["high"])}"/>')
    kind = CLASSES[claim["grade"]]
    parts.append(f'<g class="{kind}">{marker(float(at(claim["effect"])), y, kind, 3.5)}</g>')
    return f'<svg class="drawn spark" viewBox="0 0 {width} {height}" aria-hidden="true">{"".join(parts)}</svg>'


def forest(claims: list[dict], up: str = "") -> str:
    """Effects in points with intervals, one line each, the paper's as a tick; far values are clipped."""
    bounds = [abs(v) for c in claims for v in (c["effect"], c["reported"], c["low"], c["high"]) if v is not None]
    limit = max(1.0, float(np.quantile(bounds, 0.85)) * 1.1)
    middle, scale = (LEFT + WIDE - 10) / 2, (WIDE - LEFT - 20) / 2 / limit
    at = lambda v: middle + max(-limit, min(limit, v)) * scale  # noqa: E731
    tall = ROW * len(claims) + 40
    lines = [
        f'<svg class="drawn forest" viewBox="0 0 {WIDE} {tall}" role="group" aria-label="Effects with 95% intervals, and as reported">',
        f'<path class="zero" d="M{middle} 4V{tall - 34}"/>',
    ]
    for v in (-limit, -limit / 2, 0, limit / 2, limit):
        lines.append(f'<text class="tick" x="{at(v):.1f}" y="{tall - 21}">{f"{v:+.1f}" if v else "0"}</text>')
    lines.append(
        f'<text class="tick" x="{middle}" y="{tall - 4}">points of accuracy, on the claimed side to the right</text>'
    )
    for k, c in enumerate(claims):
        y, kind = ROW * k + 14, CLASSES[c["grade"]]
        parts = [f'<text class="label" x="{LEFT - 8}" y="{y + 4}">{escape(exhibit(c))} {number(c)}</text>']
        if c["reported"] is not None:
            parts.append(f'<path class="theirs" d="M{at(c["reported"]):.1f} {y - 7}v14"/>')
        if c["low"] is not None:
            parts.append(f'<path class="bar" d="M{at(c["low"]):.1f} {y}H{at(c["high"]):.1f}"/>')
        told = escape(f"{c['sentence']} {verdict(c)}, {grade(c)}")
        drawn = "".join(parts) + marker(at(c["effect"]), y, kind)
        lines.append(f'<a class="{kind}" href="{place(c, up)}"><title>{told}</title>{drawn}</a>')
    return "\n".join([*lines, "</svg>"])
