"""Methods beside each other from the shell."""

import dataclasses

import click

from fedlib.cli.options import (
    Command,
    device_option,
    gpus_option,
    jobs_option,
    json_option,
    print_json,
    print_table,
    spec_options,
    values_of,
)
from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.workbook import comparison

FIELDS = [f.name for f in dataclasses.fields(RunSpec) if f.name not in ("seed", "probes")]


def seed_list(text: str) -> list[int]:
    """``1-3,7`` as [1, 2, 3, 7]."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdigit() and (last.isdigit() or not last)) or len(part) > 12:
            raise FedlibError(f"--seeds are numbers and ranges, such as 1-3 or 1,5,7; got {text!r}.")
        found += range(int(first), int(last or first) + 1)
    return found


@click.command(cls=Command)
@spec_options(only=FIELDS, several="algorithm")
@click.option("--seeds", default="1-3", show_default=True, help="Such as 1-5 or 1,2,7.")
@click.option("--base", default="fedavg", show_default=True, help="What the others are set beside; it is run too.")
@click.option("--last", type=click.IntRange(min=1), default=10, show_default=True, help="Rounds whose mean counts.")
@click.option("--csv", type=click.Path(dir_okay=False), help="Write one row per run and round to this file.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw the learning curves into this .png or .svg.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bar.")
@jobs_option
@device_option
@gpus_option
@json_option
def compare(
    algorithm: tuple[str, ...],
    seeds: str,
    base: str,
    last: int,
    csv: str | None,
    plot: str | None,
    quiet: bool,
    jobs: int,
    gpus: float | None,
    as_json: bool,
    **options: str | None,
) -> None:
    """Run several methods on one setting with the same seeds; what is above the base comes with a 95% t-interval.

    Pairs of runs with the same seed are compared, by their mean accuracy over the last rounds. Finished runs are kept,
    so the same command goes on where it was stopped. Accuracies are percent, in the table and with --json.

    \b
    fedlib compare --dataset digits --model mlp --partition 'dirichlet(alpha=0.1)' --rounds 20 \\
        --algorithm 'fedprox(mu=0.01)' --algorithm lws --seeds 1-3 --csv curves.csv --plot curves.png
    """
    if not algorithm:
        raise FedlibError("Nothing to compare: give --algorithm at least once.")
    setting = RunSpec.from_json(values_of({name: text for name, text in options.items() if text is not None}))
    found = comparison.compare(
        setting, algorithm, seed_list(seeds), base, last, jobs=jobs, progress=not quiet, gpus=gpus
    )
    if csv:
        found.csv(csv)
    if plot:
        found.plot(plot)
    if as_json:
        ids = [{"method": m, "seed": s, "id": r.id} for (m, s), r in found.records.items()]
        rows = found.table.reset_index().astype(object).where(lambda f: f.notna(), None).to_dict("records")
        return print_json({"base": found.base, "table": rows, "runs": ids})
    print_table(found.lines())
