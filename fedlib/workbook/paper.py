"""What a paper's page is made of: its settings at a scale, its reported numbers, and our runs as tables.

Everything here reads ``papers/<paper>/settings.yaml``, ``papers/<paper>/reported.yaml`` or run records.
"""

import re
from functools import cache

import numpy as np
import pandas as pd
import yaml
from IPython.display import display

from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.core.registry import choose
from fedlib.core.spec import RunSpec
from fedlib.runs.partial import how_far
from fedlib.workbook.claims import Claim, best_elsewhere, by_seed, compare, interval, paired
from fedlib.workbook.page import show_table

PAPERS = ROOT / "papers"
SCALES = ("smoke", "laptop", "paper")


@cache
def _read(paper: str, name: str) -> dict:
    path = PAPERS / paper / name
    if not path.exists():
        known = ", ".join(sorted(p.parent.name for p in PAPERS.glob(f"*/{name}")))
        raise FedlibError(f"There is no {name} for the paper {paper!r}; those that have one: {known}.")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def setting(paper: str, panel: str, scale: str) -> dict:
    """The keyword arguments of ``RunSpec`` that ``paper`` fixes for ``panel``, as ``scale`` changes them."""
    choose("scale", scale, SCALES)
    settings = _read(paper, "settings.yaml")
    choose(f"panel of {paper}", panel, settings["panels"])
    changes = settings["panels"][panel]
    return settings["defaults"] | changes["paper"] | (changes[scale] or {})


def environments(paper: str) -> dict[str, dict]:
    """The conditions that ``paper`` repeats every experiment under, as further arguments of ``RunSpec``."""
    return _read(paper, "settings.yaml")["environments"]


def columns(paper: str, table: str, scale: str) -> list[tuple]:
    """The (panel, alpha) of a table that are run at ``scale``; a text is another partition.

    Smoke has laptop's where it has none of its own.
    """
    choose("scale", scale, SCALES)
    tables = _read(paper, "settings.yaml")["columns"]
    choose(f"table of {paper}", table, tables)
    chosen = tables[table].get(scale, tables[table]["laptop"])
    return [(panel, alpha) for panel, alphas in chosen.items() for alpha in alphas]


def seeds(paper: str, scale: str) -> list[int]:
    """The seeds of the paper's pages at ``scale``, where the settings name them."""
    choose("scale", scale, SCALES)
    return _read(paper, "settings.yaml")["seeds"][scale]


def methods(paper: str, scale: str, *names: str) -> dict[str, str]:
    """The written forms of these methods at ``scale``, where a scale changes what a method does at the server."""
    choose("scale", scale, SCALES)
    forms = _read(paper, "settings.yaml")["methods"]
    for name in names:
        choose(f"method of {paper}", name, forms)
    return {name: form if isinstance(form := forms[name], str) else form[scale] for name in names}


def runs(paper: str, columns, methods: dict, seeds, scale: str, vary: dict | None = None, **fill) -> dict:
    """The grid of a table: (panel, alpha, method, seed) to the run of that cell.

    ``methods`` are names and written forms; what stands there in braces is taken from ``fill``: values by a part of the
    network's name, of which the last that fits counts. ``vary`` repeats it all under changed settings, by a name that
    comes before the method in the key.
    """
    grid = {}
    for panel, alpha in columns:
        here = setting(paper, panel, scale)
        here["partition"] = alpha if isinstance(alpha, str) else f"dirichlet(alpha={alpha})"
        filled = {k: [v for part, v in f.items() if part in here["model"]][-1] for k, f in fill.items()}
        for name, change in (vary or {None: {}}).items():
            where = (panel, alpha, name) if vary else (panel, alpha)
            for method, algorithm in methods.items():
                try:
                    form = algorithm.format(**filled)
                except KeyError as blank:
                    raise FedlibError(f"{method} is {algorithm!r}: give {blank} or use served(…).") from None
                for seed in seeds:
                    grid[*where, method, seed] = RunSpec(**here | change, algorithm=form, seed=seed)
    return grid


