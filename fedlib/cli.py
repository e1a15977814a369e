"""The ``fedlib`` command. Heavy modules are imported where they are used: ``--help`` must not wait for torch."""

import dataclasses
import importlib
import inspect
import json
import math
import os
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import get_args

import click

from fedlib.core import environment
from fedlib.core.errors import FedlibError, quoted
from fedlib.core.registry import literal
from fedlib.core.spec import RunSpec

STOPPED = "Stopped. What was finished is kept and unfinished runs resume: give the same command again to go on."


def main() -> None:
    """The console script: errors are one sentence and exit code 2, Ctrl-C is 130."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.showwarning = lambda message, *_: click.echo(f"fedlib: {message}", err=True)
    try:
        sys.exit(cli.main(prog_name="fedlib", standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "fedlib"
        sentence = " ".join(error.format_message().split())
        click.echo(f"fedlib: {sentence}{'' if sentence.endswith(('.', '?')) else '.'} See '{path} --help'.", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo(STOPPED, err=True)
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again on its way out
        sys.exit(1)
    except FedlibError as error:
        click.echo(f"fedlib: {error}", err=True)
        sys.exit(2)
    except OSError as error:  # a path that cannot be read or written, given as an option or argument
        named = f" {quoted(error.filename)}" if error.filename else ""
        click.echo(f"fedlib: Cannot use{named}: {error.strerror or error}.", err=True)
        sys.exit(2)


class Command(click.Command):
    """An option may be given once, unless it says otherwise: click would keep the last one without a word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for option, times in Counter(order).items():
                if isinstance(option, click.Option) and times > 1 and not (option.multiple or option.is_flag):
                    raise FedlibError(f"{option.opts[0]} is given {times} times; give it once.")
        return super().parse_args(ctx, args)


class Group(click.Group):
    command_class = Command


class Number(click.FloatRange):
    """A finite number: comparisons with nan are all false, so a range alone lets it pass."""

    def convert(self, value, param, ctx):
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{number} is not finite.", param, ctx)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fedlib")
def cli():
    """A reproducibility workbook for federated-learning papers.

    \b
    fedlib list                          the notebooks, their claims and verdicts
    fedlib report                        all claims in one table
    fedlib plan                          what would have to be trained, and how long that takes
    fedlib run                           regenerate every notebook into build/
    fedlib run 'fedlap/figure01*' --scale smoke
    fedlib simulate --dataset digits --model mlp --partition 'dirichlet(alpha=0.1)' --algorithm 'fedprox(mu=0.01)'

    The records of your runs go to build/runs (FEDLIB_STORE names another folder); those of the workbook are read from
    papers/runs. Data sets are in ~/.cache/fedlib (or FEDLIB_DATA). FEDLIB_JOBS sets the default of --jobs.
    """


def jobs_option(command):
    return click.option(
        "--jobs", "-j", type=click.IntRange(1, 10**9), default=environment.jobs,
        show_default="FEDLIB_JOBS, else the cores", help="Processes.",
    )(command)  # fmt: skip


def time_options(command):
    """How far runs are trained."""
    command = click.option("--finish", is_flag=True, help="Train half-done runs to their end.")(command)
    return click.option(
        "--hours", type=click.FloatRange(min=0), envvar="FEDLIB_HOURS", default=None,
        help="Train in the order of the plan until the time is up, then show what there is; the next call goes on.",
    )(command)  # fmt: skip


