"""What there is: one command for every registry."""

import dataclasses
import inspect
import re
import textwrap
from contextlib import suppress

import click

from fedlib.cli import COMMANDS
from fedlib.cli.options import Command, json_option, kind_of, print_json, print_table
from fedlib.core.errors import FedlibError, meant, quoted
from fedlib.core.registry import Registry, kinds, registry_of

KINDS = ("algorithm", "model", "data set", "partition", "proxy", "corruption", "optimizer", "probe", "measurement")


def describe(registry: Registry) -> list[dict]:
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


def parameters(cls: type) -> list[dict]:
    """Every parameter with its type and default, and the comment that stands beside it in the code."""
    comments: dict[str, str] = {}
    for one in reversed(cls.__mro__[:-1]):
        with suppress(OSError, TypeError):  # typed at a prompt
            comments |= re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(one), re.MULTILINE)
    types = kinds(cls)
    return [
        dict(
            name=f.name,
            type=kind_of(types[f.name]).lower(),
            default="required" if f.default is dataclasses.MISSING else f.default,
            about=comments.get(f.name, ""),
        )
        for f in dataclasses.fields(cls)
    ]


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: everything that is registered."""
    return [name for kind in KINDS for name in registry_of(kind).names() if name.startswith(incomplete)]


@click.command(cls=Command)
@click.argument("name", shell_complete=complete_name)
@json_option
def params(name: str, as_json: bool) -> None:
    """One method, model, data set … by its name: what it is, its parameters, their defaults.

    \b
    fedlib params fedprox
    fedlib params dirichlet --json
    """
    found = [(kind, registry_of(kind).entries[name]) for kind in KINDS if name in registry_of(kind).entries]
    if not found:
        known = [one for kind in KINDS for one in registry_of(kind).names()]
        lists = "'fedlib algorithms', 'fedlib models', 'fedlib data' … list what there is"
        raise FedlibError(f"Nothing is called {quoted(name)}{meant(name, known)}; {lists}.")
    rows = [
        dict(kind=kind, name=name, about=inspect.getdoc(cls) or "", parameters=parameters(cls)) for kind, cls in found
    ]
    if as_json:
        return print_json(rows)
    for row in rows:
        click.echo(f"{row['name']}, a {row['kind']}" if row["kind"][0] not in "aeiou" else f"{name}, an {row['kind']}")
        click.echo(textwrap.indent(row["about"], "    "))
        if row["parameters"]:
            print_table(
                [("parameter", "type", "default", ""), *(tuple(map(str, p.values())) for p in row["parameters"])]
            )


def listing(name: str, kind: str, example: str, more: str = "") -> click.Command:
    """The command ``name``, which lists the registry of this kind."""

    @click.command(name, cls=Command, help=f"{COMMANDS[name][1]}{more}\n\n\b\nfedlib {name}\n{example}")
    @json_option
    def command(as_json: bool) -> None:
        rows = describe(registry_of(kind))
        if as_json:
            return print_json(rows)
        for row in rows:
            shown = ", ".join(f"{parameter}={value}" for parameter, value in row["parameters"].items())
            click.echo(f"{row['name']}({shown})" if shown else row["name"])
            click.echo(f"    {row['about']}")

    return command


algorithms = listing("algorithms", "algorithm", "fedlib simulate ... --algorithm 'fedprox(mu=0.01)'")
models = listing("models", "model", "fedlib simulate ... --model 'mlp(hidden=64)'")
partitions = listing("partitions", "partition", "fedlib simulate ... --partition 'dirichlet(alpha=0.1)'")
proxies = listing("proxies", "proxy", "fedlib simulate ... --proxy 'balanced(size=100)' --algorithm law")
corruptions = listing("corruptions", "corruption", "fedlib simulate ... --corruption 'swap(fraction=0.5)'")
optimizers = listing("optimizers", "optimizer", "fedlib simulate ... --optimizer 'sgd(momentum=0.9)'")
measures = listing("measures", "measurement", "# in a notebook's grid: Measure('class_counts(dataset=mnist)')")
probes = listing(
    "probes", "probe", "fedlib simulate ... --probes 'spread+hessian(top=5, every=10)' --json",
    "\n\nEach takes every=N (rounds from one measurement to the next) or rounds=(1, 50); those with every=None measure "
    "the last round only.",
)  # fmt: skip
