"""``papers/<paper>/reported.yaml``: the numbers a paper prints, as transcribed, under our names."""

import re
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from fedlib.core.registry import require_one_of
from fedlib.workbook.settings import names, read


def reported(paper: str) -> dict:
    """Everything transcribed from the paper."""
    return read(paper, "reported.yaml")


def reported_rows(paper: str, table: str) -> list[dict]:
    """The measured cells of one printed table, as transcribed."""
    tables = {t["id"]: t["rows"] for t in reported(paper)["tables"]}
    require_one_of(f"table of {paper}", table, tables)
    return tables[table]


def reported_table(paper: str, table: str) -> pd.DataFrame:
    """The same, one row per cell."""
    return pd.DataFrame(reported_rows(paper, table))


def default_cell(row: dict) -> tuple:
    """(data, alpha, method) of a transcribed row, in the spelling of our settings."""
    data, method = row.get("dataset"), row["method"]
    alias = names()["transcribed"]
    return alias.get(data, data), row.get("alpha"), alias.get(method, method)


def reported_cells(paper: str, table: str, cell: Callable[[dict], tuple] = default_cell) -> dict[tuple, float]:
    """The cells of a printed table under our names: ``cell`` makes (data, alpha, method) of a row as transcribed."""
    return {cell(row): row["value"] for row in reported_rows(paper, table)}


def printed_means(paper: str, table: str) -> dict[str, float]:
    """The column "Average" of a printed table, by method; empty where it has none or where a row has variants."""
    (found,) = [t for t in reported(paper)["tables"] if t["id"] == table]
    means = [row for row in found["derived"] if row["kind"] == "mean" and "variant" not in row]
    alias = names()["transcribed"]
    return {alias.get(row["method"], row["method"]): row["value"] for row in means}


def arithmetic_errors(paper: str) -> pd.DataFrame:
    """Means and gains that the paper prints and that do not follow from its own cells, to the last printed digit."""
    tables = {t["id"]: t["rows"] for t in reported(paper)["tables"]}
    rows = []
    for table in reported(paper)["tables"]:
        for printed in table["derived"]:
            where = {k: printed[k] for k in ("method", "variant", "dataset", "alpha") if k in printed}
            cells = [r for r in table["rows"] if all(r.get(k) == v for k, v in where.items())]
            found = [r["value"] for r in cells]
            if "reference" in printed:  # a method, perhaps of another table, such as "fedlaw … (Table 1)"
                base, *_, home = re.match(r"(\S+)(.*\((Table \d+)\))?", printed["reference"]).groups()
                home = home.lower().replace(" ", "") if home else table["id"]
                bases = {(r["dataset"], r["alpha"]): r["value"] for r in tables[home] if r["method"] == base}
                found = [r["value"] - bases[r["dataset"], r["alpha"]] for r in cells]
            # half a digit, halves rounded either way; a difference of two printed means carries the error of both
            if abs(np.mean(found) - printed["value"]) > (0.0101 if printed["kind"] == "mean_delta" else 0.0051):
                what = "accuracy" if "reference" not in printed else "gain"
                what = f"mean {what}" if "mean" in printed["kind"] else what
                name = ", ".join(str(v) for v in where.values() if v is not None)
                rows.append((table["label"], f"{what}: {name}", printed["value"], round(float(np.mean(found)), 4)))
    return pd.DataFrame(rows, columns=["table", "number", "printed", "from the cells"])


def prose_numbers(paper: str, figure: str | None = None) -> pd.DataFrame:
    """Numbers the paper gives in prose; with ``figure`` only those about it or about no figure in particular."""
    rows = [r for r in reported(paper)["stated_in_prose"] if figure is None or figure in r.get("figure", figure)]
    return pd.DataFrame([(r["what"], f"{r['value']} {r['unit']}") for r in rows], columns=["the paper says", "value"])


def reported_gaps(cells: dict, ours: str | Iterable[str], bases: str | Iterable[str]) -> pd.Series:
    """How far the best of ``ours`` is above the best of ``bases`` in the paper, by the columns that have them all."""
    sides = [[side] if isinstance(side, str) else list(side) for side in (ours, bases)]
    columns = dict.fromkeys(key[:-1] for key in cells)
    gaps = {}
    for at in columns:
        if all((*at, method) in cells for side in sides for method in side):
            first, second = (max(cells[*at, method] for method in side) for side in sides)
            gaps[at] = round(first - second, 6)
    return pd.Series(gaps, dtype=float)
