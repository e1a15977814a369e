"""Commands that plan and execute notebooks."""

import os
from collections.abc import Iterable
from pathlib import Path

import click

from fedlib.cli.options import (
    Command,
    counted,
    device_option,
    gpus_option,
    jobs_option,
    json_option,
    notebook_options,
    once,
    print_json,
    print_table,
    refuse_damaged,
    time_options,
)  # fmt: skip
from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.core.spec import Measure, RunSpec
from fedlib.runs import engine as runs
from fedlib.runs import execute
from fedlib.runs.estimate import estimate
from fedlib.runs.execute import rounds_done
from fedlib.runs.ray import Ray
from fedlib.runs.store import Store, committed, default_store
from fedlib.workbook import notebooks as pages
from fedlib.workbook import report as board


@click.command(cls=Command)
@notebook_options
@jobs_option
@click.option("--runs", "each", is_flag=True, help="List every run that is left, in the order of the plan.")
@json_option
def plan(
    names: tuple[str, ...],
    scale: str | None,
    parameters: tuple[tuple[str, str], ...],
    jobs: int,
    each: bool,
    as_json: bool,
) -> None:
    """What notebooks need and the store lacks: missing and half-done runs, with an estimate of the time left.

    \b
    fedlib plan
    fedlib plan fedlap/figure04* --scale paper
    fedlib plan --scale paper -p seeds 1,2,3,4,5
    fedlib plan synthesis/headlines --scale paper --runs      what is left at the papers' own settings
    """
    store, rows, left, gpu, done, jobs_left = default_store(), [], {}, {}, {}, {}
    for nb, changes in selection(names, scale, parameters):
        grid = list(nb.plan(changes).values())
        refuse_damaged(store, {spec.id for spec in grid})
        todo = runs.missing(grid, store, finish=True)
        jobs_left |= {spec.id: spec for spec in todo}
        done |= {spec.id: rounds_done(spec, store) for spec in todo if spec.id not in done}
        share = {spec: 1 - done[spec.id] / spec.rounds for spec in todo}
        times = {spec.id: estimate(spec) * share[spec] for spec in todo}
        on_gpu = {spec.id: estimate(spec, "cuda") * share[spec] for spec in todo}
        left |= {id: max(seconds, left.get(id, 0)) for id, seconds in times.items()}
        gpu |= {id: max(seconds, gpu.get(id, 0)) for id, seconds in on_gpu.items()}
        half = sum(done[spec.id] > 0 for spec in todo)
        counts = dict(runs=len({spec.id for spec in grid}), missing=len(todo) - half, half_done=half)
        seconds = dict(seconds=sum(times.values()), gpu_seconds=sum(on_gpu.values()))
        rows.append(dict(notebook=nb.name, scale=nb.scale(changes), **counts, **seconds))
    half = {id: rounds for id, rounds in done.items() if rounds}
    total = dict(missing=len(done) - len(half), half_done=len(half), jobs=jobs)
    total |= dict(core_seconds=sum(left.values()), gpu_seconds=sum(gpu.values()))
    total["seconds"] = max(max(left.values(), default=0), total["core_seconds"] / jobs)
    if as_json:
        return print_json(dict(notebooks=rows, total=total, ids=sorted(done), rounds_done=half))
    if each:
        heads = ("id", "dataset", "partition", "model", "algorithm", "seed", "rounds", "of", "core time", "GPU time")
        print_table([heads, *(line_of(spec, done[id], left[id], gpu[id]) for id, spec in jobs_left.items())])
    table = [(r["notebook"], r["scale"], r["runs"], r["missing"], r["half_done"]) for r in rows]
    times = [(pages.duration(r["seconds"]), pages.duration(r["gpu_seconds"])) for r in rows]
    heads = ("notebook", "scale", "runs", "missing", "half done", "core time", "GPU time")
    print_table([heads, *((*row, *time) for row, time in zip(table, times, strict=True))])
    time, on_gpu = pages.duration(total["seconds"]), pages.duration(total["gpu_seconds"])
    what = f"{counted(total['missing'], 'distinct run')} to train"
    what += f" and {len(half)} to go on with, of which {counted(sum(half.values()), 'round')} are done" if half else ""
    click.echo(f"{what}; about {time} with {counted(jobs, 'job')}, or by a rule of thumb {on_gpu} on one GPU.")


def line_of(spec: RunSpec | Measure, done: int, seconds: float, on_gpu: float) -> tuple:
    """A run or measurement that is left, as a row: what it is, how far it is, how long the rest may take."""
    what = [getattr(spec, name, "") for name in ("dataset", "partition", "model", "algorithm", "seed")]
    what[3] = what[3] or getattr(spec, "text", "")
    return spec.id, *what, done, getattr(spec, "rounds", 0), pages.duration(seconds), pages.duration(on_gpu)