def notebook_options(command):
    """What selects notebooks and changes their parameters."""
    command = click.option(
        "-p", "parameters", nargs=2, multiple=True, metavar="NAME VALUE", help="Set a notebook parameter."
    )(command)
    command = click.option("--scale", metavar="SCALE", help="smoke, laptop or paper.")(command)
    return click.argument("names", nargs=-1)(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


# ---------------------------------------------------------------- notebooks


@cli.command("list")
@click.argument("names", nargs=-1)
@json_option
def list_(names, as_json):
    """The notebooks, the papers' claims and what our runs say of them.

    \b
    fedlib list
    fedlib list fedlap
    fedlib list --json | jq '.[].claims[] | select(.verdict == "disagrees") | .sentence'
    """
    from fedlib.workbook import notebooks as workbook
    from fedlib.workbook.claims import Claim
    from fedlib.workbook.tables import effect_text, verdict_text

    notebooks = workbook.find(names)
    if as_json:
        rows = [
            dict(paper=nb.paper, notebook=nb.name, title=nb.title, path=str(nb.path), claims=nb.claims)
            for nb in notebooks
        ]
        return print_json(rows)
    for nb in notebooks:
        click.echo(f"{nb.name}  {nb.title}")
        for claim in map(Claim.of, nb.claims):
            click.echo(f"    {claim.number:<5} {verdict_text(claim):<28} {claim.sentence}  {effect_text(claim)}")
        if not nb.claims:
            click.echo("    no claims yet: the committed notebook has not been executed")


@cli.command()
@click.option("--update", is_flag=True, help="Write it into README.md, papers/claims.md and the reading guides.")
@json_option
def report(update, as_json):
    """The scoreboard: every claim of every notebook with verdict, what it stands on, effect and interval, as Markdown.

    \b
    fedlib report
    fedlib report --update               after notebooks were executed again
    fedlib report --json | jq '.[] | select(.paper == "fedlaw" and .grade == "own") | .sentence'
    """
    from fedlib.workbook import notebooks as workbook
    from fedlib.workbook import report

    claims = report.gather(workbook.find())
    if as_json:
        return print_json(claims)
    if update:
        for path, board in report.pages().items():
            report.put(board, path)
        return click.echo(f"README.md, papers/claims.md and the reading guides are current: {report.sentence(claims)}.")
    click.echo(report.every(claims))


@cli.command()
@click.option(
    "--notebooks",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="Executed notebooks; by default those that are committed.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=None, help="By default build/site.")
def site(notebooks, out):
    """A static site of all notebooks, reading guides and algorithms, readable without a network.

    \b
    fedlib site                                      from the committed notebooks
    fedlib site --notebooks build/notebooks/laptop   from those that 'fedlib run' has just executed
    """
    from fedlib.runs.store import committed
    from fedlib.workbook import notebooks as workbook
    from fedlib.workbook import report
    from fedlib.workbook import site as site_

    found = workbook.find(folder=notebooks.resolve()) if notebooks else workbook.find()
    start = site_.build(found, (out or workbook.ROOT / "build" / "site").resolve(), committed())
    click.echo(f"{report.sentence(report.gather(found))}.\nThe site: {workbook.shown_path(start)}")


@cli.command()
@notebook_options
@jobs_option
@json_option
def plan(names, scale, parameters, jobs, as_json):
    """What notebooks need and the store lacks: missing and half-done runs, with an estimate of the time left.

    \b
    fedlib plan
    fedlib plan fedlap/figure04* --scale paper
    fedlib plan --scale paper -p seeds 1,2,3,4,5
    """
    from fedlib.runs import engine
    from fedlib.runs.estimate import estimate
    from fedlib.runs.execute import rounds_done
    from fedlib.runs.store import default_store
    from fedlib.workbook import notebooks as workbook

    store, rows, left, gpu, done = default_store(), [], {}, {}, {}
    for nb, changes in selection(names, scale, parameters):
        grid = list(nb.plan(changes).values())
        refuse_damaged(store, {spec.id for spec in grid})
        todo = engine.missing(grid, store, finish=True)
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
    table = [(r["notebook"], r["scale"], r["runs"], r["missing"], r["half_done"]) for r in rows]
    times = [(workbook.duration(r["seconds"]), workbook.duration(r["gpu_seconds"])) for r in rows]
    heads = ("notebook", "scale", "runs", "missing", "half done", "core time", "GPU time")
    print_table([heads, *((*row, *time) for row, time in zip(table, times, strict=True))])
    time, on_gpu = workbook.duration(total["seconds"]), workbook.duration(total["gpu_seconds"])
    what = f"{counted(total['missing'], 'distinct run')} to train"
    what += f" and {len(half)} to go on with, of which {counted(sum(half.values()), 'round')} are done" if half else ""
    click.echo(f"{what}; about {time} with {counted(jobs, 'job')}, or by a rule of thumb {on_gpu} on one GPU.")


@cli.command()
@notebook_options
@jobs_option
@click.option(
    "--engine",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    show_default=True,
    help="Train in processes of this machine or on a Ray cluster.",
)
@click.option("--address", default="auto", show_default=True, help="Of the Ray cluster, such as 10.0.0.1:6379.")
@click.option(
    "--gpus",
    type=Number(min=0),
    default=0,
    show_default=True,
    help="What a run gets of a GPU on the cluster: with 0.25, four share one.",
)
@time_options
@click.option("--commit", is_flag=True, help="Put the records into papers/runs, which the committed pages stand on.")
@click.option("--update", is_flag=True, help="Write the outputs back to notebooks/, without papermill's traces.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to.  [default: build/notebooks]")
def run(names, scale, parameters, jobs, engine, address, gpus, hours, finish, commit, update, out):
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
    import fedlib
    from fedlib.runs import engine as engine_
    from fedlib.runs import execute
    from fedlib.runs import ray as cluster
    from fedlib.runs.store import committed, default_store
    from fedlib.workbook import notebooks as workbook
    from fedlib.workbook import report as report_

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
    trainer = cluster.Ray(address, gpus) if engine == "ray" else None
    fedlib.run(specs, jobs, store, engine=trainer, hours=hours, finish=finish)
    if commit:
        click.echo(f"{execute.commit(specs, store, committed())} records were put into papers/runs.")
    if update and any(nb.path.is_relative_to(workbook.ROOT / "notebooks") for nb, _ in chosen):
        refuse_uncommitted(specs, store)
    if hours is not None:
        os.environ["FEDLIB_HOURS"] = "0"  # the notebooks train nothing more
    paths = {}

    def done(nb, path):
        paths[nb] = path
        verdicts = [claim["verdict"] for claim in workbook.Notebook(path).claims]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts)) or "no claims"
        click.echo(f"{workbook.shown_path(path)}  ({counts})")

    unfinished = {spec.id for spec in engine_.missing(specs, store, finish=True)}
    whole, early = [], []
    for one, grid in zip(chosen, grids, strict=True):
        (early if not update and any(spec.id in unfinished for spec in grid) else whole).append(one)
    folder = (out or workbook.BUILD).resolve()
    if whole:
        workbook.execute_all(whole, jobs, folder, done)
    try:
        if early:
            workbook.execute_all(early, jobs, folder, done)
    except FedlibError as error:  # a page may need more than there is, such as final models: that is no failure
        click.echo(f"fedlib: not to be seen yet, its runs being half done: {error}", err=True)
    paths = [paths[nb] for nb, _ in chosen if nb in paths]
    if update:
        for (nb, _), path in zip(chosen, paths, strict=True):
            workbook.update(nb, path)
        click.echo(f"Updated: {', '.join(workbook.shown_path(nb.path) for nb, _ in chosen)}")
    else:
        folders = sorted({workbook.shown_path(path.parent) for path in paths})
        click.echo(f"{counted(len(paths), 'notebook')} regenerated in {', '.join(folders)}.")
        if claims := report_.gather(workbook.Notebook(path) for path in paths):
            click.echo(f"{report_.sentence(claims)}.")


