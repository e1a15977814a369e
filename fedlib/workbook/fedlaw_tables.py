"""What several of FedLAW's tables show besides accuracy: what is learned, what a factor adds, a varied setting."""

from collections.abc import Collection

import pandas as pd

from fedlib.data import DATASETS
from fedlib.data.proxy import PROXIES
from fedlib.workbook import frames, plots
from fedlib.workbook.page import Page
from fedlib.workbook.reported import reported_rows
from fedlib.workbook.tables import at, show_table, summary


def show_learned(page: Page) -> None:
    """What the runs of FedLAW learn: gamma in the middle of training, and the weight lambda takes from the data sizes.

    The latter is half the sum of |lambda_k - size_k|, mean over the rounds: 0 is FedAvg, 1 is as far as it can be.
    """
    names = list(page.names)
    gamma = frames.scores(page.records, names, "gamma", gamma=frames.middle)
    lam = frames.weights(page.records, names)
    lam["weight moved"] = (lam["weight"] - lam["size"]).abs() / 2
    moved = lam.groupby([*names, "round"], sort=False)["weight moved"].sum().groupby(names, sort=False).mean()
    shown = summary(gamma.join(moved), 3).reset_index()
    shown = shown.assign(data=shown["data"].map(page.title), method=shown["method"].map(page.label))
    show_table(shown.assign(alpha=shown["alpha"].map(at)), "What FedLAW learns", fold=True)


def show_proxies(page: Page) -> None:
    """How many images of each class the server's proxy sets have."""
    for data, text in dict.fromkeys((spec.dataset, spec.proxy) for spec in page.jobs.values()):
        counts = PROXIES.make(text).counts(len(DATASETS.make(data).class_names))
        print(f"{page.title(data)}, {text}: proxy images of each class {counts.tolist()}")


def show_loudest(page: Page, looked: Collection[str]) -> None:
    """FedDF's runs on the panels ``looked``: the loudest client up to the round in which the network dies, if it does.

    Dead is a network of which fewer than one feature in twenty is above zero (the probe ensemble).
    """
    rows = []
    for (data, alpha, method, seed), record in page.records.items():
        if method == "feddf" and data in looked:
            seen = frames.probe_frame(record, "ensemble")
            dead = seen.index[seen["active"] < 0.05]
            seen = seen.loc[: dead[0]] if len(dead) else seen
            number = seen["loudest"].idxmax()
            loud = seen.loc[number]
            row = {"data": page.title(data), "alpha": f"{alpha:g}", "seed": seed, "round": number}
            row |= {"its classes": int(loud["holds"]), "times as loud": f"{loud['loudest']:.0f}"}
            shares = {"one answer": "one_answer", "logits": "logits", "probabilities": "probabilities"}
            row |= {name: f"{100 * loud[column]:.0f}%" for name, column in shares.items()}
            row |= {"dead from round": dead[0] if len(dead) else "–", "at the end": f"{record.accuracy[-1]:.1f}%"}
            rows.append(row)
    show_table(pd.DataFrame(rows), "FedDF: the loudest client, what the clients say together, and how it ends")


def show_factors(page: Page, caption: str) -> None:
    """What every fixed gamma adds to gamma 1, by alpha: ours seed by seed, the paper's networks as printed."""
    scores = page.scores[page.metric].unstack("method", sort=False)
    gains = scores.drop(columns=page.base).sub(scores[page.base], axis=0).stack(future_stack=True)
    rows = [(at(a), f"{page.title(d)}, here", m, s, gain) for (d, a, s, m), gain in gains.items()]
    alphas = scores.index.unique("alpha")
    for (data, alpha, method), value in page.reported.items():
        if alpha in alphas and method != page.base:
            gain = value - page.reported[data, alpha, page.base]
            rows.append((at(alpha), f"{page.title(data)}, reported", method, 0, gain))
    frame = pd.DataFrame(rows, columns=["alpha", "method", "gamma", "seed", "gain"])
    look = {"ylabel": "points over gamma 1", "xlabel": "gamma", "zero": 0, "sharey": False}
    page.figure(plots.dots(frame, by="alpha", x="gamma", value="gain", **look), caption)
    shown = summary(frame.set_index(["alpha", "method", "gamma", "seed"]), 2)["gain"].unstack("gamma", sort=False)
    show_table(shown.reset_index(), "The numbers behind the figure", fold=True)


def sweep(page: Page) -> pd.DataFrame:
    """One row per run: accuracy (last ten rounds) and the probe balance's numbers in the middle of training."""
    found = page.scores[["last 10"]].rename(columns={"last 10": "accuracy"})
    return found.join(frames.probe_means(page.records, page.names, "balance"))


def reported_sweep(page: Page, field: str) -> dict[tuple, float]:
    """The paper's numbers by (alpha, level, quantity), the quantity being fedavg, gws or gamma."""
    rows = reported_rows(page.paper, page.exhibit)
    name = lambda row: "gamma" if row.get("metric") == "gamma" else row["method"].removeprefix("adaptive_")  # noqa: E731
    return {(row["alpha"], f"{row[field]:g}", name(row)): row["value"] for row in rows}


def show_sweep(page: Page, theirs: dict, xlabel: str, caption: str) -> None:
    """FedAvg, adaptive GWS and its gamma against a varied setting (Tables 2, 10): tables by alpha and a figure."""
    print(frames.describe_runs(page.records, page.names))
    result = sweep(page)
    text = summary(result[["accuracy"]]).join(summary(result[["gamma"]], 4))
    levels = sorted({level for _, level, _ in theirs} | set(result.index.unique("level")), key=float)
    for alpha in result.index.unique("alpha"):
        rows = []
        for quantity in ("fedavg", "gws", "gamma"):
            method, column = ("gws", "gamma") if quantity == "gamma" else (quantity, "accuracy")
            mine = text[column].xs((alpha, method), level=("alpha", "method")).droplevel("data")
            rows.append([f"{page.label(quantity)}, here", *(mine.get(level) for level in levels)])
            told = [theirs.get((alpha, level, quantity)) for level in levels]
            rows.append([f"{page.label(quantity)}, reported", *told])
        show_table(pd.DataFrame(rows, columns=[xlabel, *levels], dtype=object), at(alpha))
    long = result.reset_index()
    where, learned = long["alpha"].map(at), long["method"] == "gws"
    parts = [long.assign(panel="accuracy (%), " + where, value=long["accuracy"])]
    parts.append(long.assign(panel="learned gamma", value=long["gamma"], method=where)[learned])
    figure = plots.dots(pd.concat(parts), by="panel", x="level", value="value", xlabel=xlabel, sharey=False)
    page.figure(figure, caption)


def widths(values: pd.Series) -> pd.Series:
    """The largest minus the smallest value over the levels of a sweep."""
    wide = values.unstack("level")
    return wide.max(axis=1) - wide.min(axis=1)