@click.command(cls=Command)
@notebook_options
@jobs_option
@device_option
@click.option(
    "--engine",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    show_default=True,
    help="Train in processes of this machine or on a Ray cluster.",
)
@click.option("--address", default="auto", show_default=True, help="Of the Ray cluster, such as 10.0.0.1:6379.")
@gpus_option
@time_options
@click.option("--commit", is_flag=True, help="Put the records into papers/runs, which the committed pages stand on.")
@click.option("--update", is_flag=True, help="Write the outputs back to notebooks/, without papermill's traces.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to.  [default: build/notebooks]")
def run(
    names: tuple[str, ...],
    scale: str | None,
    parameters: tuple[tuple[str, str], ...],
    jobs: int,
    engine: str,
    address: str,
    gpus: float | None,
    hours: float | None,
    finish: bool,
    commit: bool,
    update: bool,
    out: Path | None,
) -> None:
    """Execute notebooks headlessly: all, or those that names, globs, papers or paths select.

    Runs that the store lacks are trained first, for all notebooks together; the notebooks then only render.
    Finished runs are kept and unfinished ones resume, so it can be stopped at any time. With --hours it stops by
    itself; pages then compare half-done runs at the last round that all of a setting have reached, and say so.

    \b
    fedlib run
    fedlib run fedlap --scale smoke --jobs 2
    fedlib run fedlap/figure01_no_stragglers -p seeds 1,2
    fedlib run fedlws/table01_main_results --scale paper --hours 8
    fedlib run --commit --update         after changing a notebook: renew its committed records and outputs
    fedlib run --scale paper --engine ray --address 10.0.0.1:6379 --gpus 0.25
    """
    chosen = selection(names, scale, parameters)
    if update:
        for nb, changes in chosen:
            if changes:
                raise FedlibError(
                    f"--update keeps what a notebook shows by default, but {', '.join(changes)} of {nb.name} would "
                    "differ from its default; leave that out, or change the default in the notebook."
                )
    grids = [list(nb.plan(changes).values()) for nb, changes in chosen]
    store, specs = default_store(), [spec for grid in grids for spec in grid]
    refuse_damaged(store, {spec.id for spec in specs})
    there = {"engine": Ray(address, gpus)} if engine == "ray" else {"gpus": gpus}
    runs.run(specs, jobs, store, hours=hours, finish=finish, **there)
    if commit:
        click.echo(f"{execute.commit(specs, store, committed())} records were put into papers/runs.")
    if update and any(nb.path.is_relative_to(ROOT / "notebooks") for nb, _ in chosen):
        refuse_uncommitted(specs, store)
    if hours is not None:
        os.environ["FEDLIB_HOURS"] = "0"  # the notebooks train nothing more
    paths = {}

    def done(nb: pages.Notebook, path: Path):
        paths[nb] = path
        verdicts = [claim["verdict"] for claim in pages.Notebook(path).claims]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts)) or "no claims"
        click.echo(f"{pages.shown_path(path)}  ({counts})")

    unfinished = {spec.id for spec in runs.missing(specs, store, finish=True)}
    whole, early = [], []
    for one, grid in zip(chosen, grids, strict=True):
        (early if not update and any(spec.id in unfinished for spec in grid) else whole).append(one)
    folder = (out or pages.BUILD).resolve()
    if whole:
        pages.execute_all(whole, jobs, folder, done)
    try:
        if early:
            pages.execute_all(early, jobs, folder, done)
    except FedlibError as error:  # a page may need more than there is, such as final models: that is no failure
        click.echo(f"fedlib: not to be seen yet, its runs being half done: {error}", err=True)
    paths = [paths[nb] for nb, _ in chosen if nb in paths]
    if update:
        for (nb, _), path in zip(chosen, paths, strict=True):
            pages.update(nb, path)
        click.echo(f"Updated: {', '.join(pages.shown_path(nb.path) for nb, _ in chosen)}")
    else:
        folders = sorted({pages.shown_path(path.parent) for path in paths})
        click.echo(f"{counted(len(paths), 'notebook')} regenerated in {', '.join(folders)}.")
        if claims := board.gather(pages.Notebook(path) for path in paths):
            click.echo(f"{board.sentence(claims)}.")


def refuse_uncommitted(specs: Iterable[RunSpec | Measure], store: Store) -> None:
    """A committed page must not stand on records that only its maker has."""
    evidence = committed()
    lacking = {spec.id for spec in runs.missing(specs, evidence)}
    lacking |= {record.id for record in execute.uncommitted(specs, store, evidence)}
    if lacking:
        raise FedlibError(
            f"--update writes pages that anyone can make again, but {len(lacking)} of their runs are not in "
            "papers/runs; --commit puts there what is in your own store."
        )


def selection(names: tuple[str, ...], scale: str | None, parameters: tuple[tuple[str, str], ...]) -> list[tuple]:
    """The notebooks with their changed parameters; anything unknown fails here, before anything runs."""
    values = once([*parameters, *([("scale", scale)] if scale else [])])
    notebooks = pages.find(names)
    for name in values:
        having = [nb for nb in notebooks if name in nb.defaults]
        if not having:
            notebooks[0].changes({name: values[name]})  # says what it takes
        if (count := len(having)) < len(notebooks):
            click.echo(f"fedlib: {name} is set in the {count} of {len(notebooks)} notebooks that have it.", err=True)
    return [(nb, nb.changes({n: v for n, v in values.items() if n in nb.defaults})) for nb in notebooks]