def served(paper: str, columns, names, seeds, scale: str) -> dict:
    """``runs`` of methods that work at the server, by name: what is in braces is the column's own (``server``)."""
    work, grid = _read(paper, "settings.yaml")["server"][scale], {}
    for panel, alpha in columns:
        fill = {}
        for start, values in work.items():
            fill |= {name: {"": value} for name, value in values.items() if panel.startswith(start)}
        grid |= runs(paper, [(panel, alpha)], methods(paper, scale, *names), seeds, scale, **fill)
    return grid


def differences(paper: str, panels, scale: str) -> pd.DataFrame:
    """Every setting in which ``scale`` departs from the paper's own."""
    rows = []
    for panel in panels:
        theirs, here = setting(paper, panel, "paper"), setting(paper, panel, scale)
        for name in here:
            if here[name] != theirs.get(name):
                rows.append((panel, name, theirs.get(name, "all" if "subset" in name else "–"), here[name]))
    return pd.DataFrame(rows, columns=["panel", "setting", "paper", "here"], dtype=object)  # 10 stays 10


def chosen(paper: str, exhibit: str | None = None) -> pd.DataFrame:
    """What the paper leaves open, and what we chose; what concerns one ``exhibit``, such as figure1, comes first.

    Where an exhibit has its own choice of the same name, the paper-wide one does not hold there and is left out; null
    says that there is no choice at all.
    """
    settings = _read(paper, "settings.yaml")
    own = settings.get("chosen_for", {}).get(exhibit, {})
    choices = {name: choice for name, choice in (own | settings["chosen"] | own).items() if choice}
    return pd.DataFrame(choices.items(), columns=["left open", "our choice"])


def reported(paper: str) -> dict:
    """The numbers the paper prints, as transcribed."""
    return _read(paper, "reported.yaml")


def reported_table(paper: str, table: str) -> pd.DataFrame:
    """The measured cells of one printed table, one row per cell."""
    return pd.DataFrame(_rows(paper, table))


def _rows(paper: str, table: str) -> list[dict]:
    tables = {t["id"]: t["rows"] for t in reported(paper)["tables"]}
    choose(f"table of {paper}", table, tables)
    return tables[table]


def slips(paper: str) -> pd.DataFrame:
    """Means and gains that the paper prints and that do not follow from its own cells, to the last printed digit."""
    tables = {t["id"]: t["rows"] for t in reported(paper)["tables"]}
    rows = []
    for table in reported(paper)["tables"]:
        for printed in table["derived"]:
            where = {k: printed[k] for k in ("method", "variant", "dataset", "alpha") if k in printed}
            cells = [r for r in table["rows"] if all(r.get(k) == v for k, v in where.items())]
            found = [r["value"] for r in cells]
            if "reference" in printed:  # a method, perhaps of another table, such as "fedlaw … (Table 1)"
                base, *_, home = re.match(r"(\S+)(.*\((Table \d+)\))?", printed["reference"]).groups()
                home = home.lower().replace(" ", "") if home else table["id"]
                bases = {(r["dataset"], r["alpha"]): r["value"] for r in tables[home] if r["method"] == base}
                found = [r["value"] - bases[r["dataset"], r["alpha"]] for r in cells]
            # half a digit, halves rounded either way; a difference of two printed means carries the error of both
            if abs(np.mean(found) - printed["value"]) > (0.0101 if printed["kind"] == "mean_delta" else 0.0051):
                what = "accuracy" if "reference" not in printed else "gain"
                what = f"mean {what}" if "mean" in printed["kind"] else what
                name = ", ".join(str(v) for v in where.values() if v is not None)
                rows.append((table["label"], f"{what}: {name}", printed["value"], round(float(np.mean(found)), 4)))
    return pd.DataFrame(rows, columns=["table", "number", "printed", "from the cells"])


