"""The scoreboard: every claim of every executed notebook, by paper, grade of evidence and verdict."""

from collections.abc import Callable, Iterable
from pathlib import Path

from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.workbook.claims import MARKS, NONE, OPEN, VERDICTS, Claim, adjusted
from fedlib.workbook.evidence import OWN, PART, REDUCED, STAND_IN
from fedlib.workbook.notebooks import Notebook, find
from fedlib.workbook.settings import names
from fedlib.workbook.tables import effect_text, remarks, reported_text, verdict_text

BEGIN, END = "<!-- scoreboard: written by `fedlib report --update` -->", "<!-- end of the scoreboard -->"
STANDS = {OWN: "the paper's own setting", PART: "its first rounds", (REDUCED, STAND_IN): "reduced or stand-in"}
READ = (
    "Positive effects are on the claimed side, with 95% intervals over seeds. *Reproduced* and *not reproduced* are "
    "said of a paper's own setting, run to its end; of its first rounds a claim *holds* or *does not hold so far*, "
    "with less it *agrees* or *disagrees*, and where the interval decides nothing it is *open*; the remarks then say "
    "how large an effect would have shown ([how verdicts are made](../docs/verdicts.md)). Each claim's notebook has "
    "the runs behind it and how our setting differs from the paper's."
)
FEWER = (
    "Within a paper and a grade of evidence, decisions that do not survive Benjamini–Hochberg at 5% carry a dagger (†) "
    "and are counted as open."
)


def gather(notebooks: Iterable[Notebook]) -> list[dict]:
    """All claims with what our runs say of them, in the order of the notebooks; p-values adjusted over all of them."""
    return adjusted([{"notebook": nb.name, **claim} for nb in notebooks for claim in nb.claims])


def counted(claims: Iterable[dict], corrected: bool = True) -> dict[str, int]:
    """How many claims have which verdict; ``corrected``: what does not survive the correction is open."""
    found = [OPEN if corrected and c["dagger"] else c["verdict"] for c in claims]
    return {v: found.count(v) for v in VERDICTS if v in found}


def _said(claims: list[dict], corrected: bool = True) -> str:
    return ", ".join(f"{n} {v}" for v, n in counted(claims, corrected).items()) or "–"


def sentence(claims: list[dict]) -> str:
    """Such as ``569 claims of the papers: 12 reproduced, … (without correction: …); 60 questions of our own: …``."""
    said = []
    for whose, what in (("paper", "claims of the papers"), ("ours", "questions of our own")):
        if mine := [c for c in claims if c["whose"] == whose]:
            plain = f" (without correction: {_said(mine, False)})" if any(c["dagger"] for c in mine) else ""
            said.append(f"{len(mine)} {what}: {_said(mine)}{plain}")
    return "; ".join(said) or "no claims"


def standing(claims: list[dict]) -> list[str]:
    """The verdicts by what they stand on: own setting, first rounds, less, and how many have no evidence."""
    groups = [[c for c in claims if c["grade"] and c["verdict"] != NONE and c["grade"] in kinds] for kinds in _kinds()]
    return [*map(_said, groups), str(sum(c["verdict"] == NONE for c in claims))]


def _kinds() -> list[tuple[str, ...]]:
    return [kind if isinstance(kind, tuple) else (kind,) for kind in STANDS]


def summary(claims: list[dict]) -> str:
    """The papers' claims by grade and verdict, then our own questions, as Markdown."""
    parts = []
    for whose, title in (("paper", "What the papers claim"), ("ours", "Our own questions")):
        mine = [c for c in claims if c["whose"] == whose]
        heads = (title, "claims", *STANDS.values(), "no evidence")
        lines = ["| " + " | ".join(heads) + " |", "|---|--:|---|---|---|--:|"]
        for paper in (p for p in names()["papers"] if any(c["paper"] == p for c in mine)):
            here = [c for c in mine if c["paper"] == paper]
            lines.append(f"| {names()['papers'][paper]} | {len(here)} | " + " | ".join(standing(here)) + " |")
        parts += ["\n".join(lines)] if mine else []
    return "\n\n".join([*parts, FEWER])