def refuse_uncommitted(specs, store) -> None:
    """A committed page must not stand on records that only its maker has."""
    from fedlib.runs import engine, execute
    from fedlib.runs.store import committed

    evidence = committed()
    lacking = {spec.id for spec in engine.missing(specs, evidence)}
    lacking |= {record.id for record in execute.uncommitted(specs, store, evidence)}
    if lacking:
        raise FedlibError(
            f"--update writes pages that anyone can make again, but {len(lacking)} of their runs are not in "
            "papers/runs; --commit puts there what is in your own store."
        )


def refuse_damaged(store, ids) -> None:
    """A record that is cut short or edited is reported, not silently trained again: it may be the only copy."""
    for id in ids:
        store.get(id)


def selection(names, scale, parameters) -> list[tuple]:
    """The notebooks with their changed parameters; anything unknown fails here, before anything runs."""
    from fedlib.workbook import notebooks as workbook

    values = once([*parameters, *([("scale", scale)] if scale else [])])
    notebooks = workbook.find(names)
    for name in values:
        having = [nb for nb in notebooks if name in nb.defaults]
        if not having:
            notebooks[0].changes({name: values[name]})  # says what it takes
        if (count := len(having)) < len(notebooks):
            click.echo(f"fedlib: {name} is set in the {count} of {len(notebooks)} notebooks that have it.", err=True)
    return [(nb, nb.changes({n: v for n, v in values.items() if n in nb.defaults})) for nb in notebooks]


def once(pairs) -> dict[str, str]:
    """Names and values as a dict; a name that comes twice is an error."""
    if twice := [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]:
        raise FedlibError(f"{twice[0]} is given more than once; give it one value.")
    return dict(pairs)


