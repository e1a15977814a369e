"""Run records as tables. ``records`` maps a key such as ("mnist", "fedlap", 1) to a record; ``names`` names its parts.

Every number of a page passes through ``curve`` or ``probe_frame``: here records become frames.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedlib.core.spec import RunSpec
from fedlib.data import DATASETS
from fedlib.probes.updates import entropy
from fedlib.runs.partial import how_far
from fedlib.runs.record import Record


def curve(record: Record, series: str = "accuracy") -> pd.Series:
    """One series of a record by round; accuracy in percent."""
    values = record.accuracy if series == "accuracy" else record.curve(series)
    return pd.Series(np.asarray(values, float), index=record.series.get("round", []), name=series)


def frame(records: Iterable | dict) -> pd.DataFrame:
    """Runs in tidy form: one row per run and evaluated round, with id, what the run is, status, accuracy and losses.

    ``records`` is whatever ``fedlib.run`` returns: a record, a list or a dict of them. Accuracy is in percent.
    """
    records = [records] if hasattr(records, "json") else records.values() if isinstance(records, dict) else records
    rows = []
    for record in (r for r in records if isinstance(r.spec, RunSpec)):
        spec = record.spec
        about = dict(id=record.id, dataset=spec.dataset, model=spec.model, partition=spec.partition)
        about |= dict(algorithm=spec.algorithm, seed=spec.seed, status=record.status)
        found = {n: curve(record, n) for n in ("accuracy", "loss", "train_loss") if n in record.series}
        rows.append(pd.DataFrame(found).rename_axis("round").reset_index().assign(**about)[[*about, "round", *found]])
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def probe_frame(record: Record, probe: str) -> pd.DataFrame:
    """What a probe of a run found, by round; such as ``probe_frame(record, "spread").tau``."""
    return pd.DataFrame(record.probe(probe)).set_index("round")


def probe_forms(spec: RunSpec, name: str) -> list[str]:
    """The written forms of a run's probes of this name, for ``record.probe``."""
    return [text for text in spec.probes.split("+") if text.partition("(")[0] == name]


def probe_means(
    records: dict, names: Sequence[str], probe: str, metric: Callable[[pd.Series], float] | None = None
) -> pd.DataFrame:
    """One row per run: what a probe found, each number's mean over the middle tenth of the rounds, or its ``metric``.

    NaN if the run diverged or has no result yet.
    """
    begun = {key: record for key, record in records.items() if not record.waiting}
    rows = [probe_frame(record, probe).astype(float).apply(metric or middle) for record in begun.values()]
    found = pd.DataFrame(rows, index=pd.MultiIndex.from_tuples(begun, names=names))
    kept = found[[record.status != "diverged" for record in begun.values()]]
    return kept.reindex(pd.MultiIndex.from_tuples(records, names=names))


def probe_long(records: dict, names: Sequence[str], probe: str, words: dict) -> pd.DataFrame:
    """A probe's numbers in long form: one row per run, round and number of ``words``, which gives each its name."""
    frames = []
    for key, record in ((key, record) for key, record in records.items() if not record.waiting):
        found = probe_frame(record, probe)[list(words)].astype(float).rename(columns=words).reset_index()
        frames.append(found.melt("round", var_name="quantity").assign(**dict(zip(names, key, strict=True))))
    columns = [*names, "quantity", "round", "value"]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def curves(records: dict, names: Sequence[str], series: str = "accuracy") -> pd.DataFrame:
    """All runs in long form: one row per run and evaluated round. Runs that do not log ``series`` are left out."""
    frames = [
        curve(record, series).rename_axis("round").reset_index().assign(**dict(zip(names, key, strict=True)))
        for key, record in records.items()
        if series in record.series
    ]
    columns = [*names, "round", series]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def layers(records: dict, names: Sequence[str], series: str = "gamma") -> pd.DataFrame:
    """What runs log of every layer, in long form: one row per run, layer and round, the classifier last."""
    frames = []
    for key, record in records.items():
        found = [name for name in record.series if name.startswith(f"{series}/")]
        for name in sorted(found, key=lambda n: ("classifier" in n, "/norm" in n, "/embedding" not in n, n)):
            long = curve(record, name).rename(series).rename_axis("round").reset_index()
            frames.append(long.assign(layer=name.removeprefix(f"{series}/"), **dict(zip(names, key, strict=True))))
    columns = [*names, "layer", "round", series]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def weights(records: dict, names: Sequence[str]) -> pd.DataFrame:
    """The clients' ``weight`` where runs log it, beside their share of the data (``size``) and an ``even`` one.

    In long form: one row per run, round and client.
    """
    long = layers(records, names, "lambda").rename(columns={"layer": "client", "lambda": "weight"}).dropna()
    long["client"] = long["client"].astype(int)
    long = long.sort_values([*names, "round", "client"], kind="stable", ignore_index=True)
    held = {key: np.array(record.json["partition"]["sizes"], float) for key, record in records.items()}
    long["size"] = [held[*key][k] for *key, k in long[[*names, "client"]].itertuples(index=False)]
    cohort = long.groupby([*names, "round"], sort=False)["size"]
    return long.assign(size=long["size"] / cohort.transform("sum"), even=1 / cohort.transform("size"))