def every(claims: list[dict]) -> str:
    """Every claim with its numbers, under a heading for each paper, for the page papers/claims.md."""
    heads = ("notebook", "claim", "the paper", "verdict", "effect, 95% interval", "reported", "remarks")
    lines = [READ, "", f"{sentence(claims)}.", "", FEWER]
    for paper in dict.fromkeys(c["paper"] for c in claims):
        for whose, title in (("paper", ""), ("ours", ": our own questions")):
            mine = [c for c in claims if (c["paper"], c["whose"]) == (paper, whose)]
            if mine:
                lines += ["", f"## {names()['papers'].get(paper, paper)}{title}", ""]
                lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
            for c in mine:
                claim = Claim.of(c)
                link = f"[{c['exhibit']} {claim.number}](../notebooks/{c['notebook']}.ipynb)"
                verdict = verdict_text(claim) + ("†" if c["dagger"] else "")
                numbers = effect_text(claim), reported_text(claim), remarks(claim)
                row = (link, claim.sentence, claim.where, verdict, *numbers)
                lines.append("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |")
    return "\n".join(lines)


def tables_first(notebooks: Iterable[Notebook]) -> list[Notebook]:
    """Tables, then figures, then whatever else a paper has, each by name."""
    kinds = ("table", "figure")
    order = lambda stem: next((n for n, kind in enumerate(kinds) if stem.startswith(kind)), len(kinds))  # noqa: E731
    return sorted(notebooks, key=lambda nb: (order(nb.path.stem), nb.path.stem))


def marked(claim: dict) -> str:
    """Such as ``C1 ✗``."""
    return claim["id"].rpartition(".")[2] + f" {MARKS[claim['verdict']]}" + "†" * claim["dagger"]


def guide(notebooks: Iterable[Notebook], claims: list[dict], mark: Callable[[dict], str] = marked) -> str:
    """A paper's notebooks, tables before figures, and the verdicts on its claims by what they stand on."""
    lines = ["| Exhibit | " + " | ".join(STANDS.values()) + " | no evidence | our own questions |", "|---" * 6 + "|"]
    for nb in tables_first(notebooks):
        exhibit, colon, title = nb.heading.partition(": ")
        mine = [c for c in claims if c["notebook"] == nb.name]
        theirs = [c for c in mine if c["whose"] == "paper"]
        groups = [[c for c in theirs if c["verdict"] != NONE and c["grade"] in kinds] for kinds in _kinds()]
        groups += [[c for c in theirs if c["verdict"] == NONE], [c for c in mine if c["whose"] == "ours"]]
        cells = [", ".join(map(mark, group)) for group in groups]
        lines.append(f"| [{exhibit}](../../notebooks/{nb.name}.ipynb){colon}{title} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"✓ for the claim, ✗ against it, ? open, – no evidence. {FEWER}"])


def pages() -> dict[Path, str]:
    """What belongs between the markers of the README, of the page of all claims and of every paper's reading guide."""
    notebooks = find()
    claims = gather(notebooks)
    boards = {ROOT / "README.md": summary(claims), ROOT / "papers" / "claims.md": every(claims)}
    for page in sorted(ROOT.glob("papers/*/README.md")):
        if mine := [nb for nb in notebooks if nb.paper == page.parent.name]:
            boards[page] = guide(mine, claims)
    return boards


def put(board: str, path: Path) -> None:
    """Write ``board`` between the markers of a page."""
    path.write_text(replaced(path.read_text(encoding="utf-8"), board), encoding="utf-8")


def replaced(page: str, board: str) -> str:
    """The page with ``board`` between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise FedlibError(f"The page has no place for the scoreboard: put the lines {BEGIN} and {END} there.")
    return f"{before}{BEGIN}\n{board}\n{END}{after}"