# ---------------------------------------------------------------- one run


def spec_options(only=None, several: str | None = None):
    """One option per field of RunSpec, or per field named in ``only``; the help is the comment beside the field."""
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(RunSpec), re.MULTILINE))

    def add(command):
        for field in reversed([f for f in dataclasses.fields(RunSpec) if only is None or f.name in only]):
            default = "required" if field.default is dataclasses.MISSING else f"default: {field.default}"
            again = " May be repeated." if field.name == several else ""
            command = click.option(
                f"--{field.name.replace('_', '-')}",
                field.name,
                multiple=field.name == several,
                metavar=kind_of(field.type),
                help=f"{comments.get(field.name, '')}{again}  [{default}]",
            )(command)
        return command

    return add


def kind_of(kind) -> str:
    """How a field's type is shown, such as INT or unit|half."""
    parts = [k for k in get_args(kind) or (kind,) if k is not type(None)]
    return "|".join(k.__name__.upper() if isinstance(k, type) else str(k) for k in parts).replace("STR", "TEXT")


def value_of(field: dataclasses.Field, text: str):
    """What a text on the command line means for a field; RunSpec checks the type."""
    if text.lower() == "none":
        return None
    if str in (get_args(field.type) or (field.type,)):
        return text
    try:
        return literal(text.capitalize() if text in ("true", "false") else text, field.name)
    except FedlibError:
        raise
    except ValueError:
        return text


def values_of(texts: dict[str, str]) -> dict:
    """The same for several fields by name; what is no field stays as it is, for RunSpec to refuse."""
    fields = {field.name: field for field in dataclasses.fields(RunSpec)}
    return {name: value_of(fields[name], text) if name in fields else text for name, text in texts.items()}


@cli.command()
@spec_options(several="seed")
@click.option("-p", "--set", "pairs", nargs=2, multiple=True, metavar="FIELD VALUE", help="Another way to set a field.")
@click.option("--fresh", is_flag=True, help="Train again even if there is a record.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bar.")
@time_options
@jobs_option
@json_option
def simulate(pairs, fresh, quiet, hours, finish, jobs, as_json, seed, **options):
    """Run one federation and print its accuracy; the same run asked for again is read from the store.

    \b
    fedlib simulate --dataset digits --model mlp --partition iid
    fedlib simulate --dataset mnist --model 'mlp(hidden=64)' --partition 'shards(per_client=2)' \\
        --clients 100 --participation 0.1 --local-epochs 10 --batch-size 10 --algorithm 'fedlap(q=0.5)'
    fedlib simulate --dataset digits --model mlp --partition 'dirichlet(alpha=0.1)' --seed 1 --seed 2 --json

    --json prints id, spec, status, round and accuracy (lists), summary, and what --probes found; accuracies are
    shares of 1. With several seeds it is a list.
    """
    given = [(name, text) for name, text in options.items() if text is not None]
    values = values_of(once([*given, *pairs, *(("seed", text) for text in seed[:1])]))
    seeds = [values_of({"seed": text}) for text in seed] or [{}]
    specs = [RunSpec.from_json(values | one) for one in seeds]
    records = simulated(specs, fresh, jobs, not quiet, hours, finish)
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


CENTRAL = "dataset model subset skip transform batch_size optimizer lr lr_decay seed start".split()


