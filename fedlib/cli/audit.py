"""Running records again."""

from collections import Counter

import click

from fedlib.cli.options import (
    Command,
    Number,
    counted,
    device_option,
    gpus_option,
    jobs_option,
    json_option,
    print_json,
)
from fedlib.runs.audit import audit as audit_records
from fedlib.runs.store import Store


@click.command(cls=Command)
@click.option("--sample", type=click.IntRange(min=1), default=4, show_default=True, help="How many records.")
@click.option("--seconds", type=Number(min=1), default=120, show_default=True, help="Time to spend, about.")
@click.option(
    "--store", type=click.Path(exists=True, file_okay=False), help="Another folder of records, such as build/runs."
)
@jobs_option
@device_option
@gpus_option
@json_option
def audit(sample: int, seconds: float, store: str | None, jobs: int, gpus: float | None, as_json: bool) -> int | None:
    """Re-run some of the committed records and fail if a number moved.

    Every record is checked against its checksum. Then the cheapest of every kind are run again, long ones for as
    many of their first rounds as the time allows: equal to the last digit where torch and the processor are those of
    the record, else the first round within 0.001 in training loss. Half of them are of this kind of machine, if there
    are so many. Of half-done runs the rounds they have are compared.

    \b
    fedlib audit
    fedlib audit --sample 20 --seconds 3600
    fedlib audit --store build/runs
    """
    outcomes = audit_records(sample, seconds, jobs, Store(store) if store else None, gpus=gpus)
    if as_json:
        print_json([outcome.to_json() for outcome in outcomes])
    for o in outcomes if not as_json else ():
        how = "to the last digit" if o.exact else "first round, another kind of machine"
        if not o.skipped:
            verdict = f"MOVED: {o.moved}" if o.moved else f"same ({how})"
            click.echo(f"{o.id}  {o.run}, {o.rounds} of {o.of} rounds: {verdict}")
    for why, count in Counter(o.skipped for o in outcomes if o.skipped and not as_json).items():
        click.echo(f"{count} of the records could not be drawn from: {why}")
    if moved := [o.id for o in outcomes if o.moved]:
        click.echo(f"fedlib: the numbers of {counted(len(moved), 'record')} moved: {', '.join(moved)}.", err=True)
        return 1
