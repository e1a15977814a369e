"""Commands on pages and claims."""

from pathlib import Path

import click

from fedlib.cli.options import Command, complete_notebook, json_option, print_json
from fedlib.core.paths import ROOT, require_clone
from fedlib.runs.store import committed
from fedlib.workbook import first_cell, headlines, scaffold
from fedlib.workbook import notebooks as pages
from fedlib.workbook import report as board
from fedlib.workbook import site as static_site
from fedlib.workbook.claims import Claim
from fedlib.workbook.tables import effect_text, verdict_text


@click.command("list", cls=Command)
@click.argument("names", nargs=-1, shell_complete=complete_notebook)
@json_option
def list_(names: tuple[str, ...], as_json: bool) -> None:
    """The notebooks, the papers' claims and what our runs say of them.

    \b
    fedlib list
    fedlib list fedlap
    fedlib list --json | jq '.[].claims[] | select(.verdict == "disagrees") | .sentence'
    """
    notebooks = pages.find(names)
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


@click.command(cls=Command)
@click.option(
    "--update",
    is_flag=True,
    help="Write it into README.md, papers/claims.md and the guides; renew the line that heads every page.",
)
@json_option
def report(update: bool, as_json: bool) -> None:
    """The scoreboard: every claim of every notebook with verdict, what it stands on, effect and interval, as Markdown.

    \b
    fedlib report
    fedlib report --update               after notebooks were executed again
    fedlib report --json | jq '.[] | select(.paper == "fedlaw" and .grade == "own") | .sentence'
    """
    claims = board.gather(pages.find())
    if as_json:
        return print_json(claims)
    if update:
        for path, text in board.pages().items():
            board.put(text, path)
        for nb in pages.find():
            first_cell.renew(nb.path)
        headlines.PATH.write_text(headlines.picture(claims), encoding="utf-8")
        return click.echo(f"README.md, papers/claims.md and the reading guides are current: {board.sentence(claims)}.")
    click.echo(board.every(claims))


@click.command(cls=Command)
@click.option(
    "--notebooks",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    metavar="FOLDER",
    help="Executed notebooks; by default those that are committed.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=None, help="By default build/site.")
def site(notebooks: Path | None, out: Path | None) -> None:
    """A static site of all notebooks, reading guides and algorithms, readable without a network.

    \b
    fedlib site                                      from the committed notebooks
    fedlib site --notebooks build/notebooks/laptop   from those that 'fedlib run' has just executed
    """
    require_clone("fedlib site")
    found = pages.find(folder=notebooks.resolve()) if notebooks else pages.find()
    start = static_site.build(found, (out or ROOT / "build" / "site").resolve(), committed())
    click.echo(f"{board.sentence(board.gather(found))}.\nThe site: {pages.shown_path(start)}")


@click.command(cls=Command)
@click.argument("paper")
@click.argument("exhibit")
def new(paper: str, exhibit: str) -> None:
    """The files of a new page, which list, plan, run and report as they are; docs/adding_a_paper.md says what to edit.

    \b
    fedlib new mypaper table1
    fedlib run mypaper --scale smoke
    """
    require_clone("fedlib new")
    for path in scaffold.new_page(paper, exhibit):
        click.echo(pages.shown_path(path))
    click.echo(f"Try it: fedlib run {paper} --scale smoke. What to edit is in docs/adding_a_paper.md.")