def stated(paper: str, figure: str | None = None) -> pd.DataFrame:
    """Numbers the paper gives in prose; with ``figure`` only those about it or about no figure in particular."""
    rows = [r for r in reported(paper)["stated_in_prose"] if figure is None or figure in r.get("figure", figure)]
    return pd.DataFrame([(r["what"], f"{r['value']} {r['unit']}") for r in rows], columns=["the paper says", "value"])


# Runs. ``records`` maps a key such as ("mnist", "fedlap", 1) to a record; ``names`` names its parts, "seed" among them.


def curve(record, series: str = "accuracy") -> pd.Series:
    """One series of a record by round; accuracy in percent."""
    values = record.accuracy if series == "accuracy" else record.curve(series)
    return pd.Series(np.asarray(values, float), index=record.series.get("round", []), name=series)


def measured(record, probe: str) -> pd.DataFrame:
    """What a probe of a run found, by round; such as ``measured(record, "spread").tau``."""
    return pd.DataFrame(record.probe(probe)).set_index("round")


def probes(spec: RunSpec, name: str) -> list[str]:
    """The written forms of a run's probes of this name, for ``record.probe``."""
    return [text for text in spec.probes.split("+") if text.partition("(")[0] == name]


def indicators(records: dict, names, probe: str) -> pd.DataFrame:
    """One row per run: what a probe found, each number's mean over the middle tenth of the rounds.

    NaN if the run diverged or has no result yet.
    """
    begun = {key: record for key, record in records.items() if not record.waiting}
    rows = [measured(record, probe).astype(float).apply(middle) for record in begun.values()]
    found = pd.DataFrame(rows, index=pd.MultiIndex.from_tuples(begun, names=names))
    kept = found[[record.status != "diverged" for record in begun.values()]]
    return kept.reindex(pd.MultiIndex.from_tuples(records, names=names))


def probed(records: dict, names, probe: str, words: dict) -> pd.DataFrame:
    """A probe's numbers in long form: one row per run, round and number of ``words``, which gives each its name."""
    frames = []
    for key, record in ((key, record) for key, record in records.items() if not record.waiting):
        found = measured(record, probe)[list(words)].astype(float).rename(columns=words).reset_index()
        frames.append(found.melt("round", var_name="quantity").assign(**dict(zip(names, key, strict=True))))
    columns = [*names, "quantity", "round", "value"]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def curves(records: dict, names, series: str = "accuracy") -> pd.DataFrame:
    """All runs in long form: one row per run and evaluated round. Runs that do not log ``series`` are left out."""
    frames = [
        curve(record, series).rename_axis("round").reset_index().assign(**dict(zip(names, key, strict=True)))
        for key, record in records.items()
        if series in record.series
    ]
    columns = [*names, "round", series]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def layers(records: dict, names, series: str = "gamma") -> pd.DataFrame:
    """What runs log of every layer, in long form: one row per run, layer and round, the classifier last."""
    frames = []
    for key, record in records.items():
        found = [name for name in record.series if name.startswith(f"{series}/")]
        for name in sorted(found, key=lambda n: ("classifier" in n, "/norm" in n, "/embedding" not in n, n)):
            long = curve(record, name).rename(series).rename_axis("round").reset_index()
            frames.append(long.assign(layer=name.removeprefix(f"{series}/"), **dict(zip(names, key, strict=True))))
    columns = [*names, "layer", "round", series]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def weights(records: dict, names) -> pd.DataFrame:
    """The clients' ``weight`` where runs log it, beside their share of the data (``size``) and an ``even`` one.

    In long form: one row per run, round and client.
    """
    long = layers(records, names, "lambda").rename(columns={"layer": "client", "lambda": "weight"}).dropna()
    long["client"] = long["client"].astype(int)
    long = long.sort_values([*names, "round", "client"], kind="stable", ignore_index=True)
    held = {key: np.array(record.json["partition"]["sizes"], float) for key, record in records.items()}
    long["size"] = [held[*key][k] for *key, k in long[[*names, "client"]].itertuples(index=False)]
    cohort = long.groupby([*names, "round"], sort=False)["size"]
    return long.assign(size=long["size"] / cohort.transform("sum"), even=1 / cohort.transform("size"))


