"""The scoreboard: every claim of every executed notebook, gathered into one table."""

from collections.abc import Iterable
from pathlib import Path

from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.workbook.claims import MARKS, Claim, cells
from fedlib.workbook.notebooks import Notebook, find

BEGIN, END = "<!-- scoreboard: written by `fedlib report --update` -->", "<!-- end of the scoreboard -->"
TITLES = {"fedlws": "FedLWS", "fedawa": "FedAWA", "fedlap": "FedLap", "fedlaw": "FedLAW", "feddw": "FedDW"}


def gather(notebooks: Iterable[Notebook]) -> list[dict]:
    """All claims with what our runs say of them, in the order of the notebooks."""
    return [{"notebook": nb.name, **claim} for nb in notebooks for claim in nb.claims]


def counts(claims: list[dict]) -> dict[str, dict[str, int]]:
    """How many claims of each paper have which verdict, and of all of them."""
    papers = list(dict.fromkeys(c["paper"] for c in claims))
    table = {p: [c["verdict"] for c in claims if c["paper"] == p] for p in papers}
    table["all"] = [c["verdict"] for c in claims]
    return {p: {v: found.count(v) for v in MARKS} for p, found in table.items()}


def sentence(claims: list[dict]) -> str:
    """Such as ``41 claims: 12 reproduced, 20 not reproduced, 9 undecided``."""
    found = {v: n for v, n in counts(claims)["all"].items() if n}
    return f"{len(claims)} claims: {', '.join(f'{n} {v}' for v, n in found.items())}"


def summary(claims: list[dict]) -> str:
    """How many claims of each paper have which verdict, as a Markdown table."""
    lines = ["| paper | " + " | ".join(MARKS) + " |", "|---|" + "--:|" * len(MARKS)]
    for paper, found in counts(claims).items():
        lines.append(f"| {TITLES.get(paper, paper)} | " + " | ".join(map(str, found.values())) + " |")
    return "\n".join(lines)


def every(claims: list[dict]) -> str:
    """Every claim with its numbers, under a heading for each paper, for the page papers/claims.md."""
    heads = ("notebook", "claim", "verdict", "effect", "95% interval", "seeds", "remarks")
    lines = [f"{sentence(claims)}."]
    for paper in dict.fromkeys(c["paper"] for c in claims):
        lines += ["", f"## {TITLES.get(paper, paper.capitalize())}", ""]
        lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        for c in (c for c in claims if c["paper"] == paper):
            claim = Claim.of(c)
            link = f"[{c['exhibit']} {claim.number}](../notebooks/{c['notebook']}.ipynb)"
            row = (link, claim.text, *cells(claim))
            lines.append("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |")
    return "\n".join(lines)


def tables_first(notebooks: Iterable[Notebook]) -> list[Notebook]:
    return sorted(notebooks, key=lambda nb: (nb.path.stem[:5] != "table", nb.path.stem))


def guide(notebooks: Iterable[Notebook]) -> str:
    """A paper's notebooks, tables before figures, and which of its claims have which verdict."""
    lines = ["| Exhibit | " + " | ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items()) + " |"]
    lines.append("|---" * (len(MARKS) + 1) + "|")
    for nb in tables_first(notebooks):
        exhibit, _, title = nb.title.partition(", ")[2].partition(": ")
        found: dict[str, list[str]] = {verdict: [] for verdict in MARKS}
        for c in nb.claims:  # of another exhibit: with its name, such as figure4.C1
            _, where, number = c["id"].split(".")
            found[c["verdict"]].append(number if where == nb.claims[0]["exhibit"] else f"{where}.{number}")
        link = f"[{exhibit}](../../notebooks/{nb.name}.ipynb): {title}"
        lines.append(f"| {link} | " + " | ".join(", ".join(ids) for ids in found.values()) + " |")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """What belongs between the markers of the README, of the page of all claims and of every paper's reading guide."""
    notebooks = find()
    claims = gather(notebooks)
    boards = {ROOT / "README.md": summary(claims), ROOT / "papers" / "claims.md": every(claims)}
    for page in sorted(ROOT.glob("papers/*/README.md")):
        if mine := [nb for nb in notebooks if nb.paper == page.parent.name]:
            boards[page] = guide(mine)
    return boards


def put(board: str, path: Path) -> None:
    """Write ``board`` between the markers of a page."""
    path.write_text(replaced(path.read_text(encoding="utf-8"), board), encoding="utf-8")


def replaced(page: str, board: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise FedlibError(f"The page has no place for the scoreboard: put the lines {BEGIN} and {END} there.")
    return f"{before}{BEGIN}\n{board}\n{END}{after}"
