"""Finds, plans and executes the notebooks, and reads their claims back."""

import fnmatch
import multiprocessing
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from tqdm import tqdm

from fedlib.core.errors import FedlibError, meant, quoted
from fedlib.core.paths import IN_CLONE, ROOT, require_clone
from fedlib.core.registry import literal, require_one_of
from fedlib.core.spec import Measure, RunSpec
from fedlib.workbook import MIME, settings
from fedlib.workbook.first_cell import headed, linked, shown, write
from fedlib.workbook.kernels import use_forked_kernels
from fedlib.workbook.settings import SCALES

BUILD = (ROOT if IN_CLONE else Path()) / "build" / "notebooks"


@dataclass(frozen=True)
class Notebook:
    """One parameterised notebook: ``notebooks/<paper>/<exhibit>.ipynb``."""

    path: Path

    @property
    def paper(self) -> str:
        return self.path.parent.name

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.path.stem}"

    @cached_property
    def node(self) -> nbformat.NotebookNode:
        try:
            node = nbformat.read(self.path, as_version=4)
            nbformat.validate(node)
        except Exception as error:  # a file can be no notebook in many ways, and nbformat raises as many errors
            why = _first_line(error).rstrip(".") or type(error).__name__
            raise FedlibError(f"{self.path} cannot be read as a notebook: {why}.") from None
        return node

    @property
    def title(self) -> str:
        """The first heading."""
        lines = (line for cell in self.node.cells for line in cell.source.splitlines() if cell.cell_type == "markdown")
        return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), self.path.stem)

    @property
    def heading(self) -> str:
        """The title without the paper's name, for lists in which the paper is given."""
        paper = settings.names()["papers"].get(self.paper, self.paper)
        text = re.sub(rf"^{re.escape(paper)}[,:] ", "", self.title)
        return text[:1].upper() + text[1:]

    @cached_property
    def defaults(self) -> dict:
        """Parameter names and default values, as papermill sees them."""
        import papermill

        self.node  # noqa: B018  whatever is wrong with the file is said first
        try:
            found = papermill.inspect_notebook(str(self.path))
        except Exception as error:  # by its reading of a cell that users write
            raise FedlibError(f"{self.name}: the parameters cannot be read: {_shown(error)}") from None
        return {name: self._default(name, parameter["default"]) for name, parameter in found.items()}

    def _default(self, name: str, text: str):
        try:
            return literal(text, f"{self.name}: {name}")
        except FedlibError:
            raise
        except ValueError:
            wrong = f"{self.name}: the default of {name} is {quoted(text)}"
            raise FedlibError(f"{wrong}; write out a number, a text, True, None or a list of such.") from None

    def changes(self, values: dict) -> dict:
        """Those of ``values`` (texts or Python values) that differ from the defaults, checked against them."""
        if unknown := sorted(set(values) - set(self.defaults)):
            allowed, near = ", ".join(self.defaults) or "none", meant(unknown[0], self.defaults)
            names = ", ".join(map(quoted, unknown))
            raise FedlibError(f"{self.name} has no parameter {names}{near}; it takes: {allowed}.")
        given = {name: typed(f"{self.name}: {name}", value, self.defaults[name]) for name, value in values.items()}
        if "scale" in given:
            require_one_of("scale", given["scale"], SCALES)
        return {name: value for name, value in given.items() if value != self.defaults[name]}

    def scale(self, changes: dict) -> str:
        return changes.get("scale", self.defaults.get("scale", "default"))

    def plan(self, changes: dict | None = None) -> dict:
        """The notebook's grid of runs, from its tagged cells alone: no kernel, no training."""
        names: dict = {"__name__": "__main__"}
        self._execute("parameters", names)
        names |= changes or {}
        self._execute("grid", names)
        if not isinstance(names.get("grid"), dict):
            raise FedlibError(f"{self.name}: the cell tagged 'grid' must make a dict named grid.")
        if not names["grid"]:
            raise FedlibError(f"{self.name}: with these parameters the grid is empty, so there is nothing to run.")
        if odd := [run for run in names["grid"].values() if not isinstance(run, RunSpec | Measure)]:
            raise FedlibError(f"{self.name}: the grid holds RunSpecs and Measures; got {quoted(odd[0])}.")
        return names["grid"]

    def _execute(self, tag: str, names: dict) -> None:
        cells = [cell for cell in self.node.cells if tag in cell.metadata.get("tags", ())]
        if len(cells) != 1:
            raise FedlibError(f"{self.name} needs one cell tagged {tag!r}; it has {len(cells)}.")
        try:
            exec(compile(cells[0].source, f"{self.name}[{tag}]", "exec"), names)
        except (Exception, SystemExit) as error:
            raise FedlibError(f"{self.name}: the {tag} cell fails: {_shown(error)}") from error

    @property
    def claims(self) -> list[dict]:
        """What the executed notebook says of the paper's claims; empty before it was executed."""
        return [claim for found in shown(self.node, MIME) for claim in found]