def scores(records: dict, names, series: str = "accuracy", **metrics) -> pd.DataFrame:
    """One row per run, one column per metric (a function of its curve); all NaN if it diverged or has no result yet."""
    rows = []
    for key, record in records.items():
        if series in record.series or record.waiting:
            ok = record.status != "diverged" and not record.waiting
            values = {name: f(curve(record, series)) if ok else np.nan for name, f in metrics.items()}
            rows.append(dict(zip(names, key, strict=True)) | values)
    return pd.DataFrame(rows, columns=[*names, *metrics]).set_index(list(names))


def evenness(records: dict, names) -> pd.DataFrame:
    """One row per split (a measure class_counts): entropy of a client's classes, how many it has, how sizes differ."""
    from fedlib.probes.updates import entropy

    rows = []
    for key, record in records.items():
        held = pd.DataFrame(record.result["counts"])
        sizes = held.sum(axis=1)
        even = held[sizes > 0].apply(lambda c: entropy((c / c.sum()).to_numpy()), axis=1).mean()
        spread = {"smallest": sizes.min(), "largest": sizes.max(), "spread of sizes": sizes.std() / sizes.mean()}
        where = dict(zip(names, key, strict=True))
        rows.append(where | {"entropy": even, "classes": (held > 0).sum(axis=1).mean()} | spread)
    return pd.DataFrame(rows).set_index(list(names))


def summary(scores: pd.DataFrame, digits: int = 1) -> pd.DataFrame:
    """Mean ± half-width of the 95% t-interval over seeds; "–" where no run has a value (a target never reached)."""
    groups = [n for n in scores.index.names if n != "seed"]
    return scores.groupby(groups, sort=False).agg(lambda values: mean_text(values, digits))


def mean_text(values, digits: int = 1) -> str:
    values = np.asarray(values, float)
    reached = values[~np.isnan(values)]
    if not len(reached):
        return "–"
    mean, low, _ = interval(reached)
    text = f"{mean:.{digits}f}" + (f" ± {mean - low:.{digits}f}" if len(reached) > 1 else "")
    return text if len(reached) == len(values) else f"{text} (in {len(reached)} of {len(values)})"


def settled(records: dict, names) -> str:
    """Sentences on what the page rests on: how many runs, which seeds, what data, what diverged or is half done."""
    at = list(names).index("seed")
    cells: dict = {}
    for key in records:
        cells.setdefault(key[:at] + key[at + 1 :], []).append(key[at])
    kinds = {tuple(sorted(seeds)) for seeds in cells.values()}
    said = " or ".join(", ".join(map(str, kind)) for kind in sorted(kinds))
    diverged = sum(r.status == "diverged" for r in records.values())
    specs = [r.spec for r in records.values()]
    data = dict.fromkeys(s.dataset + (f" (first {s.subset:,} {_kind(s.dataset)})" if s.subset else "") for s in specs)
    text = f"{len(records)} runs in {len(cells)} cells, each with seeds {said}. Data: {', '.join(data)}."
    text += f" {diverged} diverged and count as unmeasured." if diverged else ""
    return " ".join(filter(None, (text, how_far(records.values()))))


# Tables of accuracy: rows are methods, columns are (data, alpha). ``labels`` names the methods in the order of the
# rows, ``titles`` the data sets; ``told`` is what the paper printed, by (data, alpha, method).


def told(paper: str, table: str, cell) -> dict:
    """The cells of a printed table under our names: ``cell`` makes (data, alpha, method) of a row as transcribed."""
    return {cell(row): row["value"] for row in _rows(paper, table)}


