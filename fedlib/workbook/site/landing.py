"""The landing page and the dashboard of each paper."""

import re
from html import escape

from fedlib.workbook import headlines, report
from fedlib.workbook.claims import NONE
from fedlib.workbook.notebooks import Notebook
from fedlib.workbook.site import parts
from fedlib.workbook.site.charts import against_reported, comparable, forest, legend
from fedlib.workbook.site.parts import badge, facts, name, place, squares, theirs
from fedlib.workbook.site.pictures import first, thumb


def landing(notebooks: list[Notebook], claims: list[dict]) -> str:
    """One sentence, the picture, a card for each paper, three doors."""
    papers = [p for p in facts() if any(nb.paper == p for nb in notebooks)]
    panels = "\n".join(against_reported(name(p), comparable([c for c in claims if c["paper"] == p])) for p in papers)
    ours = [c for c in claims if c["whose"] == "ours"]
    lines = [
        "---", "hide-toc: true", "---", "", "# fedlib: five federated-learning papers, run again", "",
        "Every table and figure of five papers on federated learning is an executable notebook here. Every claim is a",
        "sentence with a verdict computed from runs, and every verdict says what it stands on.", "",
        doors(), "",
        "## What was reported, and what came out", "",
        f'<figure class="headlines">{headlines.picture(claims, place)}</figure>', "",
        "One claim of each paper that stands for it ([how far its runs are](notebooks/synthesis/headlines)). The dot is full at",
        "the paper's own setting or its first rounds, hollow below; right of",
        "zero is the claimed side. *Reproduced* and *not reproduced* are said of a paper's own setting only, run to its end.",
        "Smaller runs, other data or another network *agree* or *disagree*, which is a hint. *Open* means that the runs cannot",
        "tell. More on [how verdicts are made](docs/verdicts.md).", "",
        "## The papers", "",
        '<div class="cards">', *(card(p, claims) for p in papers), "</div>", "",
        "## All claims with a number", "",
        '<div class="panels">', panels, "</div>", legend(), "",
        "Each point is a claim in points of accuracy, and leads to its page. On the diagonal our effect is the paper's; above",
        "zero it is on the claimed side. Bars are 95% intervals over seeds; what lies outside a panel is drawn at its edge,",
        f"faint. Beside them the workbook has {len(ours)} questions of its own. {report.FEWER}", "",
        counts([c for c in claims if c["whose"] == "paper"]), "",
    ]  # fmt: skip
    return "\n".join(lines)


def doors() -> str:
    found = {
        "papers/claims.html": ("Claims", "every sentence, filtered and sorted, with its numbers"),
        "methods/index.html": ("Methods", "every algorithm: code, cost, where it is used"),
        "README.html": ("Run it", "install, regenerate, change, extend"),
    }
    links = [f'<a href="{to}"><b>{title}</b><span>{text}</span></a>' for to, (title, text) in found.items()]
    return f'<nav class="doors" aria-label="Ways in">{"".join(links)}</nav>'


def card(paper: str, claims: list[dict]) -> str:
    """What the paper says, what came of the claim that stands for it, and all counts by evidence."""
    fact, home = facts()[paper], f"papers/{paper}/README.html"
    mine = [c for c in claims if (c["paper"], c["whose"]) == (paper, "paper")]
    lines = [
        '<section class="card"><div>',
        f'<h3><a href="{home}">{name(paper)}</a> <small>{fact["venue"]} {fact["year"]}</small></h3>',
        f'<p class="links">{links(paper)}</p>',
        f"<p><b>It says:</b> {escape(fact['says'])}</p>",
    ]
    if chosen := next((c for c in claims if c["id"] == fact["claim"]), None):
        reported = f"The paper has {theirs(chosen)}; here" if chosen["reported"] is not None else "Here"
        numbers = f"{reported} {parts.ours(chosen)} over {len(chosen['seeds'])} seeds."
        sentence = f'<a href="{place(chosen)}">{escape(chosen["sentence"])}</a>'
        lines.append(
            f"<p><b>The claim that stands for it:</b> {sentence}</p><p><b>What came out:</b> {badge(chosen)} {numbers}</p>"
        )
    lines += ["</div><div>", counts(mine), squares(mine), "</div></section>"]
    return "\n".join(lines)


