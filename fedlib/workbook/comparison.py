"""Methods beside each other on one setting: the same seeds for all, paired intervals over a base, curves, a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.runs.engine import run
from fedlib.runs.record import Record
from fedlib.workbook import frames, plots
from fedlib.workbook.statistics import interval, paired
from fedlib.workbook.tables import mean_text

NAMES = ("method", "seed")


@dataclass(frozen=True, repr=False)
class Comparison:
    """The records of a comparison by (method, seed), and what they say."""

    records: dict[tuple[str, int], Record]
    base: str
    rounds: int  # of the end of every run whose mean accuracy counts

    @property
    def frame(self) -> pd.DataFrame:
        """One row per run and evaluated round."""
        return frames.frame(self.records.values())

    @property
    def scores(self) -> pd.Series:
        """Every run's accuracy in percent: its mean over the last ``rounds`` rounds; NaN if it diverged."""
        return frames.scores(self.records, NAMES, accuracy=lambda c: frames.last(c, self.rounds))["accuracy"]

    @property
    def table(self) -> pd.DataFrame:
        """One row per method: accuracy, and how far it is above the base on the same seeds, with a 95% t-interval."""
        rows, scores = [], self.scores
        for method, values in scores.groupby("method", sort=False):
            lead = paired(scores, method, self.base).dropna() if method != self.base else pd.Series(dtype=float)
            mean, low, high = interval(lead) if len(lead) else (float("nan"),) * 3
            shown = dict(method=method, accuracy=values.mean(), over_base=mean, low=low, high=high)
            rows.append(shown | dict(seeds=int(values.notna().sum()), diverged=int(values.isna().sum())))
        return pd.DataFrame(rows).set_index("method")

    def curves(self) -> Figure:
        """Test accuracy by round, a line for every method with the range over seeds."""
        spec = next(iter(self.records.values())).spec
        long = frames.curves(self.records, NAMES).assign(setting=f"{spec.dataset}, {spec.partition}, {spec.model}")
        return plots.learning_curves(long, by="setting")

    def plot(self, path: str | Path) -> None:
        """The curves as a picture, PNG or SVG by the ending."""
        save_figure(self.curves(), path)

    def csv(self, path: str | Path) -> None:
        """The frame as a file."""
        self.frame.to_csv(path, index=False)

    def lines(self) -> list[tuple]:
        """The table in words, with its heads."""
        found = [("method", "accuracy", f"over {self.base}, 95% interval", "seeds")]
        for method, row in self.table.iterrows():
            lead = f"{row.over_base:+.2f} [{row.low:+.2f}, {row.high:+.2f}]" if row.low == row.low else ""
            lead = lead or (f"{row.over_base:+.2f}" if row.over_base == row.over_base else "–")
            diverged = f" ({row.diverged:.0f} diverged)" if row.diverged else ""
            accuracy = mean_text(self.scores[method], 2, limits=(0, 100))
            found.append((method, accuracy, lead, f"{row.seeds:.0f}{diverged}"))
        return found

    def __repr__(self) -> str:
        rows = self.lines()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def compare(
    setting: RunSpec, algorithms: Iterable[str], seeds: Sequence[int] = (1, 2, 3), base: str = "fedavg", last: int = 10,
    **options: Any,
) -> Comparison:  # fmt: skip
    """Run every algorithm with every seed on one setting and set them beside ``base``, which is run too.

    A method counts by its mean accuracy over the ``last`` rounds. ``options`` are those of ``fedlib.run``; what has a
    record is not trained again.
    """
    if isinstance(algorithms, str):
        raise FedlibError(f"fedlib.compare takes a list of algorithms; got {algorithms!r}: write [{algorithms!r}].")
    if not (seeds := list(dict.fromkeys(seeds))):
        raise FedlibError("A comparison needs at least one seed, and three for intervals worth the name.")
    if last < 1:
        raise FedlibError(f"last counts the rounds whose mean accuracy counts, at least 1; got {last}.")
    named: dict[str, str] = {}  # by canonical form, each as it was first written
    for text in (base, *algorithms):
        named.setdefault(setting.replace(algorithm=text).algorithm, text)
    grid = {(name, s): setting.replace(algorithm=form, seed=s) for form, name in named.items() for s in seeds}
    return Comparison(run(grid, **options), base, last)


def save_figure(figure: Figure, path: str | Path) -> None:
    """PNG, SVG or PDF by the ending."""
    known = ("png", "svg", "pdf")
    if (ending := Path(path).suffix[1:].lower()) not in known:
        raise FedlibError(f"A picture's name ends in .{', .'.join(known)}; got {str(path)!r}.")
    figure.savefig(path, format=ending, dpi=150)
