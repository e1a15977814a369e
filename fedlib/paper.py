"""What a paper's page is made of: its settings at a scale, its reported numbers, and our runs as tables.

Everything here reads ``papers/<paper>/settings.yaml``, ``papers/<paper>/reported.yaml`` or run records.
"""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from fedlib.claims import interval
from fedlib.errors import FedlibError
from fedlib.registry import choose

PAPERS = Path(__file__).resolve().parents[1] / "papers"
SCALES = ("smoke", "laptop", "paper")


@cache
def _read(paper: str, name: str) -> dict:
    path = PAPERS / paper / name
    if not path.exists():
        known = ", ".join(sorted(p.parent.name for p in PAPERS.glob(f"*/{name}")))
        raise FedlibError(f"There is no {name} for the paper {paper!r}; those that have one: {known}.")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def setting(paper: str, panel: str, scale: str) -> dict:
    """The keyword arguments of ``RunSpec`` that ``paper`` fixes for ``panel``, as ``scale`` changes them."""
    choose("scale", scale, SCALES)
    settings = _read(paper, "settings.yaml")
    choose(f"panel of {paper}", panel, settings["panels"])
    changes = settings["panels"][panel]
    return settings["defaults"] | changes["paper"] | (changes[scale] or {})


def environments(paper: str) -> dict[str, dict]:
    """The conditions that ``paper`` repeats every experiment under, as further arguments of ``RunSpec``."""
    return _read(paper, "settings.yaml")["environments"]


def differences(paper: str, panels, scale: str) -> pd.DataFrame:
    """Every setting in which ``scale`` departs from the paper's own."""
    rows = []
    for panel in panels:
        theirs, here = setting(paper, panel, "paper"), setting(paper, panel, scale)
        for name in here:
            if here[name] != theirs.get(name):
                rows.append((panel, name, theirs.get(name, "all" if "subset" in name else "–"), here[name]))
    return pd.DataFrame(rows, columns=["panel", "setting", "paper", "here"])


def chosen(paper: str, exhibit: str | None = None) -> pd.DataFrame:
    """What the paper leaves open, and what we chose; what concerns one ``exhibit``, such as figure1, comes first."""
    settings = _read(paper, "settings.yaml")
    choices = settings.get("chosen_for", {}).get(exhibit, {}) | settings["chosen"]
    return pd.DataFrame(choices.items(), columns=["left open", "our choice"])


def reported(paper: str) -> dict:
    """The numbers the paper prints, as transcribed."""
    return _read(paper, "reported.yaml")


def reported_table(paper: str, table: str) -> pd.DataFrame:
    """The measured cells of one printed table, one row per cell."""
    tables = {t["id"]: t for t in reported(paper)["tables"]}
    choose(f"table of {paper}", table, tables)
    return pd.DataFrame(tables[table]["rows"])


def stated(paper: str, figure: str | None = None) -> pd.DataFrame:
    """Numbers the paper gives in prose; with ``figure`` only those about it or about no figure in particular."""
    rows = [r for r in reported(paper)["stated_in_prose"] if figure is None or figure in r.get("figure", figure)]
    return pd.DataFrame([(r["what"], f"{r['value']} {r['unit']}") for r in rows], columns=["the paper says", "value"])


# Runs. ``records`` maps a key such as ("mnist", "fedlap", 1) to a record; ``names`` names its parts, "seed" among them.


def curve(record, series: str = "accuracy") -> pd.Series:
    """One series of a record by round; accuracy in percent."""
    values = record.accuracy if series == "accuracy" else record.curve(series)
    return pd.Series(np.asarray(values, float), index=record.series["round"], name=series)


def measured(record, probe: str) -> pd.DataFrame:
    """What a probe of a run found, by round; such as ``measured(record, "spread").tau``."""
    return pd.DataFrame(record.probe(probe)).set_index("round")


