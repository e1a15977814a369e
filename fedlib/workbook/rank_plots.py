"""The figure of mean ranks: which of many methods are told apart."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlib.workbook.plots import PALETTE, legend, panels


def critical_difference(ranks: pd.Series, difference: float, reference: str) -> Figure:
    """Every method's mean rank, the best on top, with half the critical difference to either side.

    Two methods whose bars do not overlap are told apart by Nemenyi's test; the band is the bar of the ``reference``,
    and what lies outside of it is drawn in another colour and with a square. ``ranks`` and ``difference`` are what
    ``statistics.nemenyi`` returns.
    """
    ranks, half = ranks.sort_values(kind="stable"), difference / 2
    figure, (axis,) = panels(1, height=1.2 + 0.25 * len(ranks), width=8)
    y = np.arange(len(ranks))
    apart, band = (ranks - ranks[reference]).abs().gt(difference).to_numpy(), ranks[reference]
    axis.axvspan(band - half, band + half, color=".92", zorder=0, label=f"{reference}'s bar")
    for mask, colour, marker, label in (
        (~apart, PALETTE[0], "o", f"not told apart from {reference}"),
        (apart, PALETTE[3], "s", f"told apart from {reference}"),
    ):
        if mask.any():
            axis.hlines(y[mask], ranks[mask] - half, ranks[mask] + half, color=colour, linewidth=2.2, alpha=0.5)
            axis.scatter(ranks[mask], y[mask], color=colour, marker=marker, s=42, zorder=3, label=label)
    axis.set_yticks(y, ranks.index)
    axis.set(xlabel=f"mean rank (1 is best), ± half the critical difference of {difference:.1f}")
    axis.set(xlim=(0, len(ranks) + 1), ylim=(len(ranks) - 0.4, -0.6))
    axis.grid(axis="y", visible=False)
    legend(figure, [axis])
    return figure
