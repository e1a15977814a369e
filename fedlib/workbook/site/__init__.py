"""The static site: landing page, claims, methods, guides and executed notebooks, as pages that need no network."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable
from copy import deepcopy
from html import escape
from pathlib import Path

import nbformat

from fedlib.algorithms import ALGORITHMS
from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.runs.record import Record
from fedlib.runs.store import Store
from fedlib.workbook import report
from fedlib.workbook.notebooks import Notebook
from fedlib.workbook.settings import names
from fedlib.workbook.site import explorer, landing, methods, pages, parts, pictures

SOURCES = ("fedlib", "papers", "notebooks", "benchmarks", "docs")  # what pages link to, beside other pages
KEPT = (".py", ".yaml", ".png", ".svg", ".md", ".json")
MATHJAX = ("tex-chtml.js", "a11y", "input/tex", "output/chtml", "ui")  # what pages load of it


def build(notebooks: Iterable[Notebook], out: Path, records: Store) -> Path:
    """Gather the pages, let Sphinx make HTML of them; returns the start page."""
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        raise FedlibError("The site needs Sphinx: pip install -e '.[site]' in the clone, or say make site.") from None
    notebooks, source = list(notebooks), out.parent / f"{out.name}-pages"
    claims, plans = report.gather(notebooks), {nb: nb.plan() for nb in notebooks}
    found = {id: records.get(id) for id in sorted({job.id for plan in plans.values() for job in plan.values()})}
    found = {id: record for id, record in found.items() if record is not None}
    gather(plans, claims, source, found)
    shutil.rmtree(out, ignore_errors=True)
    # A broken link or an unreadable page is a warning of Sphinx's, and here an error.
    quiet = [] if sys.stderr.isatty() else ["-q"]  # on a terminal Sphinx shows how far it is
    many = ["-j", str(min(4, os.cpu_count() or 1))]
    how = [*quiet, *many, "-W", "--keep-going", "-d", f"{source}.cache"]
    if code := build_main(["-b", "html", *how, str(source), str(out)]):
        raise FedlibError(f"Sphinx could not build the site without warnings (exit {code}): see above.")
    (out / "papers" / "claims.json").write_text(explorer.as_json(claims), encoding="utf-8")
    (out / "papers" / "claims.csv").write_text(explorer.as_csv(claims), encoding="utf-8")
    for nb in notebooks:
        bare(nb, out / "notebooks" / f"{nb.name}.ipynb")
        write(out / "notebooks" / f"{nb.name}.runs.csv", pages.runs(plans[nb], found))
    mathjax(out / "_static" / "mathjax")
    for picture in (out / "_images").glob("*.png"):
        pictures.shrink(picture)
    return out / "index.html"


def gather(plans: dict[Notebook, dict], claims: list[dict], source: Path, found: dict[str, Record]) -> None:
    """The pages in the folders they have in the repository, so that every link between them holds."""
    notebooks = list(plans)
    shutil.rmtree(source, ignore_errors=True)
    for folder in SOURCES:
        for path in (p for p in (ROOT / folder).rglob("*") if p.suffix in KEPT and "runs" not in p.parts):
            copy(path, source / path.relative_to(ROOT))
    copy(ROOT / "docs" / "conf.py", source / "conf.py")
    shutil.copytree(ROOT / "docs" / "_static", source / "_static")
    for nb in notebooks:
        pictures.thumbnail(nb, source / "_static" / "thumbs")
        mine = [c for c in claims if c["notebook"] == nb.name]
        write(source / "notebooks" / f"{nb.name}.ipynb", nbformat.writes(pages.page(nb, mine, plans[nb], found)))
    papers = sorted({nb.paper for nb in notebooks}, key=list(names()["papers"]).index)
    for paper in papers:
        mine = report.tables_first(nb for nb in notebooks if nb.paper == paper)
        guide = source / "papers" / paper / "README.md"
        text = guide.read_text(encoding="utf-8") if guide.exists() else landing.guide(names()["papers"][paper], mine)
        theirs = [c for c in claims if c["paper"] == paper]
        if report.BEGIN in text:  # on the site every claim of the table is a link
            text = report.replaced(text, report.guide(mine, theirs, linked))
        title, _, rest = text.partition("\n")
        board = landing.dashboard(paper, mine, theirs)
        write(guide, f"{title}\n\n{board}\n{rest}{toctree(map(entry, mine))}")
    write(source / "papers" / "claims.md", explorer.explorer(claims))
    used, cost = methods.uses(plans), methods.costs(found.values())
    write(source / "methods" / "index.md", methods.index(used, cost, claims))
    for method in ALGORITHMS.entries:
        write(source / "methods" / f"{method}.md", methods.method_page(method, used, cost, claims))
    guides = [f"/{p.relative_to(ROOT).with_suffix('')}" for p in sorted((ROOT / "docs").glob("*.md"))]
    write(source / "README.md", (ROOT / "README.md").read_text(encoding="utf-8") + (toctree(guides) if guides else ""))
    first = ["Claims </papers/claims>", "Methods </methods/index>", "Run it </README>"]
    contents = toctree([*first, *(f"{names()['papers'][p]} </papers/{p}/README>" for p in papers)])
    write(source / "index.md", landing.landing(notebooks, claims) + contents)


def bare(nb: Notebook, to: Path) -> None:
    """The notebook to download, without outputs: these are on its page."""
    node = deepcopy(nb.node)
    for cell in (c for c in node.cells if c.cell_type == "code"):
        cell.outputs, cell.execution_count = [], None
    write(to, nbformat.writes(node))


def mathjax(to: Path) -> None:
    """MathJax from the package that carries it, only what the pages load: one script, its fonts and extensions."""
    package = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    for part in MATHJAX:
        if (package / part).is_dir():
            shutil.copytree(package / part, to / part)
        else:
            copy(package / part, to / part)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


def entry(nb: Notebook) -> str:
    """A line of the contents; what stands above it says which paper."""
    return f"{nb.heading} </notebooks/{nb.name}>"


def linked(claim: dict) -> str:
    """A claim's mark, as a link to its place on its page."""
    sentence = escape(claim["sentence"]).replace("|", "&#124;")  # it stands in a table of Markdown
    return f'<a href="{parts.place(claim, "../../")}" title="{sentence}">{report.marked(claim)}</a>'


def toctree(entries: Iterable[str]) -> str:
    return "\n\n```{toctree}\n:hidden:\n:maxdepth: 1\n\n" + "\n".join(entries) + "\n```\n"