def scores(records: dict, names: Sequence[str], series: str = "accuracy", **metrics: Any) -> pd.DataFrame:
    """One row per run, one column per metric (a function of its curve); all NaN if it diverged or has no result yet."""
    rows = []
    for key, record in records.items():
        if series in record.series or record.waiting:
            ok = record.status != "diverged" and not record.waiting
            values = {name: f(curve(record, series)) if ok else np.nan for name, f in metrics.items()}
            rows.append(dict(zip(names, key, strict=True)) | values)
    return pd.DataFrame(rows, columns=[*names, *metrics]).set_index(list(names))


def evenness(records: dict, names: Sequence[str]) -> pd.DataFrame:
    """One row per split (a measure class_counts): entropy of a client's classes, how many it has, how sizes differ."""
    rows = []
    for key, record in records.items():
        held = pd.DataFrame(record.result["counts"])
        sizes = held.sum(axis=1)
        even = held[sizes > 0].apply(lambda c: entropy((c / c.sum()).to_numpy()), axis=1).mean()
        spread = {"smallest": sizes.min(), "largest": sizes.max(), "spread of sizes": sizes.std() / sizes.mean()}
        where = dict(zip(names, key, strict=True))
        rows.append(where | {"entropy": even, "classes": (held > 0).sum(axis=1).mean()} | spread)
    return pd.DataFrame(rows).set_index(list(names))


def describe_runs(records: dict, names: Sequence[str]) -> str:
    """Sentences on what the page rests on: how many runs, which seeds, what data, what diverged or is half done."""
    at = list(names).index("seed")
    cells: dict = {}
    for key in records:
        cells.setdefault(key[:at] + key[at + 1 :], []).append(key[at])
    kinds = {tuple(sorted(seeds)) for seeds in cells.values()}
    said = " or ".join(", ".join(map(str, kind)) for kind in sorted(kinds))
    diverged = sum(r.status == "diverged" for r in records.values())
    specs = [r.spec for r in records.values()]
    data = dict.fromkeys(s.dataset + (f" (first {s.subset:,} {_kind(s.dataset)})" if s.subset else "") for s in specs)
    text = f"{len(records)} runs in {len(cells)} cells, each with seeds {said}. Data: {', '.join(data)}."
    text += f" {diverged} diverged and count as unmeasured." if diverged else ""
    return " ".join(filter(None, (text, how_far(records.values()))))


def _kind(dataset: str) -> str:
    return "images" if len(DATASETS.make(dataset).shape) == 3 else "texts"


KINDS = {  # by the last words of a layer's name
    "attention": r"attention\.(qkv|out)",
    "mlp": r"mlp\.fc\d",  # of a transformer
    "norm": r"bn\d*|norm",
    "conv": r"conv\d*",
    "linear": r"fc\d|projection\d|classifier",
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


def last(curve: pd.Series, rounds: int) -> float:
    """Mean over the evaluations of the last ``rounds`` rounds."""
    return curve[curve.index > curve.index.max() - rounds].mean()


def middle(curve: pd.Series) -> float:
    """Mean over the middle tenth of the rounds: 90 to 110 of 200, where FedLAW reads its indicators."""
    end = curve.index.max()
    return curve[(curve.index >= 9 * end // 20) & (curve.index <= -(-11 * end // 20))].mean()


def phase(values: pd.Series, late: bool) -> pd.Series:
    """Every run's mean over the first or the last fifth of its rounds; ``values`` has "round" among its levels."""
    run = [name for name in values.index.names if name != "round"]
    done = values.index.get_level_values("round").to_series(index=values.index)
    end = done.groupby(run).transform("max")
    part = values[done > 0.8 * end] if late else values[done <= np.maximum(1, 0.2 * end)]
    return part.groupby(run, sort=False).mean()


def halvings(values: pd.Series) -> pd.Series:
    """How often a quantity halves from the first fifth of a run's rounds to the last: once from 0.04 to 0.02."""
    return np.log2(phase(values, late=False) / phase(values, late=True))


def oscillation(curve: pd.Series) -> float:
    """Standard deviation of the first differences: how much a curve jumps from round to round."""
    return curve.diff().std()


def rounds_to(curve: pd.Series, target: float) -> float:
    """The first round at which the curve reaches ``target``; NaN if it never does."""
    reached = curve.index[curve >= target]
    return float(reached[0]) if len(reached) else np.nan


def race(records: dict, names: Sequence[str], level: float) -> pd.DataFrame:
    """One row per run: accuracy on the way and at the end, and the rounds to ``level`` percent and to a common level.

    The common level is the lowest mean of the last ten rounds of the methods of a cell, seed by seed; never is NaN.
    """
    metrics = {f"round {r}": lambda c, r=r: at(c, r) for r in (1, 10, 20, 50, 100)}
    metrics |= {"first 20": lambda c: first(c, 20), "all rounds": pd.Series.mean, "last 10": lambda c: last(c, 10)}
    found = scores(records, names, **metrics).dropna(axis=1, how="all")
    found[f"rounds to {level:g}%"] = [rounds_to(curve(records[key]), level) for key in found.index]
    return found.assign(**{"rounds to common level": rounds_to_common(records, found["last 10"])})


def rounds_to_common(records: dict, ends: pd.Series, share: float = 1) -> list[float]:
    """Every run's rounds to ``share`` of the lowest of ``ends`` among the methods of its cell, seed by seed."""
    lowest = ends.groupby([n for n in ends.index.names if n != "method"]).transform("min")
    return [rounds_to(curve(records[key]), share * level) for key, level in lowest.items()]
