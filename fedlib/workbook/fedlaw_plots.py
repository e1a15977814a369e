"""What FedLAW's figures share: what adaptive GWS adds, learning curves and what they claim."""

from typing import Any

import numpy as np
import pandas as pd

from fedlib.workbook import frames, plots
from fedlib.workbook.claims import Effect
from fedlib.workbook.fedlaw_tables import sweep
from fedlib.workbook.page import Page, select
from fedlib.workbook.statistics import best_on_other_seeds
from fedlib.workbook.tables import at, show_table, summary


def show_gws(page: Page, x: str, xlabel: str, caption: str) -> pd.DataFrame:
    """What adaptive GWS adds to FedAvg, its gamma and its step against ``x`` (FedLAW Figures 2, 9): figure and numbers.

    Returns one row per run of GWS: ``sweep``, the gain and r, the mean step over the mean pull.
    """
    print(frames.describe_runs(page.records, page.names))
    every = sweep(page)
    gws = every.xs("gws", level="method")
    gws = gws.assign(gain=gws["accuracy"] - every["accuracy"].xs("fedavg", level="method"))
    gws = gws.assign(r=gws["step"] / gws["shrink"])
    titles = {"gain": "gain of accuracy (points)", "gamma": "learned gamma", "step": "norm of the step (log axis)"}
    long = gws.assign(step=np.log2(gws["step"])).reset_index()
    long["method"] = "gws" if x == "alpha" else long["alpha"].map(at)
    long = long.melt(list(dict.fromkeys([x, "method", "seed"])), list(titles), "quantity")
    figure = plots.dots(long, by="quantity", x=x, value="value", xlabel=xlabel, titles=titles, sharey=False)
    figure.axes[2].yaxis.set_major_formatter(lambda v, _: f"{2**v:.2g}")
    page.figure(figure, caption)
    norms = gws[["step", "shrink", "norm"]].groupby([n for n in gws.index.names if n != "seed"], sort=False)
    norms = norms.agg(lambda v: f"{v.min():.2f} to {v.max():.2f}")
    shown = summary(gws[["accuracy", "gain"]], 2).join(summary(gws[["gamma"]], 4)).join(norms)
    shown = shown.join(summary(gws[["r"]], 2)).reset_index().drop(columns="data")
    words = {"shrink": "pull", "norm": "norm of the model"}
    title = "Adaptive GWS; the three norms from the lowest seed to the highest"
    show_table(shown.rename(columns=words), title, fold=True)
    return gws


def show_rounds(page: Page) -> pd.DataFrame:
    """Learning curves of a main comparison (FedLAW Figures 15 to 17), a figure for each data set, and numbers.

    FedAvg and FedLAW have a band from the lowest to the highest seed, the others their mean alone. In runs of 50
    rounds and more all is the mean of ten rounds, and the axes are cut to what comes after the first twentieth.
    Returns one row per run: accuracy in its last round, over the last ten and the best ten in a row, roughness, rounds.
    """
    print(frames.describe_runs(page.records, page.names))
    frame = page.curves()
    frame["panel"] = frame["data"].map(page.title) + ", " + frame["alpha"].map(at)
    strong = ("fedavg", "law")
    bold = " and ".join(page.label(m) for m in strong)
    for data, row in frame.groupby("data", sort=False):
        skip = row["round"].max() // 20 if row["round"].max() >= 50 else 0
        if skip:
            apart = row.groupby(["panel", "method", "seed"])["accuracy"]
            row = row.assign(accuracy=apart.transform(lambda c: c.rolling(10, min_periods=1).mean()))
        said = f"{page.title(data)}: test accuracy by round{', means of ten rounds' * bool(skip)}"
        caption = f"{said}. {bold} with a band from the lowest to the highest seed, the others as means over seeds."
        look = {"by": "panel", "skip": skip, "strong": strong}
        page.figure(plots.learning_curves(row, **look, sharey=False), caption)
        caption = f"{page.title(data)}: FedLAW minus the others{', means of ten rounds' * bool(skip)}; the band is the"
        page.figure(plots.leads(row, ours="law", **look), f"{caption} range of its lead over {page.label(strong[0])}.")
    metrics = {"first 5": lambda c: frames.first(c, 5), "last 10": lambda c: frames.last(c, 10)}
    metrics |= {"best 10": lambda c: c.rolling(min(10, len(c))).mean().max(), "last round": lambda c: c.iloc[-1]}
    result = frames.scores(page.records, page.names, **metrics, roughness=frames.oscillation, rounds=len)
    shown = summary(result.drop(columns="rounds"), limits=(0, 100)).reset_index()
    shown = shown.assign(data=shown["data"].map(page.title), method=shown["method"].map(page.label))
    show_table(shown, "The numbers behind the figures", fold=True)
    return result


def steadiness(scores: pd.DataFrame, **where: Any) -> dict[str, Effect]:
    """What Figures 15 to 17 claim, by cell and seed, in the cells ``where``: "lead", "kept" and "steady".

    Lead: of each side that method counts which is best on the other seeds. Kept: how far FedLAW ends below its best ten
    rounds, in runs of 50 rounds and more. Steady: by how much FedAvg's curve is rougher than FedLAW's.
    """
    scores = select(scores, where)
    wide = scores["last 10"].unstack("method")
    ours = [method for method in ("law", "law_swa") if method in wide]
    lead = best_on_other_seeds(wide[ours]) - best_on_other_seeds(wide.drop(columns=ours))
    kept = (scores["last 10"] - scores["best 10"])[scores["rounds"] >= 50]
    rough = scores["roughness"].unstack("method").reindex(columns=["fedavg", "law"])
    return {
        "lead": Effect(lead),
        "kept": Effect(select(kept, {"method": "law"}).droplevel("method"), ("law",)),
        "steady": Effect(rough["fedavg"] - rough["law"], ("law", "fedavg")),
    }
