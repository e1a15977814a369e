"""The files of a new paper's page: they list, plan, run, report and build as they are, and are meant to be edited."""

import re
from pathlib import Path

import nbformat
import yaml

from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.workbook.report import BEGIN, END
from fedlib.workbook.settings import names, read

SETTINGS = """\
# What the experiments of {title} fix, what we had to choose, and what each scale changes.
# paper = defaults + panel.paper;  laptop = paper + panel.laptop;  smoke = paper + panel.smoke.
open: []  # fields of a run on which the paper says nothing: what we do there is no departure from it
seeds: {{smoke: [1, 2], laptop: [1, 2, 3], paper: [1, 2, 3]}}

defaults:  # of every run, unless a panel says otherwise
  clients: 10
  local_epochs: 1
  batch_size: 32
  optimizer: sgd(momentum=0.9)
  lr: 0.05
  rounds: 20

chosen:  # what the paper leaves open, and our choice with its reason
  seeds: "1, 2 and 3."

columns: {{}}

panels:  # data set and network of each, and what a scale changes
  digits:
    paper: {{dataset: digits, model: mlp(hidden=64)}}
    laptop: {{}}
    smoke: {{rounds: 3}}
"""
COLUMNS = """\
  {exhibit}:  # which panels run with which alpha of dirichlet(alpha=…); a text is another partition
    paper: {{digits: [0.1]}}
    laptop: {{digits: [0.1]}}
    smoke: {{digits: [0.1]}}
"""
REPORTED = """\
# Reported numbers, transcribed from the paper; nothing corrected.
# rows: {{method: fedavg, dataset: digits, alpha: 0.1, value: 90.1}}; derived: what the paper computes from its cells.
paper: {paper}
tables: []
"""
CLAIMS = """\

{exhibit}:
  C1:
    sentence: '{title}: FedProx is more accurate than FedAvg (mean over the columns).'
    where: {place}
"""
GUIDE = """\
# {title}

What the paper claims, in a paragraph; where it and its code disagree; what it leaves open.

{begin}
{end}
"""
PAGE = (
    ("markdown", "# {title}, {place}: what it is about\n\nAuthors, *Title* (venue, year).\n\n**What it says.** Two or "
     "three sentences on what the paper says here, and what came out.", ()),
    ("code", 'scale: str = "laptop"  # smoke, laptop or paper\nseeds: list = [1, 2, 3]  # one run per cell and seed\n'
     "mu: float = 0.01  # FedProx: weight of its term", ("parameters",)),
    ("code", 'from fedlib.workbook.page import Page\n\npage = Page("{paper}.{exhibit}", scale, seeds)\n'
     'grid = page.grid({{"fedavg": "fedavg", "fedprox": f"fedprox(mu={{mu}})"}})', ("grid",)),
    ("code", "page.run(grid)  # what is on record is read, only what is missing is trained",
     ("nbval-ignore-output",)),
    ("markdown", "## The table\n\nAccuracy in percent, mean over the last ten rounds; ± is half of the 95% interval "
     "over seeds.", ()),
    ("code", 'page.table()\npage.gains(over="fedavg")', ()),
    ("markdown", "## The claims", ()),
    ("code", 'page.claims(C1=page.over("fedprox", "fedavg"))', ()),
    ("markdown", "## The method\n\nThe equation, then the code that computes it.", ()),
    ("code", "import fedlib\nfrom fedlib.algorithms.prox import FedProx\n\nfedlib.show(FedProx)", ()),
    ("markdown", "## What differs from the paper", ()),
    ("code", 'page.notes("seeds")', ()),
)  # fmt: skip


def new_page(paper: str, name: str, root: Path = ROOT) -> list[Path]:
    """Make the page ``name`` (such as table1 or figure02_curves) of ``paper``; returns the files made or added to."""
    for what in (paper, name):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", what):
            raise FedlibError(f"Names of papers and exhibits are of small letters, digits and '_'; got {what!r}.")
    kind = re.fullmatch(r"(table|figure)0*(\d+)(_.*)?", name)
    stem = f"{kind[1]}{int(kind[2]):02d}{kind[3] or ''}" if kind else name
    exhibit, place = (f"{kind[1]}{kind[2]}", f"{kind[1].title()} {kind[2]}") if kind else (name, name)
    page, home = root / "notebooks" / paper / f"{stem}.ipynb", root / "papers" / paper
    if page.exists():
        raise FedlibError(f"There is a page {paper}/{stem} already: choose another name, or delete it.")
    words = dict(paper=paper, exhibit=exhibit, place=place, title=_title(paper, root), begin=BEGIN, end=END)
    made, texts = [], {"README.md": GUIDE, "settings.yaml": SETTINGS, "reported.yaml": REPORTED, "claims.yaml": ""}
    for file, text in texts.items():
        if not (home / file).exists():
            home.mkdir(parents=True, exist_ok=True)
            (home / file).write_text(text.format(**words), encoding="utf-8")
            made.append(home / file)
    _add(home / "claims.yaml", exhibit, CLAIMS.format(**words))
    _add_columns(home / "settings.yaml", exhibit, COLUMNS.format(**words))
    page.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(_notebook(words), page)
    for cached in (read, names):
        cached.cache_clear()
    return [*made, page]


def _title(paper: str, root: Path) -> str:
    """What the paper is called on pages; a new one is entered into papers/names.yaml, before our own pages."""
    path = root / "papers" / "names.yaml"
    text = path.read_text(encoding="utf-8")
    known = yaml.safe_load(text)["papers"]
    if paper not in known:
        path.write_text(text.replace("  synthesis:", f"  {paper}: {paper}\n  synthesis:", 1), encoding="utf-8")
    return known.get(paper, paper)


def _add(path: Path, key: str, text: str) -> None:
    before = path.read_text(encoding="utf-8")
    if key not in (yaml.safe_load(before) or {}):
        path.write_text((before + text).lstrip("\n"), encoding="utf-8")


def _add_columns(path: Path, exhibit: str, text: str) -> None:
    """Below ``columns:``, with the panel that it names."""
    before = path.read_text(encoding="utf-8")
    settings = yaml.safe_load(before)
    if exhibit in (settings.get("columns") or {}):
        return
    if "digits" not in settings["panels"]:
        raise FedlibError(f"{path} has no panel digits to begin with: write the columns of {exhibit} there by hand.")
    after, count = re.subn(r"(?m)^columns:.*\n", "columns:\n" + text, before, count=1)
    path.write_text(after if count else f"{before}\ncolumns:\n{text}", encoding="utf-8")


def _notebook(words: dict) -> nbformat.NotebookNode:
    cells = []
    for number, (kind, source, tags) in enumerate(PAGE, 1):
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        cells.append(make(source.format(**words), id=f"cell-{number:02d}"))
        if tags:
            cells[-1].metadata["tags"] = list(tags)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
