"""papers/<paper>/settings.yaml: what a paper fixes, what we chose, what each scale changes; and grids made of it."""

from collections.abc import Collection, Iterable, Mapping
from functools import cache

import pandas as pd
import yaml

from fedlib.core.errors import FedlibError
from fedlib.core.paths import IN_CLONE, ROOT
from fedlib.core.registry import require_one_of
from fedlib.core.spec import RunSpec
from fedlib.runs.lookup import on_record
from fedlib.workbook import schema
from fedlib.workbook.schema import SCALES

PAPERS = ROOT / "papers"
GROWING = "The paper's own setting, as far as these runs have come"  # the title of what `begun` adds to a page


@cache
def read(paper: str, name: str) -> dict:
    """The content of ``papers/<paper>/<name>``."""
    path = PAPERS / paper / name
    if not path.exists():
        known = ", ".join(sorted(p.parent.name for p in PAPERS.glob(f"*/{name}")))
        raise FedlibError(f"There is no {name} for the paper {paper!r}; those that have one: {known}.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise FedlibError(f"papers/{paper}/{name} is no YAML: {' '.join(str(error).split())}.") from None
    return schema.check(paper, name, {} if content is None else content)


def part(paper: str, name: str) -> dict:
    """One part of a paper's settings, such as columns."""
    settings = read(paper, "settings.yaml")
    if name not in settings:
        raise FedlibError(f"papers/{paper}/settings.yaml has no '{name}:', which this page needs.")
    return settings[name]


@cache
def names() -> dict:
    """``papers/names.yaml``: what papers, data sets and methods are called on pages, and how methods are drawn.

    A fedlib that is installed without its clone has no names but the written forms.
    """
    if not IN_CLONE:
        return {kind: {} for kind in ("papers", "data", "methods", "variants", "transcribed")}
    return yaml.safe_load((PAPERS / "names.yaml").read_text(encoding="utf-8"))


def setting(paper: str, panel: str, scale: str) -> dict:
    """The keyword arguments of ``RunSpec`` that ``paper`` fixes for ``panel``, as ``scale`` changes them."""
    require_one_of("scale", scale, SCALES)
    settings = read(paper, "settings.yaml")
    require_one_of(f"panel of {paper}", panel, settings["panels"])
    changes = settings["panels"][panel]
    for needed in ("paper", scale):
        if needed not in changes:
            where = f"the panel {panel} of papers/{paper}/settings.yaml"
            raise FedlibError(f"There is no '{needed}:' in {where}; '{needed}: {{}}' changes nothing.")
    return settings["defaults"] | changes["paper"] | (changes[scale] or {})


def environments(paper: str) -> dict[str, dict]:
    """The conditions that ``paper`` repeats every experiment under, as further arguments of ``RunSpec``."""
    return part(paper, "environments")


def columns(paper: str, table: str, scale: str) -> list[tuple]:
    """The (panel, alpha) of a table that are run at ``scale``; a text is another partition.

    Smoke has laptop's where it has none of its own.
    """
    require_one_of("scale", scale, SCALES)
    tables = part(paper, "columns")
    require_one_of(f"table of {paper}", table, tables)
    chosen = tables[table].get(scale, tables[table]["laptop"])
    return [(panel, alpha) for panel, alphas in chosen.items() for alpha in alphas]


def seeds(paper: str, scale: str) -> list[int]:
    """The seeds of the paper's pages at ``scale``, where the settings name them."""
    require_one_of("scale", scale, SCALES)
    return part(paper, "seeds")[scale]


def methods(paper: str, scale: str, *names: str) -> dict[str, str]:
    """The written forms of these methods at ``scale``, where a scale changes what a method does at the server."""
    require_one_of("scale", scale, SCALES)
    forms = part(paper, "methods")
    for name in names:
        require_one_of(f"method of {paper}", name, forms)
    return {name: form if isinstance(form := forms[name], str) else form[scale] for name in names}


def preset(paper: str, name: str) -> dict:
    """A chassis of the paper: the ``settings`` around all methods and its own form of each (``methods``)."""
    presets = read(paper, "settings.yaml").get("presets", {})
    require_one_of(f"preset of {paper}", name, presets)
    return {"settings": {}, "methods": {}} | presets[name]


def unstated(paper: str, exhibit: str | None = None) -> set[str]:
    """The fields of a run on which the paper (of this exhibit) says nothing: what we do there is no departure."""
    settings = read(paper, "settings.yaml")
    return {*settings.get("open", ()), *settings.get("open_for", {}).get(exhibit, ())}


def build_grid(
    paper: str, columns: Iterable[tuple], methods: Mapping[str, str | Mapping], seeds: Iterable[int], scale: str,
    vary: Mapping | None = None, **fill: Mapping,
) -> dict:  # fmt: skip
    """The grid of a table: (panel, alpha, method, seed) to the run of that cell.

    ``methods`` are names and written forms; what stands there in braces is taken from ``fill``: values by a part of the
    network's name, of which the last that fits counts. A method with settings of its own is a mapping of them, its
    form among them as ``algorithm``. ``vary`` repeats it all under changed settings, by a name that comes before the
    method in the key.
    """
    grid = {}
    for panel, alpha in columns:
        here = setting(paper, panel, scale)
        here["partition"] = alpha if isinstance(alpha, str) else f"dirichlet(alpha={alpha})"
        filled = {k: [v for part, v in f.items() if part in here["model"]][-1] for k, f in fill.items()}
        for name, change in (vary or {None: {}}).items():
            where = (panel, alpha, name) if vary else (panel, alpha)
            for method, form in methods.items():
                own = {"algorithm": form} if isinstance(form, str) else dict(form)
                try:
                    own["algorithm"] = own["algorithm"].format(**filled)
                except KeyError as blank:
                    said = own["algorithm"]
                    raise FedlibError(f"{method} is {said!r}: give {blank} or use server_grid(…).") from None
                for seed in seeds:
                    grid[*where, method, seed] = RunSpec(**here | change | own, seed=seed)
    return grid


def server_grid(
    paper: str, columns: Iterable[tuple], names: Iterable[str], seeds: Iterable[int], scale: str,
    vary: Mapping | None = None,
) -> dict:  # fmt: skip
    """``build_grid`` of methods named in the settings; what is in braces there is the column's own (``server``).

    What ``vary`` changes may be the name of a preset, which has methods of its own; those it lacks are the settings'.
    """
    work, grid = read(paper, "settings.yaml").get("server", {}).get(scale, {}), {}
    for panel, alpha in columns:
        fill = {}
        for start, values in work.items():
            fill |= {name: {"": value} for name, value in values.items() if panel.startswith(start)}
        for level, change in (vary or {None: {}}).items():
            chassis = preset(paper, change) if isinstance(change, str) else {"settings": change, "methods": {}}
            here = {level: chassis["settings"]} if vary else None
            forms = {n: chassis["methods"][n] for n in names if n in chassis["methods"]}
            forms = methods(paper, scale, *(n for n in names if n not in forms)) | forms
            forms = {n: forms[n] for n in names}
            grid |= build_grid(paper, [(panel, alpha)], forms, seeds, scale, here, **fill)
    return grid


def own_grid(paper: str, panel: str, scale: str) -> dict:
    """The runs that the settings list under `own`, seed by seed: (panel, column, method, seed) to the paper's own run.

    A column is an alpha, or an environment of the paper; a ``preset`` is the authors' code around its methods. There is
    no laptop scale of the paper's own setting, and smoke has two seeds.
    """
    chosen = read(paper, "settings.yaml").get("own", {})
    require_one_of(f"panel run at its own setting of {paper}", panel, chosen)
    own, here = chosen[panel], setting(paper, panel, "smoke" if scale == "smoke" else "paper")
    chassis = preset(paper, own["preset"]) if "preset" in own else {"settings": {}, "methods": {}}
    grid, every = {}, sorted({seed for seeds in own["seeds"].values() for seed in seeds})
    for seed in every[:2] if scale == "smoke" else every:
        for column in (column for column, seeds in own["seeds"].items() if seed in seeds):
            named = read(paper, "settings.yaml").get("environments", {}).get(column, {})
            where = named if isinstance(column, str) else {"partition": f"dirichlet(alpha={column})"}
            for method, written in own["methods"].items():
                form = chassis["methods"].get(method, written)
                form = {"algorithm": form} if isinstance(form, str) else form
                model = here["model"] + own.get("model", {}).get(method, "")
                fields = here | chassis["settings"] | where | {"model": model, "seed": seed} | form
                grid[panel, column, method, seed] = RunSpec(**fields)
    return grid


def begun(
    paper: str, panel: str, scale: str, seeds: Collection[int], methods: Mapping[str, str] | None = None,
    columns: Collection | None = None, name: str = "",
) -> dict:  # fmt: skip
    """Of the runs under `own` those that are on record, whole or in part, for a page to show beside smaller ones:
    (panel_own, column, method, seed) to the paper's own run. Only at laptop scale; the paper's has them anyway.

    ``methods`` are those the page wants, by their names in the settings, each with its name there; ``columns`` those it
    wants; ``name`` is what it calls the panel, if not panel_own.
    """
    if scale != "laptop":
        return {}
    found = {}
    for (_, column, method, seed), run in on_record(own_grid(paper, panel, scale)).items():
        if seed in seeds and column in (columns or [column]) and method in (methods or [method]):
            found[name or f"{panel}_own", column, (methods or {}).get(method, method), seed] = run
    return found


def open_choices(paper: str, exhibit: str | None = None, only: Iterable[str] | None = None) -> pd.DataFrame:
    """What the paper leaves open, and what we chose; what concerns one ``exhibit``, such as figure1, comes first.

    Where an exhibit has its own choice of the same name, the paper-wide one does not hold there and is left out; null
    says that there is no choice at all. ``only`` names the paper-wide choices that concern this exhibit.
    """
    settings = read(paper, "settings.yaml")
    own = settings.get("chosen_for", {}).get(exhibit, {})
    wide = settings["chosen"]
    for name in only or ():
        require_one_of(f"choice of {paper}", name, wide)
    wide = wide if only is None else {name: wide[name] for name in only}
    choices = {name: choice for name, choice in (own | wide | own).items() if choice}
    return pd.DataFrame(choices.items(), columns=["left open", "our choice"])
