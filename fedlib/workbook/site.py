"""The static site: reading guides, executed notebooks and the gallery of algorithms, as pages that need no network."""

import inspect
import shutil
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from fedlib.algorithms import ALGORITHMS, Local, Server, Weighting
from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.core.registry import parse
from fedlib.runs.store import Store
from fedlib.workbook.notebooks import Notebook
from fedlib.workbook.report import tables_first
from fedlib.workbook.settings import names

SOURCES = ("fedlib", "papers", "notebooks", "benchmarks", "docs")  # what pages link to, beside other pages
KEPT = (".py", ".yaml", ".png", ".md", ".json")
MORE = ("Every claim </papers/claims>", "Algorithms </algorithms>")  # pages besides the papers'


def build(notebooks: Iterable[Notebook], out: Path, records: Store) -> Path:
    """Gather the pages, let Sphinx make HTML of them; returns the start page."""
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        raise FedlibError("The site needs Sphinx: pip install -e '.[site]' in the clone, or say make site.") from None
    notebooks, source = list(notebooks), out.parent / f"{out.name}-pages"
    gather(notebooks, source, records)
    shutil.rmtree(out, ignore_errors=True)
    # A broken link or an unreadable page is a warning of Sphinx's, and here an error.
    quiet = [] if sys.stderr.isatty() else ["-q"]  # on a terminal Sphinx shows how far it is
    if code := build_main(["-b", "html", *quiet, "-W", "--keep-going", "-d", f"{source}.cache", str(source), str(out)]):
        raise FedlibError(f"Sphinx could not build the site without warnings (exit {code}): see above.")
    return out / "index.html"


def gather(notebooks: list[Notebook], source: Path, records: Store) -> None:
    """The pages in the folders they have in the repository, so that every link between them holds."""
    shutil.rmtree(source, ignore_errors=True)
    for folder in SOURCES:
        for path in (p for p in (ROOT / folder).rglob("*") if p.suffix in KEPT and "runs" not in p.parts):
            copy(path, source / path.relative_to(ROOT))
    copy(ROOT / "docs" / "conf.py", source / "conf.py")
    shutil.copytree(ROOT / "docs" / "_static", source / "_static")
    for nb in notebooks:
        copy(nb.path, source / "notebooks" / f"{nb.name}.ipynb")
    papers = sorted({nb.paper for nb in notebooks}, key=list(names()["papers"]).index)
    for paper in papers:
        mine = tables_first(nb for nb in notebooks if nb.paper == paper)
        guide = source / "papers" / paper / "README.md"
        if not guide.exists():
            guide.parent.mkdir(parents=True, exist_ok=True)
            guide.write_text(f"# {paper.capitalize()}\n", encoding="utf-8")
        guide.write_text(guide.read_text(encoding="utf-8") + toctree(map(entry, mine)), encoding="utf-8")
    (source / "algorithms.md").write_text(gallery(notebooks, records), encoding="utf-8")
    pages = [f"{names()['papers'][p]} </papers/{p}/README>" for p in papers]
    start = (ROOT / "README.md").read_text(encoding="utf-8") + toctree([*pages, *MORE])
    (source / "index.md").write_text(start, encoding="utf-8")


def copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


def entry(nb: Notebook) -> str:
    """A line of the contents; what stands above it says which paper."""
    title = nb.title.removeprefix(f"{names()['papers'][nb.paper]}, ")
    return f"{title} </notebooks/{nb.name}>"


def toctree(entries: Iterable[str]) -> str:
    return "\n\n```{toctree}\n:hidden:\n:maxdepth: 1\n\n" + "\n".join(entries) + "\n```\n"


def gallery(notebooks: list[Notebook], records: Store) -> str:
    """Every algorithm: what it computes, its code, which notebooks use it, and what its runs cost beside FedAvg's."""
    used, cost = uses(notebooks), costs(records)
    kinds = {"On the clients": Local, "How much each client counts": Weighting, "On the server": Server}
    lines = [
        "# Algorithms",
        "",
        "Each is a part that acts in one place, and parts are joined with `+`. *Cost* is the time of a whole run over",
        "that of FedAvg with the same data, network, rounds and seed: the median over such pairs of records, with",
        "evaluation. Records come from a shared machine, so small differences mean nothing.",
    ]
    for title, kind in kinds.items():
        lines += ["", f"## {title}"]
        for name in (n for n, cls in sorted(ALGORITHMS.entries.items()) if issubclass(cls, kind)):
            cls = ALGORITHMS.entries[name]
            file = Path(inspect.getsourcefile(cls)).resolve().relative_to(ROOT).as_posix()
            lines += ["", f"### {name}", "", inspect.getdoc(cls) or "", "", f"Code: [{file}](/{file}). "]
            if name in cost:
                ratio, pairs = cost[name]
                lines[-1] += f"Cost: {ratio:.2f} × FedAvg ({pairs} pairs of runs). "
            if name in used:
                links = ", ".join(f"[{nb.title.partition(':')[0]}](/notebooks/{nb.name}.ipynb)" for nb in used[name])
                lines[-1] += f"Used in: {links}."
            code = inspect.getsource(cls).rstrip()
            lines += ["", "<details><summary>Source</summary>", "", "```python", code, "```", "", "</details>"]
    return "\n".join(lines) + "\n"


def uses(notebooks: Iterable[Notebook]) -> dict[str, list[Notebook]]:
    """The notebooks whose runs have an algorithm in them, by its name."""
    found: dict[str, list[Notebook]] = {}
    for nb in notebooks:
        texts = {getattr(run, "algorithm", "") for run in nb.plan().values()} - {""}
        for name in sorted({name for text in texts for name, _ in parse(text)}):
            found.setdefault(name, []).append(nb)
    return found


def costs(records: Store) -> dict[str, tuple[float, int]]:
    """Seconds of a run over those of the FedAvg run that differs in nothing else: (median, how many pairs)."""
    found = [r for r in map(records.get, records.ids()) if "spec" in r.json and r.status == "ok" and not r.probes]
    runs = [(r.spec, r.json["seconds"]) for r in found]
    base = {spec.replace(algorithm="fedavg").id: seconds for spec, seconds in runs if spec.algorithm == "fedavg"}
    ratios: dict[str, list[float]] = {}
    for spec, seconds in runs:
        parts = parse(spec.algorithm)
        names = {name for name, _ in parts} - {"fedavg"}
        if len(names) == 1 and (reference := base.get(spec.replace(algorithm="fedavg").id)):
            ratios.setdefault(names.pop(), []).append(seconds / reference)
    return {name: (statistics.median(found), len(found)) for name, found in ratios.items()}
