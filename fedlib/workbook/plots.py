"""Figures with one look: colour-blind-safe, and a method keeps its colour, marker and line everywhere."""

import textwrap
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator
from numpy.typing import ArrayLike

from fedlib.core.errors import FedlibError
from fedlib.core.registry import parse
from fedlib.workbook.settings import names
from fedlib.workbook.statistics import interval

PALETTE = sns.color_palette(  # every colour at least 3:1 on white, and told apart by the colour-blind in this order
    "#0173b2 #b87300 #02865f #d55e00 #a8509a #8a5a2b #aa3377 #707070 #6b6b00 #2f8fc4 #222222 #332288 #882255".split()
)
MARKERS, LINES = "osD^vPX<>*", ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))


def style(method: str) -> dict:
    """Label, colour, marker and line of a method's written form. Added modules change the line, never the colour."""
    parts = parse(method.lower())
    name = parts[0][0]
    code = zlib.crc32(name.encode())  # a method not listed above still looks the same on every page
    known = names()["methods"] | names()["variants"]
    known |= {f"fed{method}": look for method, look in known.items() if f"fed{method}" not in known}  # fedawa is awa
    _, colour, marker, line = known.get(name, ("", code % 10, code // 10 % 10, code // 100 % 4))
    if len(parts) > 1:
        line = (line + 1) % len(LINES)
    labels = []
    for part, values in parts:
        inside = ", ".join(f"{k}={v}" for k, v in values.items())
        labels.append(known.get(part, (part,))[0] + (f" ({inside})" if inside else ""))
    return {"label": " + ".join(labels), "color": PALETTE[colour], "marker": MARKERS[marker], "linestyle": LINES[line]}


def style_or_default(name: str, place: int) -> dict:
    """``style`` of a method; of anything else, such as "layer-wise", the look of its place in the figure."""
    variants = {label: variant for variant, (label, *_) in names()["variants"].items()}
    try:
        return style(variants.get(name, name))
    except FedlibError:
        n = place % 10
        return {"label": name, "color": PALETTE[n], "marker": MARKERS[n], "linestyle": LINES[n % len(LINES)]}


def panels(count: int, height: float = 3.7, width: float = 4.6, ylabel: str = "", **kw: Any) -> tuple[Figure, list]:
    """Axes in the common look, two in a row. The figure is closed, so that a cell shows it once: by returning it."""
    rows, columns = -(-count // 2), min(count, 2)
    with sns.axes_style("whitegrid", {"grid.color": ".9", "axes.edgecolor": ".4"}), sns.plotting_context("notebook"):
        size = (width * columns, height * rows)
        figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **kw)
    plt.close(figure)
    figure.get_layout_engine().set(hspace=0.08 if rows > 1 else 0.02)  # a title is not a label of the row above
    sns.despine(figure)
    for axis in axes.flat[count:]:
        axis.remove()
    for axis in axes[:, 0]:
        axis.set_ylabel(ylabel)
    return figure, list(axes.flat[:count])


def nothing() -> Figure:
    """In the place of a figure whose runs have no result yet."""
    figure, (axis,) = panels(1, height=1)
    axis.set_axis_off()
    axis.text(0.5, 0.5, "no result yet", ha="center", va="center", color=".4")
    return figure


def learning_curves(
    frame: pd.DataFrame,
    by: str,
    value: str = "accuracy",
    ylabel: str = "test accuracy (%)",
    titles: Mapping[str, str] | None = None,
    stated: Sequence[tuple[str, int, float]] = (),
    sharey: bool = True,
    x: str = "round",
    xlabel: str = "communication round",
    skip: int = 0,
    strong: Sequence[str] | None = None,
) -> Figure:
    """One panel per ``by``: per method the mean over seeds, their range as a band and each seed as a thin line.

    Where ``strong`` names methods, all others are thin lines of their means alone, so that many can be told apart.

    After ``skip`` rounds everything is in sight; what lies lower or higher before is cut off, so that the rest can be
    told apart.

    ``frame`` is what ``frames.curves`` returns, or has another column ``x``. ``stated`` are (panel, round, level) the
    paper gives in prose, drawn as dotted lines: not our measurement.
    """
    groups = list(dict.fromkeys(frame[by]))
    if not groups:
        return nothing()
    figure, axes = panels(len(groups), ylabel=ylabel, sharey=sharey)
    for axis, group in zip(axes, groups, strict=True):
        methods = frame[frame[by] == group].groupby("method", sort=False)
        for place, (method, runs) in enumerate(methods):
            wide = runs.pivot(index=x, columns="seed", values=value)
            look = style_or_default(method, place)
            if strong is None or method in strong:
                _band(axis, wide, look, place / len(methods))
            else:
                axis.plot(wide.index, wide.mean(axis=1), **look | {"marker": ""}, linewidth=1.3, zorder=1.5)
        for panel, at_round, level in stated:
            if panel == group and at_round <= frame["round"].max():
                axis.axhline(level, color=".25", linestyle=":", linewidth=1.4, zorder=1)
                axis.axvline(at_round, color=".25", linestyle=":", linewidth=1.4, zorder=1, label="stated in the paper")
        axis.set(title=(titles or {}).get(group, group), xlabel=xlabel)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=x == "round"))
        axis.margins(x=0.02)
        if skip:
            seen = frame.loc[((frame[by] == group) | sharey) & (frame[x] > skip), value]
            room = 0.05 * (seen.max() - seen.min())
            axis.set_ylim(seen.min() - room, seen.max() + room)
    legend(figure, axes)
    return figure