def typed(where: str, value: Any, default: Any) -> Any:
    """``value``, or what a text stands for, in the type of ``default``; ``1,2`` is a list where one belongs.

    Where the list is empty so far, a text that is no list or number is its one entry: ``fedprox(mu=0.1)``.
    """
    if isinstance(value, str) and not isinstance(default, str):
        try:
            value = literal(value if value.lower() not in ("true", "false", "none") else value.capitalize(), where)
        except FedlibError:
            raise
        except ValueError:
            if default is not None and default != []:
                raise _mistyped(where, value, default) from None
    if isinstance(default, list):
        value = list(value) if isinstance(value, (list, tuple)) else [value]
        if default and not value:
            raise FedlibError(f"{where} must not be empty: nothing would be left to run; its default is {default!r}.")
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if default is not None and type(value) is not type(default):
        raise _mistyped(where, value, default)
    return value


def _mistyped(where: str, value: Any, default: Any) -> FedlibError:
    return FedlibError(f"{where} must be of type {type(default).__name__}, such as {default!r}; got {quoted(value)}.")


def find(patterns: Iterable[str] = (), folder: Path = ROOT / "notebooks") -> list[Notebook]:
    """The notebooks that names or their beginnings, globs, papers or paths select; all of them without a pattern."""
    if folder == ROOT / "notebooks" and not (patterns and all(map(is_file, patterns))):
        require_clone("A command on the workbook's notebooks")
    every = [Notebook(path) for path in sorted(folder.glob("*/*.ipynb"))]
    found: dict[Path, Notebook] = {} if patterns else {nb.path: nb for nb in every}
    for pattern in patterns:
        if is_file(pattern):
            chosen = [Notebook(Path(pattern).resolve())]
        else:
            chosen = [nb for nb in every if any(fnmatch.fnmatch(n, pattern) for n in (nb.name, nb.path.stem, nb.paper))]
        if not chosen:  # fedlws/table01 is the beginning of one name, table01 of one in every paper
            begun = [(nb, nb.name if "/" in pattern else nb.path.stem) for nb in every if pattern]
            chosen = [nb for nb, name in begun if name.startswith(pattern)]
        if not chosen:
            names = [nb.name for nb in every]
            near = meant(pattern, [*names, *(name.partition("_")[0] for name in names), *(nb.paper for nb in every)])
            where = "'fedlib list' names them all" if names else f"there is none in {folder}"
            raise FedlibError(f"No notebook matches {quoted(pattern)}{near}; {where}.")
        found |= {nb.path: nb for nb in chosen}
    return list(found.values())


def is_file(pattern: str) -> bool:
    return pattern.endswith(".ipynb") and Path(pattern).is_file()


