"""Small pieces of HTML that several pages share."""

import re
from functools import cache
from html import escape

import yaml

from fedlib.core.paths import ROOT
from fedlib.workbook.claims import MARKS, OPEN, Claim
from fedlib.workbook.settings import names
from fedlib.workbook.tables import GAP, effect_text, reported_text

CLASSES = {"own": "own", "own, r of T rounds": "part", "reduced": "reduced", "stand-in": "standin", None: "none"}
EVIDENCE = {
    "own": "the paper's own setting",
    "part": "its first rounds",
    "reduced": "reduced (less data, fewer clients)",
    "standin": "stand-in (other data or network)",
    "none": "no evidence",
}
SIDES = {"✓": "for", "✗": "against", "?": "open", "–": "none"}


@cache
def facts() -> dict[str, dict]:
    """Title, authors, venue, year and links of every paper."""
    return yaml.safe_load((ROOT / "docs" / "papers.yaml").read_text(encoding="utf-8"))


def name(paper: str) -> str:
    return names()["papers"].get(paper, paper)


def number(claim: dict) -> str:
    return claim["id"].rpartition(".")[2]


def exhibit(claim: dict) -> str:
    """Such as ``Figure 2``."""
    return re.sub(r"^(figure|table)(\d+)$", lambda m: f"{m[1].title()} {m[2]}", claim["exhibit"]).replace("_", " ")


def anchor(claim: dict) -> str:
    """The place of a claim on its page."""
    return number(claim).lower()


def place(claim: dict, up: str = "") -> str:
    """The address of a claim on its page."""
    return f"{up}notebooks/{claim['notebook']}.html#{anchor(claim)}"


def verdict(claim: dict) -> str:
    """What it counts as: a decision that does not survive the correction is open."""
    return OPEN if claim["dagger"] else claim["verdict"]


def side(claim: dict) -> str:
    """For, against, open or none."""
    return SIDES[MARKS[verdict(claim)]]


def grade(claim: dict) -> str:
    """What it stands on, as a word for a reader."""
    return re.sub("^own", "own setting", Claim.of(claim).stands_on or "none")


def evidence(claim: dict) -> str:
    """What it stands on, in full."""
    return EVIDENCE[CLASSES[claim["grade"]]]


def badge(claim: dict) -> str:
    """Verdict and evidence."""
    dagger = '<abbr title="does not survive the correction for many claims: counted as open">†</abbr>' * claim["dagger"]
    verdict_ = f'<span class="verdict {side(claim)}">{MARKS[claim["verdict"]]} {claim["verdict"]}{dagger}</span>'
    return f'{verdict_} <span class="grade {CLASSES[claim["grade"]]}">{escape(grade(claim))}</span>'


def ours(claim: dict) -> str:
    return escape(effect_text(Claim.of(claim)))


def theirs(claim: dict) -> str:
    text = reported_text(Claim.of(claim))
    return text if text == GAP else escape(f"{text} {claim['unit']}".strip())


def squares(claims: list[dict], up: str = "") -> str:
    """One small square for every claim, coloured by verdict, that leads to it."""
    found = []
    for c in claims:
        told = escape(f"{number(c)}, {verdict(c)} ({grade(c)}): {c['sentence']}")
        found.append(f'<a class="square {side(c)}" href="{place(c, up)}" title="{told}" aria-label="{told}"></a>')
    return f'<span class="squares">{"".join(found)}</span>'
