"""The data sets."""

import click

from fedlib.cli.options import Command, json_option, print_json, print_table
from fedlib.data import DATASETS, data_dir, get, inventory


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def data(context: click.Context, as_json: bool) -> None:
    """The data sets: which are present, where they came from, their checksums.

    \b
    fedlib data
    fedlib data get cifar10              fetch it now, verify it and keep it in the data directory
    """
    if context.invoked_subcommand:
        return

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


@data.command("get", cls=Command)
@click.argument("names", nargs=-1, required=True)
def data_get(names: tuple[str, ...]) -> None:
    """Find or fetch data sets, verify their checksums and keep them.

    \b
    fedlib data get mnist fashion_mnist cifar10
    """
    for name in names:
        DATASETS.make(name)  # a misspelt name fails before anything is fetched
    for name in names:
        dataset = get(name)
        click.echo(f"{name}: {len(dataset.y_train):,} + {len(dataset.y_test):,} samples, from {dataset.source}.")