def curves(records: dict, names, series: str = "accuracy") -> pd.DataFrame:
    """All runs in long form: one row per run and evaluated round. Runs that do not log ``series`` are left out."""
    frames = [
        curve(record, series).rename_axis("round").reset_index().assign(**dict(zip(names, key, strict=True)))
        for key, record in records.items()
        if series in record.series
    ]
    columns = [*names, "round", series]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def layers(records: dict, names, series: str = "gamma") -> pd.DataFrame:
    """What runs log of every layer, in long form: one row per run, layer and round, the classifier last."""
    frames = []
    for key, record in records.items():
        found = [name for name in record.series if name.startswith(f"{series}/")]
        for name in sorted(found, key=lambda n: ("classifier" in n, "/norm" in n, "/embedding" not in n, n)):
            long = curve(record, name).rename(series).rename_axis("round").reset_index()
            frames.append(long.assign(layer=name.removeprefix(f"{series}/"), **dict(zip(names, key, strict=True))))
    return pd.concat(frames, ignore_index=True)[[*names, "layer", "round", series]]


def scores(records: dict, names, series: str = "accuracy", **metrics) -> pd.DataFrame:
    """One row per run, one column per metric (a function of its curve); all NaN where the run diverged."""
    rows = []
    for key, record in records.items():
        if series in record.series:
            ok = record.status == "ok"
            values = {name: f(curve(record, series)) if ok else np.nan for name, f in metrics.items()}
            rows.append(dict(zip(names, key, strict=True)) | values)
    return pd.DataFrame(rows, columns=[*names, *metrics]).set_index(list(names))


def summary(scores: pd.DataFrame, digits: int = 1) -> pd.DataFrame:
    """Mean ± half-width of the 95% t-interval over seeds; "–" where no run has a value (a target never reached)."""
    groups = [n for n in scores.index.names if n != "seed"]
    return scores.groupby(groups, sort=False).agg(lambda values: mean_text(values, digits))


def mean_text(values, digits: int = 1) -> str:
    values = np.asarray(values, float)
    reached = values[~np.isnan(values)]
    if not len(reached):
        return "–"
    mean, low, _ = interval(reached)
    text = f"{mean:.{digits}f}" + (f" ± {mean - low:.{digits}f}" if len(reached) > 1 else "")
    return text if len(reached) == len(values) else f"{text} (in {len(reached)} of {len(values)})"


def settled(records: dict, names) -> str:
    """Sentences on what the page rests on: how many runs, which seeds, what data, what diverged."""
    at = list(names).index("seed")
    cells: dict = {}
    for key in records:
        cells.setdefault(key[:at] + key[at + 1 :], []).append(key[at])
    kinds = {tuple(sorted(seeds)) for seeds in cells.values()}
    said = " or ".join(", ".join(map(str, kind)) for kind in sorted(kinds))
    diverged = sum(r.status != "ok" for r in records.values())
    specs = [r.spec for r in records.values()]
    data = dict.fromkeys(s.dataset + (f" (first {s.subset:,} images)" if s.subset else "") for s in specs)
    text = f"{len(records)} runs in {len(cells)} cells, each with seeds {said}. Data: {', '.join(data)}."
    return text + (f" {diverged} diverged and count as unmeasured." if diverged else "")


KINDS = {  # by the last words of a layer's name
    "attention": r"attention\.(qkv|out)",
    "mlp": r"mlp\.fc\d",  # of a transformer
    "norm": r"bn\d*|norm",
    "conv": r"conv\d*",
    "linear": r"fc\d|classifier",
    "embedding": r"embedding|patch",
    "lstm": r"lstm",
}


def layer_kind(name: str) -> str:
    """What sort of layer a series such as ``gamma/blocks.0.mlp.fc1`` is about (FedLWS Table 12)."""
    return next(kind for kind, ending in KINDS.items() if re.search(rf"(^|[./])({ending})$", name))


# Metrics of a curve (a Series by round).


def at(curve: pd.Series, round: int) -> float:
    """The value at a round, NaN if the run is shorter."""
    return curve.get(round, np.nan)


def first(curve: pd.Series, rounds: int) -> float:
    """Mean over the first ``rounds`` rounds."""
    return curve[curve.index <= rounds].mean()


def last(curve: pd.Series, evaluations: int) -> float:
    """Mean over the last evaluations."""
    return curve.iloc[-evaluations:].mean()


def oscillation(curve: pd.Series) -> float:
    """Standard deviation of the first differences: how much a curve jumps from round to round."""
    return curve.diff().std()


def rounds_to(curve: pd.Series, target: float) -> float:
    """The first round at which the curve reaches ``target``; NaN if it never does."""
    reached = curve.index[curve >= target]
    return float(reached[0]) if len(reached) else np.nan
