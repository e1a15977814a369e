"""The records: which there are, one of them, two beside each other."""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence

import click
import pandas as pd
from matplotlib.figure import Figure

from fedlib.cli.options import Command, counted, json_option, print_json, print_table
from fedlib.core.errors import FedlibError
from fedlib.core.paths import IN_CLONE
from fedlib.core.spec import RunSpec
from fedlib.runs import lookup
from fedlib.runs.compare import alike, compare
from fedlib.runs.record import Record
from fedlib.runs.store import default_store
from fedlib.workbook import frames, notebooks, plots
from fedlib.workbook.comparison import save_figure
from fedlib.workbook.settings import names

COLUMNS = ("id", "dataset", "partition", "model", "algorithm", "seed", "rounds", "status", "accuracy", "seconds")
FILTERS = ("dataset", "partition", "model", "algorithm", "seed", "rounds", "status")
BARS = "▁▂▃▄▅▆▇█"


def with_filters(command: Callable) -> Callable:
    for name in reversed(FILTERS):
        command = click.option(f"--{name}", metavar="GLOB", help="Such as '*lws*'." if name == "algorithm" else None)(
            command
        )
    return command


@click.command(cls=Command)
@with_filters
@click.option("--own", is_flag=True, help="Only those of your own store.")
@click.option("--sort", type=click.Choice(COLUMNS), default="dataset", show_default=True)
@click.option("--most", type=click.IntRange(min=1), default=40, show_default=True, help="Lines that are printed.")
@click.option("--csv", is_flag=True, help="Print all of them as CSV.")
@click.option("--summary", is_flag=True, help="What they cost: core-hours by paper and by kind of machine.")
@json_option
def runs(own: bool, sort: str, most: int, csv: bool, summary: bool, as_json: bool, **globs: str | None) -> None:
    """The runs on record, yours and the workbook's; accuracy in percent after the last round.

    A filter is a name, such as dirichlet, or a glob over the whole written form.

    \b
    fedlib runs --dataset mnist --algorithm '*lws*' --sort accuracy
    fedlib runs --own
    fedlib runs --status diverged --csv > diverged.csv
    fedlib runs --summary
    """
    wanted = {name: glob for name, glob in globs.items() if glob is not None}
    if summary:
        return print_cost(cost(lookup.runs(own=own, **wanted)), as_json)
    rows = pd.DataFrame([row(found) for found in lookup.runs(own=own, **wanted)], columns=COLUMNS)
    rows = rows.sort_values([sort, "id"], ascending=[sort not in ("accuracy", "seconds"), True], kind="stable")
    if as_json:
        return print_json(rows.astype(object).where(rows.notna(), None).to_dict("records"))
    if csv:
        return rows.to_csv(sys.stdout, index=False)
    shown = rows.head(most).assign(accuracy=rows.accuracy.map(lambda a: f"{a:.2f}" if a == a else "–"))
    print_table([COLUMNS, *shown.itertuples(index=False, name=None)])
    rest = f", {len(rows) - most} of them not shown: --most, --csv or --json shows all" if len(rows) > most else ""
    click.echo(f"{counted(len(rows), 'run')}{rest}.")


def row(found: Record) -> dict:
    spec, scored = found.spec, found.accuracy
    about = {name: getattr(spec, name) for name in COLUMNS[1:6]}
    accuracy = round(float(scored[-1]), 4) if len(scored) else None
    about |= dict(rounds=found.rounds_done, status=found.status, accuracy=accuracy, seconds=found.json["seconds"])
    return {"id": found.id} | about


def cost(found: Iterable[Record]) -> dict[str, dict[str, dict]]:
    """Runs and core-hours by the paper whose pages first show them, in the order of papers, and by kind of machine."""
    home: dict[str, str] = {}
    for paper in names()["papers"] if IN_CLONE else ():
        for nb in notebooks.find([paper]):
            if nb.paper == paper:
                home = {job.id: names()["papers"][paper] for job in nb.plan().values()} | home
    spent: dict[str, dict[str, dict]] = {"paper": {}, "machine": {}}
    for record in found:
        for kind, name in ("paper", home.get(record.id, "on no page")), ("machine", machine(record)):
            so_far = spent[kind].setdefault(name, {"runs": 0, "core_hours": 0.0})
            so_far["runs"] += 1
            so_far["core_hours"] += record.json["seconds"] / 3600
    order = [*names()["papers"].values(), "on no page"]
    spent["paper"] = {name: spent["paper"][name] for name in order if name in spent["paper"]}
    return spent


def machine(record: Record) -> str:
    """What made a record, as far as it says so: ``cpu, AVX512, AuthenticAMD 25 17``."""
    made = record.json["environment"]
    return ", ".join(str(made[part]) for part in ("device", "capability", "cpu") if made.get(part))


def print_cost(spent: dict, as_json: bool) -> None:
    if as_json:
        return print_json(spent)
    for kind, parts in spent.items():
        rows = sorted(parts.items(), key=lambda part: -part[1]["runs"]) if kind == "machine" else parts.items()
        print_table([(kind, "runs", "core-hours"), *((n, c["runs"], f"{c['core_hours']:.1f}") for n, c in rows)])
    hours = sum(c["core_hours"] for c in spent["paper"].values())
    click.echo(f"{counted(sum(c['runs'] for c in spent['paper'].values()), 'run')}, {hours:.1f} core-hours.")


