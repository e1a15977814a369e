"""Figures in which colour is the value: matrices, and mixtures of three things on a triangle."""

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, PowerNorm
from matplotlib.figure import Figure

from fedlib.workbook.plots import PALETTE


def triangle(
    axis: Axes,
    points: np.ndarray,
    values: np.ndarray,
    corners: Sequence[str],
    label: str = "",
    levels: int | Sequence[float] = 14,
) -> None:
    """``values`` over mixtures of three things, whose shares are the rows of ``points``, as filled contours.

    ``levels``: how many, or which, such as those of several triangles on one scale; then each has its own colour.
    """
    given = {} if isinstance(levels, int) else {"norm": BoundaryNorm(levels, 256)}
    filled = axis.tricontourf(*_on_triangle(points), values, levels, cmap="cividis", **given)
    axis.figure.colorbar(filled, ax=axis, label=label, format="%.2f" if given else None)
    _corners(axis, corners)


def simplex_path(axis: Axes, points: np.ndarray, corners: Sequence[str]) -> None:
    """Mixtures of three things one after the other, from the first (dark) to the last; equal shares are marked.

    Where a mixture comes again, later ones lie on earlier ones: the area of a disc is their number.
    """
    axis.plot(*_on_triangle(np.eye(3)[[0, 1, 2, 0]]), color=".4", linewidth=1)
    order = np.arange(1, len(points) + 1)
    again = np.array([np.isclose(points[n:], points[n]).all(axis=1).sum() for n in range(len(points))])
    look = {"s": 40 * again, "edgecolor": "white", "linewidth": 0.4, "zorder": 3}
    seen = axis.scatter(*_on_triangle(points), c=order, cmap="cividis", **look)
    mark(axis, (1 / 3, 1 / 3, 1 / 3), "X")
    axis.figure.colorbar(seen, ax=axis, label="round")
    _corners(axis, corners)


def mark(axis: Axes, shares: Sequence[float], shape: str) -> None:
    """One mixture of three things on its triangle."""
    axis.plot(*_on_triangle(np.array([shares])), shape, color=PALETTE[3], markersize=12, markeredgecolor="white")


def _on_triangle(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return points[:, 1] + points[:, 2] / 2, points[:, 2] * 3**0.5 / 2


def _corners(axis: Axes, names: Sequence[str]) -> None:
    for name, x, y, side in zip(names, (0, 1, 0.5), (-0.03, -0.03, 0.89), ("top", "top", "bottom"), strict=True):
        axis.text(x, y, name, ha="center", va=side, fontsize=10)
    axis.set(aspect="equal", xlim=(-0.15, 1.15), ylim=(-0.12, 1))
    axis.axis("off")


def stretched(matrix: np.ndarray) -> np.ndarray:
    """Distances from 0 for the nearest pair to 1 for the farthest, so that patterns can be compared."""
    nearest = matrix[matrix > 0].min()
    return np.clip((matrix - nearest) / (matrix.max() - nearest), 0, 1)


def heatmaps(
    rows: dict[str, dict[str, np.ndarray]], ticks: Sequence = (), label: str = "", faint: float = 1.0
) -> Figure:
    """Matrices in a grid, by row and column title, on one scale from 0 to the largest value.

    ``faint`` below one brings out small values: colours follow value ** faint.
    """
    columns = list(dict.fromkeys(title for row in rows.values() for title in row))
    top = max(np.max(m) for row in rows.values() for m in row.values())
    size = (2.6 * len(columns) + 1.2, 2.7 * len(rows))
    figure, axes = plt.subplots(len(rows), len(columns), figsize=size, squeeze=False, layout="constrained")
    plt.close(figure)
    for line, (name, row) in zip(axes, rows.items(), strict=True):
        for axis, title in zip(line, columns, strict=True):
            image = axis.imshow(row[title], cmap="cividis", norm=PowerNorm(faint, 0, top))
            axis.set_xticks(range(len(ticks)), ticks)
            axis.set_yticks(range(len(ticks)), ticks)
            axis.tick_params(labelsize=7, length=0)
        line[0].set_ylabel(name)
    for axis, title in zip(axes[0], columns, strict=True):
        axis.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, label=label, shrink=0.7)
    return figure
