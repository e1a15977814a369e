"""A notebook's page: it holds the records, names, labels and reported numbers, and hides nothing that decides a number.

page = Page("fedawa.table8", scale, seeds)
grid = page.grid({"fedavg": "fedavg", "fedawa": "awa(variant=released)"})
page.run(grid)
page.table()
page.gains(over="fedavg")
page.claims(C1=page.best("fedawa"), C1a=page.over("fedawa", "fedavg", data="ag_news", alpha=0.1))
page.notes()
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.core.registry import require_one_of
from fedlib.core.spec import RunSpec
from fedlib.runs import engine
from fedlib.workbook import frames, settings
from fedlib.workbook.claims import Effect, definitions, judge
from fedlib.workbook.evidence import Evidence
from fedlib.workbook.headline import differences, headline
from fedlib.workbook.plots import reported_vs_ours
from fedlib.workbook.reported import default_cell, printed_means, reported, reported_cells, reported_gaps
from fedlib.workbook.statistics import interval, paired
from fedlib.workbook.tables import at, show_claims, show_table, summary

COLUMNS = ("data", "alpha", "method", "seed")


def show(*things: Any) -> Markdown:
    """The source of classes, functions or modules, each under the name of its file."""
    blocks = []
    for thing in things:
        file = Path(inspect.getsourcefile(inspect.unwrap(thing))).resolve()  # not that of a decorator
        where = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
        blocks.append(f"`{where}`\n```python\n{inspect.getsource(thing).rstrip()}\n```")
    return Markdown("\n\n".join(blocks))


class Page:
    """One exhibit of a paper at a scale: its grid, its records, the paper's numbers and the claims about it."""

    def __init__(self, name: str, scale: str, seeds: Sequence[int] = (), base: str = "fedavg"):
        """``name`` is paper.exhibit; without ``seeds`` those of the settings; ``base`` is what others are added to."""
        self.paper, self.exhibit = name.split(".")
        require_one_of("scale", scale, settings.SCALES)
        self.scale, self.base = scale, base
        self.seeds = list(seeds) or settings.seeds(self.paper, scale)
        self.metric = "last 10"  # of scores, the paper's own
        self.names: tuple[str, ...] = COLUMNS
        self.labels: dict[str, str] = {}  # of methods, where names.yaml has none or another
        self.titles: dict[str, str] = {}  # of panels
        self.records: dict = {}
        self.jobs: dict = {}
        self._builders: list[Callable[[str], dict]] = []

    # The grid.

    def grid(
        self, methods: Mapping[str, str] | Iterable[str], only: Callable[[str, object], bool] | None = None,
        vary: Mapping[str, Mapping] | None = None, columns: str | None = None, seeds: Sequence[int] = (), **fill: Any,
    ) -> dict:  # fmt: skip
        """The runs of the exhibit's columns (settings.yaml) with these methods: (data, alpha, method, seed) to spec.

        ``methods`` are names and written forms (or names that the settings have forms of); braces in a form are filled
        from ``fill``, one value or values by a part of the network's name. ``only(data, alpha)`` chooses columns;
        ``columns`` names another exhibit's. ``vary={"level": {name: changes}}`` repeats all under changed settings.
        Several grids of a page are joined with ``|``.
        """
        ((level, changes),) = vary.items() if vary else ((None, None),)
        if level:
            self.names = ("data", "alpha", level, "method", "seed")
        fill = {k: v if isinstance(v, Mapping) else {"": v} for k, v in fill.items()}
        forms = methods if isinstance(methods, Mapping) else tuple(methods)

        def build(scale: str) -> dict:
            chosen = settings.columns(self.paper, columns or self.exhibit, scale)
            here = seeds or self.seeds
            if isinstance(forms, Mapping):
                return settings.build_grid(self.paper, chosen, forms, here, scale, changes, **fill)
            return settings.server_grid(self.paper, chosen, forms, here, scale, changes)

        # What is compared with the paper's columns is compared with all of them, whichever are chosen to run.
        return {key: job for key, job in self.grid_from(build).items() if only is None or only(*key[:2])}

    def grid_from(self, build: Callable[[str], dict], names: Sequence[str] | None = None) -> dict:
        """A grid of the page's own: ``build(scale)`` makes it for any scale, so that it can be held beside the paper's.

        ``names`` names the parts of its keys, "seed" among them.
        """
        self._builders.append(build)
        self.names = tuple(names or self.names)
        return build(self.scale)

    @cached_property
    def paper_grid(self) -> dict:
        """The same page at the paper's own scale: what grades are computed against."""
        return {key: job for build in self._builders for key, job in build("paper").items()}

    def setting(self, panel: str, scale: str | None = None) -> dict:
        """The arguments of ``RunSpec`` that the paper fixes for ``panel``, as the scale changes them."""
        return settings.setting(self.paper, panel, scale or self.scale)

    def spec(self, panel: str, scale: str, environment: str | None = None, model: str = "", **fields: Any) -> RunSpec:
        """The run of a panel, in an environment of the paper; ``model`` follows the network's name: (bias=False)."""
        here = self.setting(panel, scale) | (settings.environments(self.paper)[environment] if environment else {})
        return RunSpec(**here | {"model": here["model"] + model} | fields)

    def run(self, grid: dict) -> dict:
        """The records of the grid, by its keys. Those that exist are read; only missing ones are trained."""
        if wrong := [key for key in grid if len(key) != len(self.names)]:
            raise FedlibError(f"The key {wrong[0]} does not fit the names {self.names}: give grid_from(…) its names.")
        self.jobs, self.records = grid, engine.run(grid)
        return self.records

    # Names.

    def label(self, method: str) -> str:
        """What a method is called on the page."""
        known = {name: entry[0] for kind in ("variants", "methods") for name, entry in settings.names()[kind].items()}
        one = lambda m: known.get(m, known.get(m.removeprefix("fed"), m))  # noqa: E731
        return self.labels.get(method) or " + ".join(one(m) for m in method.split("+"))

    def title(self, data: str) -> str:
        """What a data set or panel is called on the page."""
        return self.titles.get(data) or settings.names()["data"].get(data, data)

    def cell_name(self, cell: Mapping) -> str:
        """Such as ``AG News, alpha 0.5``."""
        said = {"data": self.title, "panel": self.title, "alpha": at, "method": self.label, "environment": str}
        return ", ".join(said[n](v) if n in said else f"{n} {v}" for n, v in cell.items() if n != "seed")

    def named(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A frame as a reader sees it: its index as columns, panels and methods called what the page calls them."""
        frame = frame.reset_index(drop=list(frame.index.names) == [None])
        said = {"data": self.title, "panel": self.title, "method": self.label}
        return frame.assign(**{n: frame[n].map(call) for n, call in said.items() if n in frame})

    # Frames.

    @cached_property
    def scores(self) -> pd.DataFrame:
        """One row per run: accuracy over its last ten rounds, in its last round, and in its best one."""
        metrics = {"last 10": lambda c: frames.last(c, 10), "last round": lambda c: c.iloc[-1], "best": max}
        runs = {key: record for key, record in self.records.items() if isinstance(self.jobs[key], RunSpec)}
        return frames.scores(runs, self.names, **metrics)

    @cached_property
    def reported(self) -> dict[tuple, float]:
        """The paper's cells by (data, alpha, method), where the transcription's spelling is ours."""
        return self.reported_by(default_cell)

    def reported_by(self, cell: Callable[[dict], tuple | None]) -> dict[tuple, float]:
        """The paper's cells by the key that ``cell`` makes of a transcribed row; keep it: ``page.reported = …``."""
        if self.exhibit not in {t["id"] for t in self._transcribed}:
            return {}
        found = reported_cells(self.paper, self.exhibit, cell)
        return {key: value for key, value in found.items() if None not in (key, value)}

    @property
    def _transcribed(self) -> list[dict]:
        path = settings.PAPERS / self.paper / "reported.yaml"
        return reported(self.paper)["tables"] if path.exists() else []

    @cached_property
    def evidence(self) -> Evidence:
        """The grade of every cell, and what its base method has learned."""
        unstated = settings.unstated(self.paper, self.exhibit)
        return Evidence(self.jobs, self.paper_grid, self.records, self.names, unstated, self.base)

    def curves(self, series: str = "accuracy") -> pd.DataFrame:
        """All runs in long form, one row per run and evaluated round."""
        return frames.curves(self.records, self.names, series)

    # Effects.

    def effect(
        self, values: pd.Series, *methods: str, reported: float | pd.Series | None = None, note: str = ""
    ) -> Effect:
        """Any values by cell and seed, positive on the claimed side; ``methods`` are those whose runs they compare."""
        return Effect(values, methods or None, reported, note)

    def over(
        self, ours: str | Collection[str], bases: str | Collection[str], metric: str | None = None,
        scores: pd.DataFrame | None = None, lower_is_better: bool = False, censor: float | None = None,
        note: str = "", **where: Any,
    ) -> Effect:  # fmt: skip
        """``ours`` minus the best of ``bases``, seed by seed, in the cells ``where`` (``alpha=0.1``, ``data=[…]``).

        Either side is one method or several; the best of several is chosen on the other seeds.
        """
        scores, metric = self.scores if scores is None else scores, metric or self.metric
        values = paired(select(scores[metric], where), ours, bases, lower_is_better, censor)
        theirs = reported_gaps(self.reported, ours, bases) if metric == self.metric else pd.Series(dtype=float)
        theirs = theirs[[self._among(key, where) for key in theirs.index]]
        methods = [m for side in (ours, bases) for m in ([side] if isinstance(side, str) else side)]
        return Effect(values, tuple(methods), theirs if len(theirs) else None, note)

    def best(self, ours: str | Collection[str], among: Iterable[str] | None = None, **where: Any) -> Effect:
        """``ours`` over the best of all other methods of the page, or of those ``among``."""
        mine = [ours] if isinstance(ours, str) else list(ours)
        every = among or dict.fromkeys(key[self.names.index("method")] for key in self.jobs)
        return self.over(ours, [m for m in every if m not in mine], **where)

    def pool(self, effects: Mapping[str, Effect]) -> Effect:
        """Several effects as one, such as what a method adds to each of its bases; every one has cells of its own."""
        both = [{k: getattr(e, n) for k, e in effects.items()} for n in ("values", "reported")]
        values, theirs = (pd.concat(p, names=["of"]) if any(v is not None for v in p.values()) else None for p in both)
        return Effect(values, tuple(dict.fromkeys(m for e in effects.values() for m in e.methods)), theirs)

    def level(self, method: str, **where: Any) -> Effect:
        """Our accuracy minus the paper's, by cell and seed (for claims of the kind level)."""
        values = select(self.scores[self.metric], where | {"method": method}).droplevel("method")
        cell = [n for n in values.index.names if n != "seed"]
        keys = values.index.droplevel("seed") if len(cell) else []
        theirs = [self.reported.get((*(k if isinstance(k, tuple) else (k,)), method)) for k in keys]
        return Effect((values - pd.Series(theirs, values.index, dtype=float)).dropna(), (method,))

    def _among(self, key: tuple, where: Mapping) -> bool:
        cell = dict(zip([n for n in self.names if n not in ("method", "seed")], key, strict=False))
        return all(cell.get(n) in (v if isinstance(v, list | tuple) else [v]) for n, v in where.items())

    # What is shown.

    def table(self, by: str | None = None) -> None:
        """Our accuracies beside the paper's in one table, the best of every column marked; then what was not run.

        With ``by``, such as "data", one table for each of its values; else runs that grow (settings.begun) have one.
        """
        print(frames.describe_runs(self.records, self.names))
        ours = summary(self.scores[[self.metric]], limits=(0, 100))[self.metric]
        ran, parts = list(dict.fromkeys(key[:-1] for key in ours.index)), {}
        for cell in ran:
            part = cell[self.names.index(by)] if by else settings.GROWING * str(cell[0]).endswith("_own")
            parts.setdefault(part, []).append(cell)
        for part, cells in parts.items():
            methods = list(dict.fromkeys(key[-1] for key in ours.index if key[:-1] in cells))
            columns: dict = {("", "method"): [self.label(m) for m in methods]}
            for cell in cells:
                group = self._column(cell)
                columns[group, "here"] = [ours.get((*cell, m)) for m in methods]
                columns[group, "reported"] = [self._printed((*cell, m)) for m in methods]
            if part == "":
                columns |= self._averages(cells, methods)
            frame = pd.DataFrame({k: v for k, v in columns.items() if any(x is not None for x in v)}, dtype=object)
            show_table(frame, self.title(part) if by else part, best=list(frame.columns[1:]))
        rest = dict.fromkeys(key[:-1] for key in self.reported if key[:-1] not in ran)
        if rest:
            rows = {m: [self._printed((*cell, m)) for cell in rest] for m in {k[-1]: 0 for k in self.reported}}
            missing = pd.DataFrame(rows, index=[self._column(cell) for cell in rest], dtype=object).T
            missing.insert(0, "method", [self.label(m) for m in missing.index])
            show_table(missing, "Reported in the paper, not run here", fold=True, best=list(missing.columns[1:]))

    def _averages(self, cells: list[tuple], methods: list[str]) -> dict:
        means = self.scores[self.metric].groupby([n for n in self.names if n != "seed"], sort=False).mean()
        columns, where = {}, ("Average", "here")
        if len(cells) > 1:
            whole = {m: [means.get((*c, m)) for c in cells] for m in methods}
            columns[where] = [None if None in whole[m] else f"{sum(whole[m]) / len(cells):.1f}" for m in methods]
        if self._transcribed and self.reported:
            printed = printed_means(self.paper, self.exhibit)
            columns["Average", "reported"] = [f"{printed[m]:.2f}" if m in printed else None for m in methods]
        return columns

    def _printed(self, key: tuple) -> str | None:
        return f"{self.reported[key]:.2f}" if key in self.reported else None

    def _column(self, cell: tuple) -> str:
        return self.cell_name(dict(zip([n for n in self.names if n not in ("method", "seed")], cell, strict=False)))

    def gains(self, over: str | None = None, pairs: Iterable[tuple] = (), xlabel: str = "") -> None:
        """What each method adds to ``over`` (or the first of a pair to the second), seed by seed, beside the paper's.

        A figure, and its numbers folded; the last column has what is left in the last round alone.
        """
        methods = dict.fromkeys(key[self.names.index("method")] for key in self.jobs)
        rows = []
        for ours, base in pairs or [(m, over) for m in methods if m != over]:
            effect, end = self.over(ours, base), self.over(ours, base, "last round").values
            cell = [n for n in effect.values.index.names if n != "seed"]
            theirs = {} if effect.reported is None else effect.reported.to_dict()
            for key, part in effect.values.dropna().groupby(cell, sort=False):
                what = self._column(key), f"{self.label(ours)} over {self.label(base)}"
                last = end[part.index].mean()
                rows.append((*what, theirs.get(key), *interval(part), last))
        frame = pd.DataFrame(rows, columns=["panel", "row", "reported", "here", "low", "high", "last round"])
        order = list(dict.fromkeys(self._column(key) for key in map(self._cell, self.jobs)))
        frame = frame.astype({"reported": float}).sort_values("panel", key=lambda p: p.map(order.index), kind="stable")
        what = f"Points of accuracy over {self.label(over)}" if over else "Differences of accuracy in points"
        said = f"{what}, seed by seed: right of zero is better. Bars are 95% intervals over seeds" + (
            ", diamonds what the paper reports." if frame["reported"].notna().any() else "."
        )
        self.figure(reported_vs_ours(frame, xlabel or "points of accuracy", zero=0), said)
        if self.metric == "last round":
            frame = frame.drop(columns="last round")
        frame = frame.rename(columns={"panel": "column", "row": "difference"})
        show_table(frame.round(2).dropna(axis=1, how="all"), "The numbers behind the figure", fold=True)

    def _cell(self, key: tuple) -> tuple:
        return tuple(part for name, part in zip(self.names, key, strict=True) if name not in ("method", "seed"))

    def figure(self, figure: Figure, caption: str) -> None:
        """Display a figure with its caption, which is also its text for those who cannot see it."""
        display(figure, metadata={"image/png": {"alt": caption}})
        display({"text/html": f"<p><i>{caption}</i></p>", "text/plain": caption}, raw=True)

    # Claims.

    def claims(self, effects: Mapping[str, Effect | pd.Series] | None = None, /, **more: Effect | pd.Series) -> None:
        """The verdicts on the page's claims, from their effects by number (``C1=…``): all of claims.yaml, no others.

        A claim of another exhibit that is shown here too is ``{"figure4.C1": …}``.
        """
        whole = lambda n: f"{self.paper}.{n}" if "." in n else f"{self.paper}.{self.exhibit}.{n}"  # noqa: E731
        given = {whole(number): effect for number, effect in {**(effects or {}), **more}.items()}
        pages = dict.fromkeys([self.exhibit, *(id.split(".")[1] for id in given)])
        known = {id: claim for page in pages for id, claim in definitions(self.paper, page).items()}
        if wrong := sorted(set(given) ^ set(known)):
            have = "has no effect on this page" if wrong[0] in known else "is not in claims.yaml"
            raise FedlibError(f"Claims and effects must match one to one: {wrong[0]} {have} ({len(wrong)} such).")
        effects = {n: e if isinstance(e, Effect) else Effect(e) for n, e in given.items()}
        found = [judge(known[n], effects[n], self.evidence, self.cell_name) for n in known]
        if self.scale == "smoke":
            print("smoke scale: no verdicts")
            return
        show_claims(found, self.scale, headline(self, found))

    def notes(self, *choices: str) -> None:
        """What differs from the paper's own runs, and what it leaves open: this exhibit's choices and those named."""
        same = "Nothing that the paper states."
        show_table(differences(self), f"What the scale {self.scale} changes", empty=same)
        if "chosen" in settings.read(self.paper, "settings.yaml"):
            show_table(settings.open_choices(self.paper, self.exhibit, choices), "What the paper leaves open")


def select(scores: pd.Series | pd.DataFrame, where: Mapping) -> pd.Series | pd.DataFrame:
    """The rows whose index levels have these values, one or several of each."""
    for name, wanted in where.items():
        wanted = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
        scores = scores[scores.index.get_level_values(name).isin(wanted)]
    return scores
