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

from fedlib import environment
from fedlib.errors import FedlibError, quoted
from fedlib.registry import literal
from fedlib.spec import RunSpec

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
        # A value is repeated in it, however long.
        sentence = sentence if len(sentence) < 600 else f"{sentence[:400]}…{sentence[-100:]}"
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

    Run records live in papers/runs (smoke runs and those of 'simulate' in build/runs; FEDLIB_STORE names another
    folder), data sets in ~/.cache/fedlib (or FEDLIB_DATA). FEDLIB_JOBS sets the default of --jobs.
    """


def jobs_option(command):
    return click.option(
        "--jobs", "-j", type=click.IntRange(1, 10**9), default=environment.jobs,
        show_default="FEDLIB_JOBS, else the cores", help="Processes.",
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
    fedlib list --json | jq '.[].claims[] | select(.verdict == "not reproduced") | .text'
    """
    from fedlib import workbook
    from fedlib.claims import Claim, cells

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
            _, effect, bounds, *_ = cells(claim)
            click.echo(f"    {claim.number:<5} {claim.verdict:<15} {claim.text}  {effect} {bounds}")
        if not nb.claims:
            click.echo("    no claims yet: the committed notebook has not been executed")


@cli.command()
@click.option("--update", is_flag=True, help="Write it into README.md, papers/claims.md and the reading guides.")
@json_option
def report(update, as_json):
    """The scoreboard: every claim of every notebook with effect, interval, seeds and verdict, as Markdown.

    \b
    fedlib report
    fedlib report --update               after notebooks were executed again
    fedlib report --json | jq '.[] | select(.paper == "fedlws" and .verdict == "reproduced") | .text'
    """
    from fedlib import report, workbook

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
    from fedlib import report, workbook
    from fedlib import site as site_
    from fedlib.store import default_store

    found = workbook.find(folder=notebooks.resolve()) if notebooks else workbook.find()
    start = site_.build(found, (out or workbook.ROOT / "build" / "site").resolve(), default_store("laptop"))
    click.echo(f"{report.sentence(report.gather(found))}.\nThe site: {workbook.shown_path(start)}")


@cli.command()
@notebook_options
@jobs_option
@json_option
def plan(names, scale, parameters, jobs, as_json):
    """The runs that notebooks need and the store lacks, with an estimate of the time.

    \b
    fedlib plan
    fedlib plan fedlap/figure04* --scale paper
    fedlib plan --scale paper -p seeds 1,2,3,4,5
    """
    from fedlib import engine, workbook
    from fedlib.store import default_store

    chosen = selection(names, scale, parameters)
    rows, lacking, gpu = [], {}, {}
    for nb, changes in chosen:
        store, grid = default_store(nb.scale(changes)), list(nb.plan(changes).values())
        refuse_damaged(store, {spec.id for spec in grid})
        todo = engine.missing(grid, store)
        estimates = {spec.id: engine.estimate(spec) for spec in todo}
        lacking |= {id: max(seconds, lacking.get(id, 0)) for id, seconds in estimates.items()}
        on_gpu = {spec.id: engine.estimate(spec, "cuda") for spec in todo}
        gpu |= {id: max(seconds, gpu.get(id, 0)) for id, seconds in on_gpu.items()}
        times = dict(seconds=sum(estimates.values()), gpu_seconds=sum(on_gpu.values()))
        runs = len({spec.id for spec in grid})
        rows.append(dict(notebook=nb.name, scale=nb.scale(changes), runs=runs, missing=len(todo), **times))
    longest = max(lacking.values(), default=0)
    total = dict(missing=len(lacking), core_seconds=sum(lacking.values()), gpu_seconds=sum(gpu.values()), jobs=jobs)
    total["seconds"] = max(longest, total["core_seconds"] / jobs)
    if as_json:
        return print_json(dict(notebooks=rows, total=total, ids=sorted(lacking)))
    table = [(r["notebook"], r["scale"], r["runs"], r["missing"]) for r in rows]
    times = [(workbook.duration(r["seconds"]), workbook.duration(r["gpu_seconds"])) for r in rows]
    heads = ("notebook", "scale", "runs", "missing", "core time", "GPU time")
    print_table([heads, *((*row, *time) for row, time in zip(table, times, strict=True))])
    time, on_gpu = workbook.duration(total["seconds"]), workbook.duration(total["gpu_seconds"])
    what = f"{counted(total['missing'], 'distinct run')} to train, about {time} with {counted(jobs, 'job')}"
    click.echo(f"{what}, or by a rule of thumb {on_gpu} on one GPU.")


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
@click.option("--update", is_flag=True, help="Write the outputs back to notebooks/, without papermill's traces.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to.  [default: build/notebooks]")
def run(names, scale, parameters, jobs, engine, address, gpus, update, out):
    """Execute notebooks headlessly: all, or those that names, globs, papers or paths select.

    Runs that the store lacks are trained first, for all notebooks together; the notebooks then only render.
    Finished runs are kept and unfinished ones resume, so it can be stopped at any time.

    \b
    fedlib run
    fedlib run fedlap --scale smoke --jobs 2
    fedlib run fedlap/figure01_no_stragglers -p seeds 1,2
    fedlib run --update                  after changing a notebook: renew its committed outputs
    fedlib run --scale paper --engine ray --address 10.0.0.1:6379 --gpus 0.25
    """
    import fedlib
    from fedlib import cluster, workbook
    from fedlib import report as report_
    from fedlib.store import default_store

    chosen = selection(names, scale, parameters)
    if update:
        for nb, changes in chosen:
            if changes:
                raise FedlibError(
                    f"--update keeps what a notebook shows by default, but {', '.join(changes)} of {nb.name} would "
                    "differ from its default; leave that out, or change the default in the notebook."
                )
    wanted: dict[str, list] = {}  # by scale: smoke runs have their own store
    for nb, changes in chosen:
        wanted.setdefault(nb.scale(changes), []).extend(nb.plan(changes).values())
    for scale_, specs in wanted.items():
        refuse_damaged(default_store(scale_), {spec.id for spec in specs})
    for scale_, specs in wanted.items():
        fedlib.run(specs, jobs, scale=scale_, engine=cluster.Ray(address, gpus) if engine == "ray" else None)

    def done(nb, path):
        verdicts = [claim["verdict"] for claim in workbook.Notebook(path).claims]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts)) or "no claims"
        click.echo(f"{workbook.shown_path(path)}  ({counts})")

    paths = workbook.execute_all(chosen, jobs, (out or workbook.BUILD).resolve(), done)
    if update:
        for (nb, _), path in zip(chosen, paths, strict=True):
            workbook.update(nb, path)
        click.echo(f"Updated: {', '.join(workbook.shown_path(nb.path) for nb, _ in chosen)}")
    else:
        folders = sorted({workbook.shown_path(path.parent) for path in paths})
        click.echo(f"{counted(len(paths), 'notebook')} regenerated in {', '.join(folders)}.")
        if claims := report_.gather(workbook.Notebook(path) for path in paths):
            click.echo(f"{report_.sentence(claims)}.")


