"""One run from the shell."""

import tempfile

import click
from tqdm import tqdm

from fedlib.cli.options import (
    Command,
    counted,
    device_option,
    gpus_option,
    jobs_option,
    json_option,
    once,
    print_json,
    refuse_damaged,
    spec_options,
    time_options,
    values_of,
)  # fmt: skip
from fedlib.core import environment
from fedlib.core.errors import FedlibError, cause
from fedlib.core.spec import RunSpec
from fedlib.federation.federation import Federation
from fedlib.runs import engine
from fedlib.runs.callbacks import CSVLog
from fedlib.runs.execute import run_one
from fedlib.runs.record import Record
from fedlib.runs.store import Store, default_store


@click.command(cls=Command)
@spec_options(several="seed")
@click.option("-p", "--set", "pairs", nargs=2, multiple=True, metavar="FIELD VALUE", help="Another way to set a field.")
@click.option("--fresh", is_flag=True, help="Train again even if there is a record.")
@click.option("--save", type=click.Path(dir_okay=False), help="Train now and keep the model as .safetensors.")
@click.option("--log", type=click.Path(dir_okay=False), help="Train now and write every round's metrics to this .csv.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bar.")
@time_options
@jobs_option
@device_option
@gpus_option
@json_option
def simulate(
    pairs: tuple[tuple[str, str], ...],
    fresh: bool,
    save: str | None,
    log: str | None,
    quiet: bool,
    hours: float | None,
    finish: bool,
    jobs: int,
    gpus: float | None,
    as_json: bool,
    seed: tuple[str, ...],
    **options: str | None,
) -> int | None:
    """Run one federation and print its accuracy; the same run asked for again is read from the store.

    \b
    fedlib simulate --dataset digits --model mlp --partition iid
    fedlib simulate --dataset mnist --model 'mlp(hidden=64)' --partition 'shards(per_client=2)' \\
        --clients 100 --participation 0.1 --local-epochs 10 --batch-size 10 --algorithm 'fedlap(q=0.5)'
    fedlib simulate --dataset digits --model mlp --partition 'dirichlet(alpha=0.1)' --seed 1 --seed 2 --json
    fedlib simulate --dataset digits --model mlp --partition iid --save model.safetensors --log rounds.csv

    --json prints id, spec, status, round and accuracy (lists), summary, and what --probes found; accuracies are
    shares of 1. With several seeds it is a list.
    """
    given = [(name, text) for name, text in options.items() if text is not None]
    values = values_of(once([*given, *pairs, *(("seed", text) for text in seed[:1])]))
    seeds = [values_of({"seed": text}) for text in seed] or [{}]
    specs = [RunSpec.from_json(values | one) for one in seeds]
    if save or log:
        records = [trained(specs, save, log, not quiet)]
    else:
        records = simulated(specs, fresh, jobs, not quiet, hours, finish, gpus)
    if as_json:
        rows = [
            {name: r.json[name] for name in ("id", "spec", "status", "error")}
            | {name: r.series.get(name, []) for name in ("round", "accuracy")}
            | {"summary": r.summary, "probes": {text: found["series"] for text, found in r.probes.items()}}
            for r in records
        ]
        print_json(rows if len(seed) > 1 else rows[0])
    for record in records if not as_json else ():
        click.echo(result_line(record))
        for text, found in record.probes.items():
            last = {name: values[-1] for name, values in found["series"].items() if name != "round"}
            numbers = [f"{name} {value:.4g}" for name, value in last.items() if isinstance(value, float)]
            click.echo(f"    {text}: {', '.join(numbers) or 'lists only, see --json'}")
    if diverged := sum(record.status == "diverged" for record in records):
        click.echo(f"fedlib: {diverged} of {counted(len(records), 'run')} diverged.", err=True)
        return 1


def trained(specs: list[RunSpec], save: str | None, log: str | None, progress: bool) -> Record:
    """One run made now, for what a record does not hold; a record that there is must come out again."""
    if len(specs) > 1:
        raise FedlibError(f"--save and --log are for one run; got {len(specs)} seeds.")
    (spec,), store = specs, default_store()
    refuse_damaged(store, {spec.id})
    rows = CSVLog(log) if log else None
    # a log gets no bar: it would be ten lines a second
    with tqdm(total=spec.rounds, unit="round", disable=not progress or None) as bar:
        return run_one(spec, store, lambda done: bar.update(done - bar.n), again=True, save=save, callback=rows)


def simulated(
    specs: list[RunSpec], fresh: bool, jobs: int, progress: bool, hours: float | None, finish: bool, gpus: float | None
) -> list:
    """From the store, or trained; a fresh run is made apart and then takes the place of what was there."""
    store = default_store()
    if fresh:
        with tempfile.TemporaryDirectory() as folder:
            records = train(specs, jobs, Store(folder), progress, None, True, gpus)
        for record in records:
            store.put(record)
        return records
    refuse_damaged(store, {spec.id for spec in specs})
    return train(specs, jobs, store, progress, hours, finish, gpus)


def train(
    specs: list[RunSpec], jobs: int, store: Store, progress: bool, hours: float | None, finish: bool, gpus: float | None
) -> list:
    todo = engine.missing(specs, store, finish or hours is not None) if hours != 0 else []
    if todo and environment.may_train():
        try:
            Federation(todo[0])  # fetches the data; more clients than samples, say, fails here, before the bar
        except FedlibError:
            raise
        except Exception as error:  # of a plugin's
            raise FedlibError(f"{todo[0].id} cannot begin: {cause(error)}.") from error
    return engine.run(specs, jobs, store, progress, hours=hours, finish=finish, gpus=gpus)


def result_line(record: Record) -> str:
    spec = record.spec
    head = f"{record.id}  {spec.algorithm} on {spec.dataset}, {spec.partition}, seed {spec.seed}"
    if record.status == "diverged":
        return f"{head}: diverged, {record.error['message']}"
    if not record.summary:
        return f"{head}: nothing to show after {record.rounds_done} of {spec.rounds} rounds"
    last, last10, best = (f"{100 * record.summary[name]:.2f}%" for name in ("last", "last10", "best"))
    tail = min(10, len(record.series["accuracy"]))
    done = f"{record.rounds_done} of {spec.rounds} rounds" if record.partial else counted(spec.rounds, "round")
    return f"{head}: accuracy {last} after {done} (mean of the last {tail} {last10}, best {best})"