def counts(claims: list[dict]) -> str:
    """Verdicts by what they stand on; evidence that there is none of is left out."""
    found = zip([*report.STANDS.values(), "no evidence"], report.standing(claims), strict=True)
    rows = "".join(f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in found if v not in ("–", "0"))
    return f'<table class="counts"><tr><th>claims</th><td>{len(claims)}</td></tr>{rows}</table>'


def links(paper: str) -> str:
    fact = facts()[paper]
    code = f' · <a href="{fact["code"]}">the authors\' code</a>' if "code" in fact else " · no code was released"
    return f'<a href="{fact["paper"]}">{escape(fact["title"])}</a>{code}'


def dashboard(paper: str, notebooks: list[Notebook], claims: list[dict]) -> str:
    """Below a guide's title: where the paper is, verdicts by exhibit, and its effects beside ours."""
    up = "../../"
    lines = [f'<p class="crumbs"><a href="{up}index.html">fedlib</a> › {name(paper)}</p>', ""]
    if fact := facts().get(paper):
        lines += [f'<p class="links">{escape(fact["authors"])}, {fact["venue"]} {fact["year"]}: {links(paper)}</p>', ""]
    tiles = [tile(nb, [c for c in claims if c["notebook"] == nb.name], up) for nb in report.tables_first(notebooks)]
    key = "".join(f'<span><i class="square {s}"></i> {w}</span>' for s, w in KEY.items())
    lines += [
        "## Verdicts at a glance", "", counts([c for c in claims if c["whose"] == "paper"] if fact else claims), "",
        f'<p class="legend">{key}</p>', f'<div class="tiles">{"".join(tiles)}</div>', "",
    ]  # fmt: skip
    drawn = [c for c in claims if c["unit"] == "points" and c["effect"] is not None and c["verdict"] != NONE]
    if shown := [c for c in drawn if c["reported"] is not None] or drawn:
        what = "beside what was reported" if any(c["reported"] is not None for c in shown) else "in points of accuracy"
        lines += [f"## Effects {what}", "", forest(shown, up), legend(), ""]
    if fact:
        lines += ["<details><summary>BibTeX</summary>", "", "```bibtex", bibtex(paper), "```", "", "</details>", ""]
    return "\n".join(lines)


def guide(title: str, notebooks: list[Notebook]) -> str:
    """Where nobody wrote a reading guide: what each page says, in its own words."""
    lines = [f"# {title}", "", "## What the pages say", ""]
    for nb in notebooks:
        said = nb.node.cells[0].source.partition("**What it says.**")[2].strip()
        said = re.sub(
            r"\]\((?=[\w.])(?!\w+:)", f"](../../notebooks/{nb.paper}/", said
        )  # links between pages hold here too
        lines += [
            f"[{nb.heading}](/notebooks/{nb.name}.ipynb)",
            f": {said}".replace("\n", "\n  "),
            "",
        ]
    return "\n".join(lines)


def tile(nb: Notebook, claims: list[dict], up: str) -> str:
    """An exhibit: its first figure, its title, a square for each claim."""
    address = f"{up}notebooks/{nb.name}.html"
    title = escape(nb.heading)
    shown = (
        f'<img src="{up}_static/thumbs/{thumb(nb)}" alt="" loading="lazy">'
        if first(nb)
        else '<span class="blank">a table</span>'
    )
    return f'<div class="tile"><a href="{address}">{shown}<b>{title}</b></a>{squares(claims, up)}</div>'


KEY = {"for": "for the claim", "against": "against it", "open": "open", "none": "no evidence"}


def bibtex(paper: str) -> str:
    fact = facts()[paper]
    kind, field = ("misc", "howpublished") if "preprint" in fact["venue"] else ("inproceedings", "booktitle")
    authors = " and ".join(fact["authors"].replace(" and ", ", ").split(", "))
    fields = {
        "title": fact["title"],
        "author": authors,
        field: fact["venue"],
        "year": fact["year"],
        "url": fact["paper"],
    }
    return f"@{kind}{{{paper}{fact['year']},\n" + "".join(f"  {k} = {{{v}}},\n" for k, v in fields.items()) + "}"
