"""What the pages of FedLap's Figures 2 to 4 share: accuracy when clients stop early, who is ahead, what is ours."""

import pandas as pd

from fedlib.workbook import frames, plots
from fedlib.workbook.page import Page
from fedlib.workbook.reported import prose_numbers
from fedlib.workbook.tables import show_table, summary


def show_stragglers(page: Page, said: tuple[int, int]) -> pd.DataFrame:
    """Show accuracy, FedLap's leads and their numbers; ``said`` is the (round, percent) of the paper's sentence.

    Returns the numbers, one row per run.
    """
    curves, (by, percent) = page.curves(), said
    titles = {share: f"{share} stragglers" for share in curves["stragglers"].unique()}
    seeds = "means over seeds, bands from the lowest to the highest seed, thin lines the seeds"
    stated = [(share, by, percent) for share in titles]
    page.figure(
        plots.learning_curves(curves, by="stragglers", titles=titles, stated=stated),
        f"Test accuracy by round: {seeds}.",
    )
    caption = "FedLap's accuracy minus FedAvg's and FedProx's, seed by seed: FedLap is ahead where a line is above zero"
    page.figure(plots.leads(curves, by="stragglers", ours="fedlap", titles=titles), f"{caption}.")
    print(frames.describe_runs(page.records, page.names))
    means = curves.groupby(["stragglers", "round", "method"])["accuracy"].mean().unstack()
    lead = (means["fedlap"] - means[["fedavg", "fedprox"]].max(axis=1)).groupby("stragglers").max()
    leads = ", ".join(f"{gap:.1f} points ({share} stragglers)" for share, gap in lead.items())
    print(f"FedLap's mean curve is at most this far above the better of the other two, in any round: {leads}.")
    scores = frames.race(page.records, page.names, level=percent)
    show_table(page.named(summary(scores, limits=(0, 100))), "The numbers behind the figure", fold=True)
    return scores


def show_notes(page: Page, *choices: str) -> None:
    """What the paper says in prose, what differs from it, and what it leaves open: ``choices`` and those all have."""
    show_table(prose_numbers(page.paper, page.exhibit), "What the paper states in prose")
    term = ("FedProx mu", "FedLap q", "FedLap lambda", "FedLap rows")
    page.notes("rounds", *choices, "transform", *term, "stragglers", "aggregation", "seeds")
