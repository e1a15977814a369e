"""The old names, for pages that are not converted yet; the last of them takes this file and old_claims.py with it."""

import numpy as np
import pandas as pd
from IPython.display import display

from fedlib.workbook.frames import *  # noqa: F403
from fedlib.workbook.frames import (  # noqa: F401
    curve,
    curves,
    evenness,
    first,
    last,
    layer_kind,
    layers,
    middle,
    oscillation,
    scores,
    weights,
)
from fedlib.workbook.frames import describe_runs as settled
from fedlib.workbook.frames import probe_forms as probes  # noqa: F401
from fedlib.workbook.frames import probe_frame as measured  # noqa: F401
from fedlib.workbook.frames import probe_long as probed  # noqa: F401
from fedlib.workbook.frames import probe_means as indicators
from fedlib.workbook.old_claims import best_elsewhere, by_seed, compare, paired
from fedlib.workbook.reported import arithmetic_errors as slips  # noqa: F401
from fedlib.workbook.reported import prose_numbers as stated  # noqa: F401
from fedlib.workbook.reported import reported, reported_table  # noqa: F401
from fedlib.workbook.reported import reported_cells as told  # noqa: F401
from fedlib.workbook.settings import build_grid as runs  # noqa: F401
from fedlib.workbook.settings import columns, differences, environments, methods, seeds, setting  # noqa: F401
from fedlib.workbook.settings import open_choices as chosen
from fedlib.workbook.settings import server_grid as served  # noqa: F401
from fedlib.workbook.statistics import interval
from fedlib.workbook.tables import at as _at
from fedlib.workbook.tables import mean_text, show_table, summary  # noqa: F401


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
    display(plots.reported_vs_ours(frame, xlabel, zero=0))
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


def steadiness(exhibit: str, scores: pd.DataFrame, titles: dict, start: int = 1, where: str = "") -> list:
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


def verdicts(exhibit: str, sentences: dict, scores: pd.DataFrame, told: dict, letter: str = "") -> list:
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