def leads(
    frame: pd.DataFrame, by: str, ours: str, titles: Mapping[str, str] | None = None, skip: int = 0,
    strong: Sequence[str] | None = None,
) -> Figure:  # fmt: skip
    """``ours`` minus each other method, seed by seed: what curves that lie on each other hide."""
    wide = frame.pivot(index=[by, "seed", "round"], columns="method", values="accuracy")
    if ours not in wide or wide.notna().sum(axis=1).max() < 2:
        return nothing()
    lead = wide.drop(columns=ours).rsub(wide[ours], axis=0)[[m for m in frame["method"].unique() if m != ours]]
    long = lead.melt(ignore_index=False, value_name="lead").reset_index().dropna(subset="lead")
    long[by] = pd.Categorical(long[by], frame[by].unique())  # the order of the panels above
    label = f"lead of {style(ours)['label']} (points)"
    long, look = long.sort_values(by, kind="stable"), {"sharey": False, "skip": skip, "strong": strong}
    figure = learning_curves(long, by, "lead", label, titles, **look)
    for axis in figure.axes:
        axis.axhline(0, color=".25", linewidth=1.2, zorder=1)
    for text in figure.legends[0].get_texts():
        text.set_text(f"over {text.get_text()}")
    return figure


def _band(axis: Axes, runs: pd.DataFrame, look: dict, phase: float) -> None:
    """``runs``: rounds down, seeds across. ``phase`` staggers the markers, so that equal curves show them all."""
    color, rounds = look["color"], runs.index
    axis.plot(rounds, runs, color=color, linewidth=0.6, alpha=0.35)
    axis.fill_between(rounds, runs.min(axis=1), runs.max(axis=1), color=color, alpha=0.12, linewidth=0)
    every = max(1, len(rounds) // 6)
    marks = {"markevery": (int(phase * every), every), "markersize": 7, "markeredgecolor": "white"}
    axis.plot(rounds, runs.mean(axis=1), **look, **marks, linewidth=2.2)


def legend(figure: Figure, axes: Iterable[Axes]) -> None:
    """One legend for all panels, below them."""
    handles = {label: h for axis in axes for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    place = {"loc": "outside lower center", "ncols": min(len(handles), 5), "frameon": False, "handlelength": 3}
    figure.legend(handles.values(), handles.keys(), **place)


def partition_bubbles(counts: ArrayLike | dict[str, ArrayLike]) -> Figure:
    """Who holds what: clients across, classes down, area by number of samples. One split, or several by title."""
    splits = {name: np.asarray(c) for name, c in (counts if isinstance(counts, dict) else {"": counts}).items()}
    clients, classes = next(iter(splits.values())).shape
    size = {"width": min(14, 3 + 0.3 * clients) / len(splits) ** 0.5, "height": 1.5 + 0.3 * classes}
    figure, axes = panels(len(splits), **size, ylabel="class", sharey=True)
    for axis, (name, held) in zip(axes, splits.items(), strict=True):
        area = min(220, 9000 / clients) / len(splits) ** 0.5 * held[held > 0] / held.max()
        axis.scatter(*np.argwhere(held > 0).T, s=area, color=PALETTE[0], alpha=0.75, linewidth=0)
        axis.set(xlabel="client", title=name, xlim=(-0.8, clients - 0.2), ylim=(classes - 0.2, -0.8))
        axis.set_yticks(range(classes))
        axis.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    return figure


def dots(
    frame: pd.DataFrame, by: str, x: str, value: str, ylabel: str = "", xlabel: str | dict[str, str] | None = None,
    titles: Mapping[str, str] | None = None, zero: float | None = None, **kw: Any,
) -> Figure:  # fmt: skip
    """One panel per ``by``: per method the mean over seeds at every level of ``x``, its 95% interval and the seeds.

    Levels stand at equal distances, in the order in which they come. ``xlabel`` is one text, or one by panel; ``zero``
    draws a line across.
    """
    groups, methods = (list(dict.fromkeys(frame[name])) for name in (by, "method"))
    figure, axes = panels(len(groups), **{"ylabel": ylabel, "sharey": True} | kw)
    for axis, group in zip(axes, groups, strict=True):
        part = frame[frame[by] == group]
        levels = list(dict.fromkeys(part[x]))
        here = [method for method in methods if method in set(part["method"])]
        for place, method in enumerate(here):
            mine = part[part["method"] == method]
            mark = style_or_default(method, methods.index(method))
            shift = min(0.16, 0.6 / len(here)) * (place - (len(here) - 1) / 2)  # a gap stays between levels
            cells = [mine.loc[mine[x] == level, value].dropna() for level in levels]
            mean, low, high = np.array([interval(c) if len(c) else (np.nan,) * 3 for c in cells]).T
            at = np.arange(len(levels)) + shift
            axis.vlines(at, low, high, color=mark["color"], linewidth=2.2, alpha=0.5)
            for spot, seeds in zip(at, cells, strict=True):
                axis.scatter([spot] * len(seeds), seeds, color=mark["color"], s=9, alpha=0.5, linewidth=0)
            axis.plot(at, mean, **mark, linewidth=1.2, markersize=8, markeredgecolor="white")
        if zero is not None:
            axis.axhline(zero, color=".25", linewidth=1.2, zorder=1)
        axis.set_xticks(range(len(levels)), [f"{v:g}" if isinstance(v, int | float) else v for v in levels])
        label = xlabel[group] if isinstance(xlabel, dict) else xlabel or x
        axis.set(title=(titles or {}).get(group, group), xlabel=label, xlim=(-0.6, len(levels) - 0.4))
    if len(methods) > 1:
        legend(figure, axes)
    return figure


def layer_curves(frame: pd.DataFrame, by: str, **kw: Any) -> Figure:
    """One panel per ``by``: every layer's mean gamma over seeds by round, light to dark from the first layer on.

    ``frame`` is what ``frames.layers`` returns. The classifier is drawn apart, dashed in another colour.
    """
    groups = list(dict.fromkeys(frame[by]))
    if not groups:
        return nothing()
    figure, axes = panels(len(groups), ylabel="gamma", **kw)
    for axis, group in zip(axes, groups, strict=True):
        part = frame[frame[by] == group]
        body = [layer for layer in dict.fromkeys(part["layer"]) if layer != "classifier"]
        shades = dict(zip(body, sns.color_palette("crest", max(len(body), 1)), strict=True))
        for layer, runs in part.groupby("layer", sort=False):
            mean = runs.groupby("round")["gamma"].mean()
            last = layer == "classifier"
            line = {"color": PALETTE[3], "linestyle": LINES[1], "linewidth": 2.6} if last else {"color": shades[layer]}
            label = {"classifier": "classifier", body[0]: "first layer", body[-1]: "last before the classifier"}
            marker = {"marker": "."} if len(mean) < 3 else {}
            axis.plot(mean.index, mean, label=label.get(layer), **{"linewidth": 1.5} | line | marker)
        axis.set(title=group, xlabel="communication round")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.ticklabel_format(axis="y", useOffset=False)
    legend(figure, axes)
    return figure


def histograms(frame: pd.DataFrame, by: str, limit: float, **kw: Any) -> Figure:
    """One panel per ``by``: per method the mean over seeds of ``counts`` in equal bins over [-limit, limit].

    Shares of all parameters on a logarithmic axis; what lies beyond is in the outermost bins.
    """
    groups = list(dict.fromkeys(frame[by]))
    figure, axes = panels(len(groups), ylabel="share of parameters", sharey=True, **kw)
    for axis, group in zip(axes, groups, strict=True):
        for n, (method, runs) in enumerate(frame[frame[by] == group].groupby("method", sort=False)):
            counts = np.mean([c / np.sum(c) for c in map(np.asarray, runs["counts"])], axis=0)
            mark = {name: value for name, value in style_or_default(method, n).items() if name != "marker"}
            axis.stairs(counts, np.linspace(-limit, limit, len(counts) + 1), **mark, linewidth=1.8)
        axis.set(title=group, xlabel="parameter", yscale="log")
    legend(figure, axes)
    return figure


def reported_vs_ours(frame: pd.DataFrame, xlabel: str, log: bool = False, zero: float | None = None) -> Figure:
    """The paper's numbers beside ours: one panel per ``panel``, one line per ``row``, an open diamond for what was
    ``reported``, a dot for what is found ``here`` (both may be missing), with an interval ``low`` to ``high``.

    A number far from all others is an arrow at the edge with the number beside it, so that it flattens no panel.
    """
    groups = list(dict.fromkeys(frame["panel"]))
    if not groups:
        return nothing()
    rows = list(dict.fromkeys(frame["row"]))
    figure, axes = panels(len(groups), height=1.6 + 0.32 * len(rows), sharey=True)
    sight = (-np.inf, np.inf) if log else _in_sight(frame, zero)
    for axis, group in zip(axes, groups, strict=True):
        part = frame[frame["panel"] == group].set_index("row").reindex(rows)
        y = np.arange(len(rows))
        part = _far_out(axis, y, part, sight)
        axis.hlines(y, part["reported"], part["here"], color=".8", linewidth=1.5, zorder=1)
        if "low" in part:
            _bars(axis, y, part, sight)
        axis.scatter(part["here"], y, color=PALETTE[0], s=45, zorder=3, label="here")
        look = {"facecolor": "white", "edgecolor": PALETTE[1], "linewidth": 1.8, "marker": "D", "s": 42}
        if frame["reported"].notna().any():
            axis.scatter(part["reported"], y, **look, zorder=3, label="reported")
        if zero is not None:
            axis.axvline(zero, color=".25", linewidth=1.2, zorder=1)
        axis.set(title=textwrap.fill(group, 26), xlabel=xlabel, ylim=(len(rows) - 0.5, -0.5))
        axis.set_xscale("log" if log else "linear")
        if log:  # 1.2 and 1000, not powers of ten
            axis.xaxis.set_major_formatter(LogFormatter())
            axis.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
        else:
            axis.locator_params(axis="x", nbins=6)  # -1.00 and -0.75 side by side
        axis.set_yticks(y, rows)
        axis.grid(axis="y", visible=False)
    if frame["reported"].notna().any():
        legend(figure, axes)
    return figure


def _in_sight(frame: pd.DataFrame, zero: float | None) -> tuple[float, float]:
    """How far is drawn: three quarters of the span of all points beyond it, so that one bar hides no other.

    Of eight points and more, those farther from the quartiles than three times their distance do not count.
    """
    points = pd.concat([frame["here"], frame["reported"]]).dropna()
    if len(points) >= 8:
        first, third = points.quantile([0.25, 0.75])
        points = points[points.between(first - 3 * (third - first), third + 3 * (third - first))]
    points = [*points, *([] if zero is None else [zero])]
    room = 0.75 * max(max(points) - min(points), 1e-9)
    return min(points) - room, max(points) + room


def _far_out(axis: Axes, y: np.ndarray, part: pd.DataFrame, limits: tuple[float, float]) -> pd.DataFrame:
    """``part`` without the numbers beyond the limits, which are written at the edge beside an arrow."""
    part = part.copy()
    for column, colour in (("here", PALETTE[0]), ("reported", PALETTE[1])):
        for place, value in zip(y, part[column].astype(float), strict=True):
            if not limits[0] <= value <= limits[1] and not np.isnan(value):
                right = value > limits[1]
                edge, side = (limits[1], "right") if right else (limits[0], "left")
                axis.scatter([edge], [place], color=colour, marker=">" if right else "<", s=30, zorder=4)
                look = {"ha": side, "va": "bottom", "fontsize": 9, "color": colour, "zorder": 4}
                axis.annotate(f"{value:+.0f}", (edge, place), (0, 3), textcoords="offset points", **look)
        part[column] = part[column].where(part[column].between(*limits))
    return part


def _bars(axis: Axes, y: np.ndarray, part: pd.DataFrame, limits: tuple[float, float]) -> None:
    """Intervals; one that goes beyond the limits ends there with an arrow."""
    low, high = part["low"].clip(*limits), part["high"].clip(*limits)
    axis.hlines(y, low, high, color=PALETTE[0], linewidth=2.2, alpha=0.6, zorder=2)
    for ends, cut, arrow in ((low, part["low"] < limits[0], "<"), (high, part["high"] > limits[1], ">")):
        axis.scatter(ends[cut], y[cut.to_numpy()], color=PALETTE[0], marker=arrow, s=30, zorder=3)