def show_accuracy(records: dict, names, told: dict, labels: dict, titles: dict) -> pd.DataFrame:
    """Our accuracies beside the paper's, a table for each data set, then what the paper has and we did not run.

    Returns two scores of every run: the mean over its last ten rounds, which is shown, and its last round.
    """
    result = scores(records, names, **{"last 10": lambda c: last(c, 10), "last round": lambda c: c.iloc[-1]})
    print(settled(records, names))
    ours = summary(result[["last 10"]])["last 10"]
    ran = dict.fromkeys(key[:2] for key in ours.index)
    for data in dict.fromkeys(data for data, _ in ran):
        frame = {"method": list(labels.values())}
        for alpha in (alpha for where, alpha in ran if where == data):
            frame[f"{_at(alpha)}, here"] = [ours.get((data, alpha, m), "–") for m in labels]
            frame[f"{_at(alpha)}, reported"] = [told.get((data, alpha, m), "–") for m in labels]
        show_table(pd.DataFrame(frame), titles[data])
    rest = dict.fromkeys(key[:2] for key in told if key[:2] not in ran)
    frame = {f"{titles.get(d, d)}, {_at(a)}": [told.get((d, a, m), "–") for m in labels] for d, a in rest}
    if rest:
        show_table(pd.DataFrame({"method": list(labels.values())} | frame), "Reported, not run here")
    return result


def show_gains(scores: pd.DataFrame, told: dict, pairs, labels: dict, titles: dict, xlabel: str) -> None:
    """What each method of ``pairs`` adds to its base, seed by seed, as a figure beside the paper's and as numbers.

    The last column has what it adds in the last round alone: in short runs the last ten reward who is only faster.
    """
    from fedlib.workbook import plots

    rows = []
    for ours, base in pairs:
        gains = scores.xs(ours, level="method") - scores.xs(base, level="method")
        for (data, alpha), part in gains.dropna().groupby(["data", "alpha"], sort=False):
            theirs = told.get((data, alpha, ours), np.nan) - told.get((data, alpha, base), np.nan)
            what = f"{titles[data]}, {_at(alpha)}", f"{labels[ours]} over {labels[base]}"
            rows.append((*what, theirs, *interval(part["last 10"]), part["last round"].mean()))
    frame = pd.DataFrame(rows, columns=["panel", "row", "reported", "here", "low", "high", "last round"])
    frame = frame.sort_values("panel", kind="stable")
    display(plots.beside(frame, xlabel, zero=0))
    show_table(frame.round(2))


def over_base(scores: pd.Series, told: dict, base: str, titles: dict) -> pd.DataFrame:
    """What every method adds to ``base``, ours by seed and the paper's, one row each: for ``plots.dots`` by alpha."""
    gains = scores.unstack("method").pipe(lambda wide: wide.sub(wide[base], axis=0)).drop(columns=base)
    methods = [m for m in dict.fromkeys(scores.index.get_level_values("method")) if m != base]
    rows = [
        (_at(alpha), f"{titles[data]}, here", m, seed, line[m])
        for (data, alpha, seed), line in gains.iterrows()
        for m in methods
    ]
    alphas = gains.index.unique("alpha")
    rows += [
        (_at(alpha), f"{titles[data]}, reported", m, 0, value - told[data, alpha, base])
        for (data, alpha, m), value in told.items()
        if alpha in alphas and m in methods
    ]
    return pd.DataFrame(rows, columns=["alpha", "method", "option", "seed", "gain"])


def sweep(records: dict, names) -> pd.DataFrame:
    """One row per run: accuracy (last ten rounds) and the probe balance's numbers in the middle of training."""
    return scores(records, names, accuracy=lambda c: last(c, 10)).join(indicators(records, names, "balance"))


