"""Numbers by round: how a run writes them down, and the four that papers call the accuracy."""

from typing import Any

import numpy as np


def append_round(series: dict[str, list], logs: dict) -> None:
    """Add a round to the series. One of several numbers becomes a series of its own, such as ``gamma/conv1``; a
    client that was not there this time leaves None."""
    found = numbers(logs)
    before = len(series.get("round", []))
    for name in found:
        series.setdefault(name, [None] * before)
    for name, values in series.items():
        values.append(found.get(name))


def numbers(logs: dict) -> dict:
    """What a round has logged, by the names of the series, as they are written down."""
    found = {}
    for name, value in logs.items():
        found |= {f"{name}/{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return {name: rounded(value) for name, value in found.items()}


def rounded(value: Any) -> Any:
    """Six significant digits: what is meaningful, and short."""
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def aligned(series: Any) -> bool:
    """Whether these are series: lists as long as that of their rounds, which ascend; numbers, or lists of them."""
    if not isinstance(series, dict) or not all(isinstance(values, list) for values in series.values()):
        return False
    rounds = series.get("round", [])
    if not all(type(n) is int for n in rounds) or any(a >= b for a, b in zip(rounds, rounds[1:], strict=False)):
        return False
    kinds = {type(v) for values in series.values() for v in values}
    return kinds <= {int, float, type(None), list} and {len(values) for values in series.values()} <= {len(rounds)}


def summary(accuracy: list[float]) -> dict | None:
    """The four numbers papers call "the accuracy", side by side."""
    if not accuracy:
        return None
    best = sorted(accuracy, reverse=True)
    values: dict[str, Any] = {
        "last": accuracy[-1],
        "last10": np.mean(accuracy[-10:]),
        "best": best[0],
        "best10": np.mean(best[:10]),
    }
    return {name: round(float(value), 6) for name, value in values.items()}


def cut(series: dict[str, list], rounds: int) -> dict[str, list]:
    """The part of the series up to a round, without those that begin later."""
    most = sum(number <= rounds for number in series.get("round", ()))
    parts = {name: values[:most] for name, values in series.items()}
    return {name: values for name, values in parts.items() if any(v is not None for v in values)}