def execute(notebook: Notebook, changes: dict, out: Path = BUILD) -> Path:
    """Run a notebook through papermill into ``out/<scale>/<paper>/``; it appears there whole or not at all.

    With other parameters the folder says so (``laptop,seeds=1,2``), and the page with the usual ones stays.
    """
    import papermill

    target = out / folder_of(notebook.scale(changes), changes) / f"{notebook.name}.ipynb"
    failed = target.with_suffix(".failed.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        papermill.execute_notebook(
            str(notebook.path), str(failed), changes, progress_bar=False, request_save_on_cell_execute=False,
            extra_arguments=["--log-level=50"],  # the kernel's own remarks are not the user's concern
        )  # fmt: skip
    except papermill.PapermillExecutionError as error:
        cause = f"{error.ename}: {_first_line(error.evalue)}"
        raise FedlibError(
            f"{notebook.name} failed in cell {_cell_number(notebook, error)} with {cause} "
            f"The notebook up to there, with the traceback, is {shown_path(failed)}."
        ) from None
    node = nbformat.read(failed, as_version=4)
    node.metadata.papermill["output_path"] = str(target)
    nbformat.write(node, failed)
    os.replace(failed, target)
    return target


def folder_of(scale: str, changes: dict) -> str:
    """Such as ``laptop``, or ``laptop,seeds=1,2`` for changed parameters."""
    texts = [f"{name}={re.sub(r'[^-+.=,()0-9A-Za-z_]', '', str(v).strip('[]'))}" for name, v in changes.items()]
    name = ",".join([scale, *(text for text in texts if not text.startswith("scale="))])
    return name if len(name) <= 80 else f"{name[:60]}~{zlib.crc32(name.encode()):08x}"


def _cell_number(notebook: Notebook, error: Any) -> str:
    """Where it failed as a reader of the source counts: papermill counts its injected cell too."""
    for number, cell in enumerate(notebook.node.cells, 1):
        if cell.source == error.source:
            return f"{number} ({_first_line(cell.source)!r})"
    return str(error.cell_index + 1)


def execute_all(
    jobs: list[tuple[Notebook, dict]], workers: int, out: Path, done: Callable[[Notebook, Path], object]
) -> None:
    """Execute several notebooks in parallel processes; all are tried before a failure is raised."""
    failures = []
    context = multiprocessing.get_context("spawn")  # a forked child would share torch's threads
    pool = ProcessPoolExecutor(min(workers, len(jobs)) or 1, context, use_forked_kernels)
    bar = tqdm(total=len(jobs), desc="notebooks", unit="notebook", file=sys.stderr, disable=None)
    try:
        futures = {pool.submit(execute, notebook, changes, out): notebook for notebook, changes in jobs}
        for future in as_completed(futures):
            notebook = futures[future]
            try:
                done(notebook, future.result())
            except FedlibError as error:
                failures.append(str(error))
            except BrokenProcessPool:
                failures.append(f"{notebook.name}: the process that ran it was killed (out of memory?).")
            bar.update()
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        bar.close()
        pool.shutdown(cancel_futures=True)
    if failures:
        raise FedlibError("\n".join(failures))


def update(notebook: Notebook, executed: Path) -> None:
    """Put the outputs of an executed notebook into the committed one, in a form that depends on nothing else."""
    node = nbformat.read(executed, as_version=4)
    node.cells[0].source = headed(node.cells[0].source, linked(node))
    write(cleaned(node), notebook.path)


def cleaned(node: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without papermill's traces, times and versions; execution counts 1..n; one stream output per stream."""
    node.cells = [cell for cell in node.cells if "injected-parameters" not in cell.metadata.get("tags", ())]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    node.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    count = 0
    for cell in node.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        cell.outputs = _joined(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    return node


def _joined(outputs: list) -> list:
    """Neighbouring pieces of one stream as one: where a kernel flushes is a matter of time."""
    joined: list = []
    for output in outputs:
        last = joined[-1] if joined else None
        if output.output_type == "stream" and last is not None and last.get("name") == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def shown_path(path: Path) -> str:
    """Relative to where the user is, if below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _first_line(thing: Any) -> str:
    return (str(thing).strip().splitlines() or [""])[0]


def _shown(error: Exception) -> str:
    text = str(error) if isinstance(error, FedlibError) else f"{type(error).__name__}: {_first_line(error)}"
    return f"{text.rstrip('.')}."


def duration(seconds: float) -> str:
    """Such as 45 s, 12 min or 3.4 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