def show_gws(records: dict, names, x: str, xlabel: str) -> pd.DataFrame:
    """What adaptive GWS adds to FedAvg, its gamma and its step against ``x`` (FedLAW Figures 2, 9): figure and numbers.

    Returns one row per run of GWS: ``sweep``, the gain and r, the mean step over the mean pull.
    """
    from fedlib.workbook import plots

    print(settled(records, names))
    every = sweep(records, names)
    gws = every.xs("gws", level="method")
    gws = gws.assign(gain=gws["accuracy"] - every["accuracy"].xs("fedavg", level="method"))
    gws = gws.assign(r=gws["step"] / gws["shrink"])
    titles = {"gain": "gain of accuracy (points)", "gamma": "learned gamma", "step": "norm of the step (log axis)"}
    long = gws.assign(step=np.log2(gws["step"])).reset_index()
    long["method"] = "gws" if x == "alpha" else long["alpha"].map(_at)
    long = long.melt(list(dict.fromkeys([x, "method", "seed"])), list(titles), "quantity")
    figure = plots.dots(long, by="quantity", x=x, value="value", xlabel=xlabel, titles=titles, sharey=False)
    figure.axes[-1].yaxis.set_major_formatter(lambda v, _: f"{2**v:.2g}")
    display(figure)
    norms = gws[["step", "shrink", "norm"]].groupby([n for n in gws.index.names if n != "seed"], sort=False)
    norms = norms.agg(lambda v: f"{v.min():.2f} to {v.max():.2f}")
    shown = summary(gws[["accuracy", "gain"]], 2).join(summary(gws[["gamma"]], 4)).join(norms)
    shown = shown.join(summary(gws[["r"]], 2)).reset_index().drop(columns="data")
    words = {"shrink": "pull", "norm": "norm of the model"}
    show_table(shown.rename(columns=words), "Adaptive GWS; the three norms from the lowest seed to the highest")
    return gws


def show_sweep(records: dict, names, told: dict, xlabel: str) -> pd.DataFrame:
    """FedAvg, adaptive GWS and its gamma against a varied setting (FedLAW Tables 2, 10); returns ``sweep``.

    ``names`` has "alpha", "level" (text), "method" and "seed"; ``told`` is the paper's, by (alpha, level, quantity).
    """
    from fedlib.workbook import plots

    print(settled(records, names))
    result = sweep(records, names)
    text = summary(result[["accuracy"]]).join(summary(result[["gamma"]], 4))
    ran = dict.fromkeys(result.index.get_level_values("alpha"))
    levels = sorted({level for _, level, _ in told} | set(result.index.get_level_values("level")), key=float)
    quantities = {"FedAvg": ("fedavg", "accuracy"), "GWS": ("gws", "accuracy"), "gamma": ("gws", "gamma")}
    for alpha in ran:
        rows = []
        for quantity, (method, column) in quantities.items():
            mine = text[column].xs((alpha, method), level=("alpha", "method")).droplevel("data")
            rows.append([f"{quantity}, here", *(mine.get(level) for level in levels)])
            rows.append([f"{quantity}, reported", *(told.get((alpha, level, quantity)) for level in levels)])
        show_table(pd.DataFrame(rows, columns=[xlabel, *levels]), _at(alpha))
    long = result.reset_index()
    at = long["alpha"].map(_at)
    learned = long["method"] == "gws"
    parts = [long.assign(panel="accuracy (%), " + at, value=long["accuracy"])]
    parts.append(long.assign(panel="learned gamma", value=long["gamma"], method=at)[learned])
    display(plots.dots(pd.concat(parts), by="panel", x="level", value="value", xlabel=xlabel, sharey=False))
    return result


def show_rounds(records: dict, names, titles: dict) -> pd.DataFrame:
    """Learning curves of a main comparison (FedLAW Figures 15 to 17), a row of panels for each data set, and numbers.

    In runs of 50 rounds and more the axes are cut to what comes after the first twentieth, and leads are taken between
    means of ten rounds.

    Returns one row per run: accuracy in its last round, over the last ten and the best ten in a row, and roughness.
    """
    from fedlib.workbook import plots

    print(settled(records, names))
    frame = curves(records, names).replace({"method": {"law_swa": "FedLAW with SWA"}})
    frame["panel"] = frame["data"].map(titles) + ", " + frame["alpha"].map(_at)
    for _, row in frame.groupby("data", sort=False):
        skip = row["round"].max() // 20 if row["round"].max() >= 50 else 0
        display(plots.learning_curves(row, by="panel", sharey=not skip, skip=skip))
        if skip:
            apart = row.groupby(["panel", "method", "seed"])["accuracy"]
            row = row.assign(accuracy=apart.transform(lambda c: c.rolling(10, min_periods=1).mean()))
        display(plots.leads(row, by="panel", ours="law", skip=skip))
    best = {"last 10": lambda c: last(c, 10), "best 10": lambda c: c.rolling(min(10, len(c))).mean().max()}
    best |= {"last round": lambda c: c.iloc[-1], "roughness": oscillation, "rounds": len}
    result = scores(records, names, **{"first 5": lambda c: first(c, 5)}, **best)
    shown = summary(result.drop(columns="rounds")).reset_index()
    show_table(shown.replace({"data": titles}), "The numbers behind the figure")
    return result


