"""What commands have in common: options, and how they print."""

import dataclasses
import inspect
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, get_args

import click

from fedlib.core import environment
from fedlib.core.errors import FedlibError
from fedlib.core.paths import ROOT
from fedlib.core.registry import literal, registry_of
from fedlib.core.spec import RunSpec

if TYPE_CHECKING:  # it would import torch
    from fedlib.runs.store import Store


class Command(click.Command):
    """An option may be given once, unless it says otherwise: click would keep the last one without a word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for option, times in Counter(order).items():
                if isinstance(option, click.Option) and times > 1 and not (option.multiple or option.is_flag):
                    raise FedlibError(f"{option.opts[0]} is given {times} times; give it once.")
        return super().parse_args(ctx, args)


def complete_algorithm(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: names of algorithms; after a '+' those that may follow."""
    before, plus, last = incomplete.rpartition("+")
    return [before + plus + name for name in registry_of("algorithm").names() if name.startswith(last)]


def complete_notebook(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell: names of papers and notebooks."""
    found = [f"{path.parent.name}/{path.stem}" for path in sorted((ROOT / "notebooks").glob("*/*.ipynb"))]
    return [n for n in [*dict.fromkeys(f.partition("/")[0] for f in found), *found] if n.startswith(incomplete)]


class Number(click.FloatRange):
    """A finite number: comparisons with nan are all false, so a range alone lets it pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{number} is not finite.", param, ctx)


def choose_device(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value:
        os.environ["FEDLIB_DEVICE"] = value  # which workers and kernels inherit


jobs_option = click.option(
    "--jobs", "-j", type=click.IntRange(1, 10**9), default=environment.jobs,
    show_default="FEDLIB_JOBS, else the cores", help="Processes.",
)  # fmt: skip
device_option = click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), callback=choose_device, expose_value=False,
    show_default="FEDLIB_DEVICE, else the card if there is one", help="Where runs are trained.",
)  # fmt: skip
gpus_option = click.option(
    "--gpus", type=Number(min=0), show_default="0.25 where there are any",
    help="What a run gets of a GPU: with 0.5, two share one.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def time_options(command: Callable) -> Callable:
    """How far runs are trained."""
    command = click.option("--finish", is_flag=True, help="Train half-done runs to their end.")(command)
    return click.option(
        "--hours", type=Number(min=0), default=environment.hours, show_default="FEDLIB_HOURS, else to the end",
        help="Train in the order of the plan until the time is up, then show what there is; the next call goes on.",
    )(command)  # fmt: skip


def notebook_options(command: Callable) -> Callable:
    """What selects notebooks and changes their parameters."""
    command = click.option(
        "-p", "parameters", nargs=2, multiple=True, metavar="NAME VALUE", help="Set a notebook parameter."
    )(command)
    command = click.option("--scale", metavar="SCALE", help="smoke, laptop or paper.")(command)
    return click.argument("names", nargs=-1, shell_complete=complete_notebook)(command)


def once(pairs: Collection[tuple[str, str]]) -> dict[str, str]:
    """Names and values as a dict; a name that comes twice is an error."""
    if twice := [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]:
        raise FedlibError(f"{twice[0]} is given more than once; give it one value.")
    return dict(pairs)


def spec_options(only: Collection[str] | None = None, several: str | None = None) -> Callable[[Callable], Callable]:
    """One option per field of RunSpec, or per field named in ``only``; the help is the comment beside the field."""
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(RunSpec), re.MULTILINE))

    def add(command: Callable) -> Callable:
        for field in reversed([f for f in dataclasses.fields(RunSpec) if only is None or f.name in only]):
            default = "required" if field.default is dataclasses.MISSING else f"default: {field.default}"
            again = " May be repeated." if field.name == several else ""
            command = click.option(
                f"--{field.name.replace('_', '-')}",
                field.name,
                multiple=field.name == several,
                shell_complete=complete_algorithm if field.name == "algorithm" else None,
                metavar=kind_of(field.type),
                help=f"{comments.get(field.name, '')}{again}  [{default}]",
            )(command)
        return command

    return add


def kind_of(kind: Any) -> str:
    """How a field's type is shown, such as INT or unit|half."""
    parts = [k for k in get_args(kind) or (kind,) if k is not type(None)]
    return "|".join(k.__name__.upper() if isinstance(k, type) else str(k) for k in parts).replace("STR", "TEXT")


def value_of(field: dataclasses.Field, text: str) -> Any:
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


def counted(number: int, thing: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{number} {thing}{'s' * (number != 1)}"


def print_json(thing: Any) -> None:
    click.echo(json.dumps(thing, indent=2, ensure_ascii=False))


def print_table(rows: list[tuple]) -> None:
    """Aligned columns; numbers to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = [any(isinstance(row[k], int) for row in rows) for k in range(len(widths))]
    for row in texts:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        click.echo("  ".join(cells).rstrip())


def refuse_damaged(store: "Store", ids: Iterable[str]) -> None:
    """A record that is cut short or edited is reported, not silently trained again: it may be the only copy."""
    for id in ids:
        store.get(id)
