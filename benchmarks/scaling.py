"""Cost of a round against clients, cohort and parameters, of a batch against jobs: ``python benchmarks/scaling.py``.

Writes build/scaling.png and prints the exponent of a power law fitted to every curve: 0 is no cost at all, 1 is linear.
Rounds are measured in CPU seconds of the process, the median of several, so a busy machine moves them little; jobs are
measured in seconds on the clock and mean something on an idle machine only. ``--long`` adds 1,000 rounds of 50 out of
10,000 clients and prints how much memory they took.
"""

import argparse
import resource
import tempfile
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from fedlib.core.paths import ROOT
from fedlib.core.spec import RunSpec
from fedlib.data import DATASETS, Dataset
from fedlib.runs.engine import run
from fedlib.runs.execute import simulate
from fedlib.runs.store import Store

ROUNDS = 8


@DATASETS.register("noise")
class Noise:
    """Random images: enough samples for any number of clients, and no download."""

    about = "random bytes, for benchmarks"
    shape, sizes, class_names = (1, 16, 16), (40_000, 100), tuple("0123456789")

    def load(self, progress: bool = True) -> Dataset:
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (sum(self.sizes), *self.shape), dtype=torch.uint8, generator=draw)
        y = torch.arange(len(x)) % 10
        parts = x[: self.sizes[0]], y[: self.sizes[0]], x[self.sizes[0] :], y[self.sizes[0] :]
        return Dataset(self.name, *parts, 10, self.class_names, "generated")


def spec(clients=1000, cohort=20, hidden=100, rounds=ROUNDS, chunk=4, **changes) -> RunSpec:
    """``cohort`` clients a round, of ``chunk`` samples each, however many there are; the test set is scored once."""
    return RunSpec(
        dataset="noise", model=f"mlp(hidden={hidden})", partition=f"shards(per_client=1, chunk={chunk})", batch_size=2,
        clients=clients, participation=cohort / clients, rounds=rounds, eval_every=rounds, **changes,
    )  # fmt: skip


def per_round(run: RunSpec) -> float:
    stamps = []
    simulate(run, on_round=lambda _: stamps.append(time.process_time()))
    return float(np.median(np.diff(stamps[:-1])))  # the first holds what is done once, the last the evaluation


def batch(jobs: int) -> float:
    """Eight runs of about ten seconds, as short as laptop runs get, and the start of workers: what a user waits."""
    specs = [spec(cohort=100, rounds=150, seed=seed) for seed in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run(specs, jobs, Store(folder), progress=False)
        return time.perf_counter() - began


def exponent(xs, seconds) -> float:
    return float(np.polyfit(np.log(xs), np.log(seconds), 1)[0])


def bookkeeping() -> None:
    peak = []
    rounds = spec(clients=10_000, cohort=50, hidden=1, rounds=1000, chunk=1)
    simulate(rounds, on_round=lambda _: peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
    print(f"10,000 clients, 50 a round: {peak[99]:.0f} MB after 100 rounds, {peak[-1]:.0f} MB after {len(peak)}")


def main(jobs: list[int], turns: int) -> None:
    curves = {  # title: (values, what is measured, the exponent it should have)
        "clients (20 of them a round)": ([100, 1000, 10_000], lambda n: per_round(spec(clients=n)), 0),
        "clients a round (of 1,000)": ([50, 100, 200, 400], lambda n: per_round(spec(cohort=n)), 1),
        "parameters": ([1000, 2000, 4000, 8000], lambda n: per_round(spec(cohort=5, hidden=n)), 1),
        "jobs (a batch of eight runs)": (jobs, batch, -1),
    }
    figure, axes = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3.5), layout="constrained")
    for axis, (title, (values, measure, ideal)) in zip(axes, curves.items(), strict=True):
        if len(values) < 2:
            axis.set_visible(False)
            continue
        taken = [[measure(n) for n in values] for _ in range(turns)]  # in turns: what disturbs, disturbs all
        seconds, xs = np.min(taken, axis=0), np.array(values)
        if title == "parameters":
            xs = 256 * xs + xs + 10 * xs + 10
        fitted = exponent(xs, seconds)
        shown = ", ".join(f"{x:,}: {s:.4f} s" for x, s in zip(xs, seconds, strict=True))
        print(f"{title}: exponent {fitted:+.2f} (ideal {ideal:+d}); {shown}", flush=True)
        axis.loglog(xs, seconds, "o-")
        axis.loglog(xs, seconds[-1] * (xs / xs[-1]) ** ideal, "k:", label=f"ideal: exponent {ideal:+d}")
        axis.set(
            xlabel=title, ylabel="seconds", title=f"exponent {fitted:+.2f}", ylim=(seconds.min() / 3, seconds.max() * 3)
        )
        axis.legend()
    path = ROOT / "build" / "scaling.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    print(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2], help="numbers of jobs; one alone leaves it out")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--long", action="store_true", help="also 1,000 rounds of 10,000 clients")
    options = parser.parse_args()
    main(options.jobs, options.turns)
    if options.long:
        bookkeeping()