@cli.command()
@click.argument("name", required=False)
@spec_options(only=CENTRAL)
@click.option("--epochs", type=click.IntRange(min=1), default=10, show_default=True, help="Passes over the images.")
@json_option
def pretrain(name, epochs, as_json, **options):
    """Train a model on a whole data set and keep it as a checkpoint that runs can start from.

    Without NAME, lists the checkpoints. With a NAME that exists and no option, trains it again by its recipe and fails
    if other weights come out. It can be stopped at any time and goes on from its last epoch.

    \b
    fedlib pretrain                      what there is
    fedlib pretrain resnet20_cifar10     make it again and compare
    fedlib pretrain my_mlp --dataset mnist --model 'mlp(hidden=64)' --epochs 5 --lr 0.05
    fedlib simulate --start my_mlp --dataset mnist --model 'mlp(hidden=64)' --partition iid

    A checkpoint is papers/weights/NAME.safetensors with its recipe and sha256 in NAME.json. The sha256 is part of
    the id of runs that start from it. Where a run has other classes, write --start 'NAME(classifier=fresh)'.
    """
    from tqdm import tqdm

    from fedlib.models.starts import STARTS
    from fedlib.runs import pretrained

    STARTS.read()
    cards = {start: cls.card for start, cls in STARTS.entries.items()}
    if name is None:
        return print_json(cards) if as_json else print_cards(cards)
    given = values_of({field: text for field, text in options.items() if text is not None})
    if name in cards and (given or "recipe" not in cards[name]):
        raise FedlibError(f"There is a start {name!r} already, made otherwise: choose another name.")
    if name not in cards and not {"dataset", "model"} <= set(given):
        known = ", ".join(cards) or "none"
        raise FedlibError(f"There is no start {name!r} (there are: {known}); to train it, give --dataset and --model.")
    if not name.isidentifier():
        raise FedlibError(f"A start is named by letters, digits and '_', such as resnet20_cifar10; got {name!r}.")
    central = dict(partition="iid", clients=1, keep_optimizer=True, rounds=epochs, eval_every=epochs)
    spec = RunSpec.from_json(cards[name]["recipe"] if name in cards else given | central)
    with tqdm(total=spec.rounds, unit="epoch", desc=name) as bar:
        card = pretrained.pretrain(name, spec, lambda done: bar.update(done - bar.n))
    if as_json:
        print_json(card)
    else:
        print_cards({name: card})
    if card["sha256"] != cards.get(name, card)["sha256"]:
        before = cards[name]
        raise FedlibError(
            f"Other weights came out than those of {name}: accuracy {card['accuracy']} (then {before['accuracy']}), "
            f"on {card['environment']} (then {before['environment']}). The kept ones were left as they are."
        )


def print_cards(cards: dict[str, dict]) -> None:
    for name, card in cards.items():
        click.echo(f"{name}  sha256 {card['sha256'][:12]}\n    {card['about']}")


def simulated(specs: list[RunSpec], fresh: bool, jobs: int, progress: bool, hours, finish: bool) -> list:
    """From the store, or trained; a fresh run is made apart and then takes the place of what was there."""
    import tempfile

    from fedlib.runs.store import Store, default_store

    store = default_store()
    if fresh:
        with tempfile.TemporaryDirectory() as folder:
            records = train(specs, jobs, Store(folder), progress, None, True)
        for record in records:
            store.put(record)
        return records
    refuse_damaged(store, {spec.id for spec in specs})
    return train(specs, jobs, store, progress, hours, finish)


def train(specs: list[RunSpec], jobs: int, store, progress: bool, hours, finish: bool) -> list:
    from fedlib.federation.federation import Federation
    from fedlib.runs import engine

    todo = engine.missing(specs, store, finish or hours is not None) if hours != 0 else []
    if todo and environment.may_train():
        Federation(todo[0])  # fetches the data; more clients than samples, say, fails here, before the bar
    return engine.run(specs, jobs, store, progress, hours=hours, finish=finish)


def result_line(record) -> str:
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


def counted(number: int, thing: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{number} {thing}{'s' * (number != 1)}"


# ---------------------------------------------------------------- what there is


def describe(registry) -> list[dict]:
    """Name, parameters with defaults, and the first sentence of the docstring of everything registered."""
    rows = []
    for name in registry.names():
        cls = registry.entries[name]
        missing = dataclasses.MISSING
        parameters = {f.name: "required" if f.default is missing else f.default for f in dataclasses.fields(cls)}
        paragraph = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
        about = re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]
        rows.append(dict(name=name, parameters=parameters, about=about))
    return rows


def print_described(rows: list[dict], as_json: bool) -> None:
    if as_json:
        return print_json(rows)
    for row in rows:
        shown = ", ".join(f"{name}={value}" for name, value in row["parameters"].items())
        click.echo(f"{row['name']}({shown})" if shown else row["name"])
        click.echo(f"    {row['about']}")


def listing(name: str, module: str, registry: str, text: str) -> None:
    """A command that lists what a registry holds."""

    @cli.command(name, help=text)
    @json_option
    def command(as_json):
        print_described(describe(getattr(importlib.import_module(module), registry)), as_json)


