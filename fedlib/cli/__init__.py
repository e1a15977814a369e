"""The ``fedlib`` command. Each group of commands is a module of its own, imported when one of them is called: --help
must not wait for torch. Inside these modules imports stand at the top."""

import importlib
import os
import sys
import warnings

import click

from fedlib import __version__
from fedlib.core.errors import FedlibError, quoted

STOPPED = "Stopped. What was finished is kept and unfinished runs resume: give the same command again to go on."
COMMANDS = {  # in the order of --help; where each is, and what it says there
    "list": ("pages", "The notebooks, the papers' claims and what our runs say of them."),
    "report": ("pages", "The scoreboard: every claim of every notebook with effect, interval, seeds and verdict."),
    "site": ("pages", "A static site of all notebooks, reading guides and algorithms, readable without a network."),
    "new": ("pages", "The files of a new page, of a new paper or one that is here."),
    "plan": ("regenerate", "The runs that notebooks need and the store lacks, with an estimate of the time."),
    "run": ("regenerate", "Execute notebooks headlessly: all, or those that names, globs, papers or paths select."),
    "simulate": ("simulate", "Run one federation and print its accuracy."),
    "compare": ("compare", "Several methods on one setting with the same seeds: a table with intervals, curves, CSV."),
    "runs": ("records", "The runs on record: filtered, sorted, as a table, CSV or JSON."),
    "show": ("records", "One record: what was run, its curve, the machine, the pages that stand on it."),
    "diff": ("records", "Two runs beside each other: what differs."),
    "clean": ("records", "Remove from your own store what nothing needs; committed records are never touched."),
    "pretrain": ("pretrain", "Train a model on a whole data set and keep it as a checkpoint that runs can start from."),
    "audit": ("audit", "Re-run some of the committed records and fail if a number moved."),
    "algorithms": ("listings", "The algorithms with their parameters; parts are joined by '+'."),
    "models": ("listings", "The models with their parameters."),
    "partitions": ("listings", "The ways to deal a data set to clients."),
    "proxies": ("listings", "The server's own data that a run can have, cut from the test set."),
    "corruptions": ("listings", "What can be wrong with clients' labels."),
    "optimizers": ("listings", "The optimisers of local training and of server methods."),
    "probes": ("listings", "What a run can measure besides accuracy; probes change none of its numbers."),
    "measures": ("listings", "The measurements that are not runs: times, counts and distances."),
    "params": ("listings", "One method, model, data set … by its name: what it is, its parameters, their defaults."),
    "data": ("data", "The data sets: which are present, where they came from, their checksums."),
}


class Commands(click.Group):
    """Commands by name; a module is imported when one of its commands is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            if ctx.resilient_parsing:  # a shell that completes
                return None
            raise click.NoSuchCommand(name, possibilities=COMMANDS, ctx=ctx)
        module = importlib.import_module(f"fedlib.cli.{COMMANDS[name][0]}")
        return next(thing for thing in vars(module).values() if isinstance(thing, click.Command) and thing.name == name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def cli() -> None:
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