def steadiness(exhibit: str, scores: pd.DataFrame, titles: dict, start: int = 1, where: str = "") -> list[Claim]:
    """The claims of FedLAW's Figures 15 to 17, numbered from ``start``, about the panels ``where``.

    Of each side that method counts which is best on the other seeds. A late decline needs 50 rounds to show in.
    """
    wide = scores["last 10"].unstack("method")
    ours = [method for method in ("law", "law_swa") if method in wide]
    lead = best_elsewhere(wide[ours]) - best_elsewhere(wide.drop(columns=ours))
    kept = (scores["last 10"] - scores["best 10"])[scores["rounds"] >= 50]
    rough = scores["roughness"].unstack("method")
    steady = "FedLAW's curve is steadier than FedAvg's (standard deviation of its round-to-round differences)"
    ahead = "Over the last ten rounds the better FedLAW is ahead of the best baseline, on average over the panels"
    claims = {f"C{start}": (f"{ahead}{where}.", lead)}
    for letter, ((data, alpha), part) in zip("abcd", lead.groupby(["data", "alpha"], sort=False), strict=False):
        claims[f"C{start}{letter}"] = f"… {titles[data]}, {_at(alpha)}.", part
    within = "FedLAW ends within a point of its best ten rounds (in runs of 50 rounds and more)"
    claims[f"C{start + 1}"] = f"{within}{where}.", kept[kept.index.get_level_values("method") == "law"] + 1
    claims[f"C{start + 2}"] = f"{steady}{where}.", rough["fedavg"] - rough["law"]
    return [compare(f"{exhibit}.{id}", text, by_seed(effect)) for id, (text, effect) in claims.items()]


def show_learned(records: dict, names, labels: dict, titles: dict) -> None:
    """What the runs of FedLAW learn: gamma in the middle of training, and the weight lambda takes from the data sizes.

    The latter is half the sum of |lambda_k - size_k|, mean over the rounds: 0 is FedAvg, 1 is as far as it can be.
    """
    gamma = scores(records, names, "gamma", gamma=middle)
    lam = weights(records, names)
    lam["weight moved"] = (lam["weight"] - lam["size"]).abs() / 2
    moved = lam.groupby([*names, "round"], sort=False)["weight moved"].sum().groupby(list(names), sort=False).mean()
    shown = summary(gamma.join(moved), 3).reset_index()
    shown[names[1]] = shown[names[1]].map(_at)
    show_table(shown.replace({names[0]: titles, "method": labels}), "What FedLAW learns")


def gap(told: dict, ours: str, base: str, columns=None) -> float | None:
    """How far ``ours`` is above ``base`` in the paper, on average over the ``columns`` that have both (None: all)."""
    where = [key[:2] for key in told if key[2] == ours and (*key[:2], base) in told]
    gaps = [told[*at, ours] - told[*at, base] for at in where if columns is None or at in columns]
    return round(float(np.mean(gaps)), 2) if gaps else None


def lead(told: dict, ours: str, others, columns) -> float | None:
    """How far ``ours`` is above the best of ``others`` in the paper, on average over the ``columns`` that it has."""
    where = [at for at in columns if all((*at, method) in told for method in (ours, *others))]
    leads = [told[*at, ours] - max(told[*at, other] for other in others) for at in where]
    return round(float(np.mean(leads)), 2) if leads else None