listing(
    "algorithms", "fedlib.algorithms", "ALGORITHMS",
    """The algorithms with their parameters; parts are joined by '+'.

    \b
    fedlib algorithms
    fedlib simulate ... --algorithm 'fedprox(mu=0.01)'
    """,
)  # fmt: skip
listing(
    "models", "fedlib.models", "MODELS",
    """The models with their parameters.

    \b
    fedlib models
    fedlib simulate ... --model 'mlp(hidden=64)'
    """,
)  # fmt: skip
listing(
    "partitions", "fedlib.data.partition", "PARTITIONS",
    """The ways to deal a data set to clients.

    \b
    fedlib partitions
    fedlib simulate ... --partition 'dirichlet(alpha=0.1)'
    """,
)  # fmt: skip
listing(
    "proxies", "fedlib.data.proxy", "PROXIES",
    """The server's own data that a run can have, cut from the test set.

    \b
    fedlib proxies
    fedlib simulate ... --proxy 'balanced(size=100)' --algorithm law
    """,
)  # fmt: skip
listing(
    "corruptions", "fedlib.data.corruption", "CORRUPTIONS",
    """What can be wrong with clients' labels.

    \b
    fedlib corruptions
    fedlib simulate ... --corruption 'swap(fraction=0.5)'
    """,
)  # fmt: skip
listing(
    "optimizers", "fedlib.core.optimizers", "OPTIMIZERS",
    """The optimisers of local training and of server methods.

    \b
    fedlib optimizers
    fedlib simulate ... --optimizer 'sgd(momentum=0.9)'
    """,
)  # fmt: skip
listing(
    "probes", "fedlib.probes", "PROBES",
    """The probes: what a run can measure besides accuracy; they change none of its numbers.

    Each takes every=N (rounds from one measurement to the next) or rounds=(1, 50); those with every=None measure the
    last round only.

    \b
    fedlib probes
    fedlib simulate ... --probes 'spread+hessian(top=5, every=10)' --json
    """,
)  # fmt: skip


@cli.group(invoke_without_command=True)
@json_option
@click.pass_context
def data(context, as_json):
    """The data sets: which are present, where they came from, their checksums.

    \b
    fedlib data
    fedlib data get cifar10              fetch it now, verify it and keep it in the data directory
    """
    if context.invoked_subcommand:
        return
    from fedlib.data import data_dir, inventory

    rows = inventory()
    if as_json:
        return print_json(dict(directory=str(data_dir()), datasets=rows))
    lines = [("name", "present", "train", "test", "sha256", "from", "about")]
    for r in rows:
        present, train, test = "yes" if r["present"] else "no", r["train"] or "", r["test"] or ""
        lines.append((r["name"], present, train, test, r["checksum"][:12], r["source"], r["about"]))
    print_table(lines)
    for r in rows:
        if not r["present"]:
            click.echo(f"{r['name']}: {r['obtain']}.")
    click.echo(f"Data directory: {data_dir()} (FEDLIB_DATA names another); 'fedlib data get NAME' fetches a data set.")


@data.command("get")
@click.argument("names", nargs=-1, required=True)
def data_get(names):
    """Find or fetch data sets, verify their checksums and keep them.

    \b
    fedlib data get mnist fashion_mnist cifar10
    """
    from fedlib.data import DATASETS, get

    for name in names:
        DATASETS.make(name)  # a misspelt name fails before anything is fetched
    for name in names:
        dataset = get(name)
        click.echo(f"{name}: {len(dataset.y_train):,} + {len(dataset.y_test):,} samples, from {dataset.source}.")


@cli.command()
@click.option("--sample", type=click.IntRange(min=1), default=4, show_default=True, help="How many records.")
@click.option("--seconds", type=Number(min=1), default=120, show_default=True, help="Time to spend, about.")
@click.option(
    "--store", type=click.Path(exists=True, file_okay=False), help="Another folder of records, such as build/runs."
)
@jobs_option
@json_option
def audit(sample, seconds, store, jobs, as_json):
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
    from fedlib.runs.audit import audit as audit_records
    from fedlib.runs.store import Store

    outcomes = audit_records(sample, seconds, jobs, Store(store) if store else None)
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


# ---------------------------------------------------------------- output


def print_json(thing) -> None:
    click.echo(json.dumps(thing, indent=2, ensure_ascii=False))


def print_table(rows: list[tuple]) -> None:
    """Aligned columns; numbers to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = [any(isinstance(row[k], int) for row in rows) for k in range(len(widths))]
    for row in texts:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        click.echo("  ".join(cells).rstrip())


if __name__ == "__main__":
    main()