def refuse_damaged(store, ids) -> None:
    """A record that is cut short or edited is reported, not silently trained again: it may be the only copy."""
    for id in ids:
        store.get(id)


def selection(names, scale, parameters) -> list[tuple]:
    """The notebooks with their changed parameters; anything unknown fails here, before anything runs."""
    from fedlib import workbook

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
@jobs_option
@json_option
def simulate(pairs, fresh, quiet, jobs, as_json, seed, **options):
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
    records = simulated(specs, fresh, jobs, progress=not quiet)
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

    from fedlib import pretrained

    pretrained.STARTS.read()
    cards = {start: cls.card for start, cls in pretrained.STARTS.entries.items()}
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


def simulated(specs: list[RunSpec], fresh: bool, jobs: int, progress: bool) -> list:
    """Through build/runs, so that trying things out never adds to the committed records; those are read, though."""
    import tempfile

    from fedlib.store import Store, default_store

    committed, store = default_store(), default_store("smoke")
    if fresh:
        with tempfile.TemporaryDirectory() as folder:
            records = train(specs, jobs, Store(folder), progress)
        for record in records:
            store.put(record)
        return records
    known = {r.id: r for spec in specs for s in (store, committed) if (r := s.get(spec.id)) and r.has(spec)}
    if todo := [spec for spec in specs if spec.id not in known]:
        known |= {record.id: record for record in train(todo, jobs, store, progress)}
    return [known[spec.id] for spec in specs]


def train(specs: list[RunSpec], jobs: int, store, progress: bool) -> list:
    """A single run is trained right here, which starts sooner than a worker process."""
    from tqdm import tqdm

    from fedlib import engine
    from fedlib.simulation import Federation

    if environment.may_train():
        Federation(specs[0])  # fetches the data; more clients than samples, say, fails here, before the bar
        if len(specs) == 1:
            with tqdm(total=specs[0].rounds, unit="round", desc="training", disable=not progress) as bar:
                return [engine.run_one(specs[0], store, lambda done: bar.update(done - bar.n))]
    return engine.run(specs, jobs, store, progress=progress)


def result_line(record) -> str:
    spec = record.spec
    head = f"{record.id}  {spec.algorithm} on {spec.dataset}, {spec.partition}, seed {spec.seed}"
    if record.status != "ok":
        return f"{head}: {record.status}, {record.error['message']}"
    last, last10, best = (f"{100 * record.summary[name]:.2f}%" for name in ("last", "last10", "best"))
    tail, rounds = min(10, len(record.series["accuracy"])), counted(spec.rounds, "round")
    return f"{head}: accuracy {last} after {rounds} (mean of the last {tail} {last10}, best {best})"


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
    "corruptions", "fedlib.data.proxy", "CORRUPTIONS",
    """What can be wrong with clients' labels.

    \b
    fedlib corruptions
    fedlib simulate ... --corruption 'swap(fraction=0.5)'
    """,
)  # fmt: skip
listing(
    "optimizers", "fedlib.optimizers", "OPTIMIZERS",
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
@jobs_option
@json_option
def audit(sample, seconds, jobs, as_json):
    """Re-run some of the committed records and fail if a number moved.

    Every record is checked against its checksum. Then the cheapest of every kind are run again, long ones for as
    many of their first rounds as the time allows: equal to the last digit where torch and the processor are those of
    the record, else the first round within 0.001 in training loss. Half of them are of this kind of machine, if there
    are so many.

    \b
    fedlib audit
    fedlib audit --sample 20 --seconds 3600
    """
    from fedlib.audit import audit as audit_records

    outcomes = audit_records(sample, seconds, jobs)
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