def verdicts(exhibit: str, sentences: dict, scores: pd.DataFrame, told: dict, letter: str = "") -> list[Claim]:
    """A claim for every sentence, by the (ours, base) whose accuracy it compares: C1, C2, … and a ``letter``.

    The reported effect is that of the columns run here; one of other data sets is a remark and decides nothing.
    """
    ran, claims = {key[:2] for key in scores.index}, []
    for number, ((ours, base), text) in enumerate(sentences.items(), 1):
        theirs, elsewhere = gap(told, ours, base, ran), gap(told, ours, base)
        note = f"the paper has {elsewhere:+g}, on other data" if theirs is None and elsewhere is not None else ""
        found = paired(scores, "last 10", [(ours, base)])
        claims.append(compare(f"{exhibit}.C{number}{letter}", text, found, reported=theirs, note=note))
    return claims


def show_setting(paper: str, exhibit: str, panels, scale: str) -> None:
    """What differs from the paper, and what the paper leaves open."""
    same = "Nothing: this scale is the paper's own setting."
    show_table(differences(paper, dict.fromkeys(panels), scale), f"What the scale {scale} changes", empty=same)
    show_table(chosen(paper, exhibit), "What the paper leaves open")


def _at(alpha) -> str:
    """A column's partition: its alpha, or the name of another."""
    return alpha if isinstance(alpha, str) else f"alpha {alpha:g}"


def _kind(dataset: str) -> str:
    from fedlib.data import DATASETS

    return "images" if len(DATASETS.make(dataset).shape) == 3 else "texts"


KINDS = {  # by the last words of a layer's name
    "attention": r"attention\.(qkv|out)",
    "mlp": r"mlp\.fc\d",  # of a transformer
    "norm": r"bn\d*|norm",
    "conv": r"conv\d*",
    "linear": r"fc\d|classifier",
    "embedding": r"embedding|patch",
    "lstm": r"lstm",
}


def layer_kind(name: str) -> str:
    """What sort of layer a series such as ``gamma/blocks.0.mlp.fc1`` is about (FedLWS Table 12)."""
    return next(kind for kind, ending in KINDS.items() if re.search(rf"(^|[./])({ending})$", name))


# Metrics of a curve (a Series by round).


def at(curve: pd.Series, round: int) -> float:
    """The value at a round, NaN if the run is shorter."""
    return curve.get(round, np.nan)


def first(curve: pd.Series, rounds: int) -> float:
    """Mean over the first ``rounds`` rounds."""
    return curve[curve.index <= rounds].mean()


def last(curve: pd.Series, evaluations: int) -> float:
    """Mean over the last evaluations."""
    return curve.iloc[-evaluations:].mean()


def middle(curve: pd.Series) -> float:
    """Mean over the middle tenth of the rounds: 90 to 110 of 200, where FedLAW reads its indicators."""
    end = curve.index.max()
    return curve[(curve.index >= 9 * end // 20) & (curve.index <= -(-11 * end // 20))].mean()


def phase(values: pd.Series, late: bool) -> pd.Series:
    """Every run's mean over the first or the last fifth of its rounds; ``values`` has "round" among its levels."""
    run = [name for name in values.index.names if name != "round"]
    done = values.index.get_level_values("round").to_series(index=values.index)
    end = done.groupby(run).transform("max")
    part = values[done > 0.8 * end] if late else values[done <= np.maximum(1, 0.2 * end)]
    return part.groupby(run, sort=False).mean()


def halvings(values: pd.Series) -> pd.Series:
    """How often a quantity halves from the first fifth of a run's rounds to the last: once from 0.04 to 0.02."""
    return np.log2(phase(values, late=False) / phase(values, late=True))


def oscillation(curve: pd.Series) -> float:
    """Standard deviation of the first differences: how much a curve jumps from round to round."""
    return curve.diff().std()


def rounds_to(curve: pd.Series, target: float) -> float:
    """The first round at which the curve reaches ``target``; NaN if it never does."""
    reached = curve.index[curve >= target]
    return float(reached[0]) if len(reached) else np.nan