@click.command(cls=Command)
@click.argument("id")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw the curve into this .png or .svg.")
@json_option
def show(id: str, plot: str | None, as_json: bool) -> None:
    """One record: what was run, its curve, the machine, and the pages that stand on it. The id may be cut short.

    \b
    fedlib show 3f2a
    fedlib show 3f2a --plot curve.png
    """
    found = lookup.record(id)
    if plot:
        save_figure(figure(found), plot)
    pages = used_on(found.id)
    if as_json:
        return print_json(found.json | {"pages": pages})
    click.echo(repr(found))
    what = found.json["spec"] if isinstance(found.spec, RunSpec) else {"measurement": found.json["measurement"]}
    print_table([("", name, value) for name, value in what.items()])
    if len(scored := found.accuracy):
        click.echo(f"accuracy  {sparkline(scored)}  {scored[0]:.2f}% to {scored[-1]:.2f}%, best {scored.max():.2f}%")
    if found.json.get("error"):
        click.echo(f"diverged  {found.error['message']}")
    machine = {name: value for name, value in found.json["environment"].items() if name != "also"}
    click.echo(f"made      in {found.json['seconds']} s on {', '.join(f'{k} {v}' for k, v in machine.items())}")
    click.echo(f"used on   {', '.join(pages) or 'no page'}")


def used_on(id: str) -> list[str]:
    """The notebooks whose grid, as committed, holds the run."""
    if not IN_CLONE:
        return []
    return [nb.name for nb in notebooks.find() if id in {job.id for job in nb.plan().values()}]


@click.command(cls=Command)
@click.option("--all", "everything", is_flag=True, help="All records and checkpoints of your own store.")
@click.option("--yes", is_flag=True, help="Remove them; without it they are only listed.")
def clean(everything: bool, yes: bool) -> None:
    """List or remove what nothing needs in your own store; committed records are never touched.

    That is: records that cannot be read, records that papers/runs has too, checkpoints of finished runs, and what
    killed processes have left. A record made with a plugin cannot be read without that plugin: name it in
    FEDLIB_PLUGINS to keep it.

    \b
    fedlib clean
    fedlib clean --yes
    fedlib clean --all --yes
    """
    store = default_store()
    found = lookup.superfluous(store, everything)
    for path, why in found.items():
        click.echo(f"{path.name}  {why}")
    size = sum(path.stat().st_size for path in found)
    files = f"{counted(len(found), 'file')} of {size / 1e6:.1f} MB in {store.path}"
    if not yes:
        return click.echo(f"{files} could go; 'fedlib clean {'--all ' if everything else ''}--yes' removes them.")
    removed = lookup.remove(store, found)
    click.echo(f"{removed} of {files} removed." if removed < len(found) else f"{files} removed.")


def sparkline(values: Sequence[float]) -> str:
    """A curve in a line of text, of at most sixty characters."""
    step = max(1, -(-len(values) // 60))
    means = [sum(values[k : k + step]) / len(values[k : k + step]) for k in range(0, len(values), step)]
    low, span = min(means), (max(means) - min(means)) or 1
    return "".join(BARS[int((mean - low) / span * (len(BARS) - 1))] for mean in means)


def figure(found: Record) -> Figure:
    if not isinstance(found.spec, RunSpec) or not len(found.accuracy):
        raise FedlibError(f"{found.id} has no curve to draw.")
    spec = found.spec
    long = frames.curves({(spec.algorithm, spec.seed): found}, ("method", "seed"))
    return plots.learning_curves(long.assign(setting=f"{spec.dataset}, {spec.partition}, {spec.model}"), by="setting")


@click.command(cls=Command)
@click.argument("first")
@click.argument("second")
@json_option
def diff(first: str, second: str, as_json: bool) -> None:
    """Two runs beside each other: the fields, the machines and the numbers in which they differ.

    \b
    fedlib diff 3f2a 91c0
    """
    one, two = lookup.record(first), lookup.record(second)
    if not (isinstance(one.spec, RunSpec) and isinstance(two.spec, RunSpec)):
        raise FedlibError("fedlib diff sets runs beside each other, not measurements.")
    fields = [f.name for f in dataclasses.fields(RunSpec) if f.name != "probes"]
    values = {name: (getattr(one.spec, name), getattr(two.spec, name)) for name in fields}
    values |= {f"revision of {n}": (one.spec.revisions.get(n, 1), two.spec.revisions.get(n, 1))
               for n in sorted({*one.spec.revisions, *two.spec.revisions})}  # fmt: skip
    differs = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    shared = frames.curve(one).rename("one").to_frame().join(frames.curve(two).rename("two"), how="inner").dropna()
    end = shared.iloc[-1] if len(shared) else None
    same_machine = alike(one.json["environment"], two.json["environment"])
    moved = compare(one, two).moved
    if as_json:
        last = None if end is None else {"round": int(end.name), "first": end["one"], "second": end["two"]}
        return print_json(
            dict(first=one.id, second=two.id, fields=differs, same_machine=same_machine, accuracy=last, moved=moved)
        )
    print_table([("", one.id, two.id), *((name, *map(str, pair)) for name, pair in differs.items())])
    if not differs:
        click.echo("The same run.")
    if end is not None:
        click.echo(f"accuracy after round {end.name}: {end['one']:.2f}% and {end['two']:.2f}%")
    click.echo(f"machines of {'one kind' if same_machine else 'two kinds'}; {moved or 'all numbers are the same'}")
