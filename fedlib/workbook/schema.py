"""What settings.yaml, reported.yaml and claims.yaml may hold: a mistake is a sentence with its place."""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

from fedlib.core.errors import FedlibError, meant, quoted
from fedlib.core.spec import RunSpec

SCALES = ("smoke", "laptop", "paper")
RUN = {f.name for f in dataclasses.fields(RunSpec)}
KEYS = ("defaults", "panels", "columns", "seeds", "methods", "server", "chosen", "chosen_for", "open", "open_for")
KEYS += ("environments", "own", "presets")
KINDS = {"a mapping": dict, "a list": list, "a text": str, "a number": (int, float), "yes or no": bool}


def check(paper: str, name: str, content: Any) -> Any:
    """``content`` of ``papers/<paper>/<name>``, if it has the form that is asked of it; keys of one's own are free."""
    _kind(f"papers/{paper}/{name}", content, "a mapping")
    {"settings.yaml": _settings, "reported.yaml": _reported, "claims.yaml": _claims}[name](
        f"papers/{paper}/{name}", content
    )
    return content


def _settings(file: str, content: dict) -> None:
    _has(file, content, "defaults", "panels")
    for key in (
        key for key in content if key not in KEYS
    ):  # others are a paper's own, unless they are all but one of these
        if near := difflib.get_close_matches(str(key), [known for known in KEYS if known not in content], 1, 0.8):
            raise FedlibError(f"{file} has {quoted(key)} (did you mean {near[0]!r}?).")
    _run(f"defaults of {file}", content["defaults"])
    _kind(f"panels of {file}", content["panels"], "a mapping")
    for panel, scales in content["panels"].items():
        _each(f"the panel {panel} of {file}", scales, SCALES, _run)
    for exhibit, scales in _mapping(file, content, "columns"):
        at = f"the columns of {exhibit} in {file}"
        _each(at, scales, SCALES, lambda at, chosen: _columns(at, chosen, content["panels"]))
    if "seeds" in content:
        _each(f"seeds of {file}", content["seeds"], SCALES, _seeds)
    for method, form in _mapping(file, content, "methods"):
        if not isinstance(form, str):
            _each(f"the method {method} of {file}", form, SCALES, lambda at, one: _kind(at, one, "a text"))
    for name, preset in _mapping(file, content, "presets"):
        at = f"the preset {name} of {file}"
        _kind(at, preset, "a mapping")
        _known(at, preset, ("settings", "methods"))
        _run(f"settings of {at}", preset.get("settings"))
        for method, form in _mapping(at, preset, "methods"):
            if not isinstance(form, str):
                _run(f"the method {method} of {at}", form)
    for key, fields in (("open", content.get("open", [])), *_mapping(file, content, "open_for")):
        _kind(f"{key} of {file}", fields, "a list")
        _known(f"{key} of {file}", fields, RUN)
    for key, choices in (("chosen", content.get("chosen", {})), *_mapping(file, content, "chosen_for")):
        _kind(f"{key} of {file}", choices, "a mapping")
        for what, choice in choices.items():
            _kind(f"{what!r} of {key} in {file}", choice, "a text", or_none=True)


def _reported(file: str, content: dict) -> None:
    _has(file, content, "tables")
    _kind(f"tables of {file}", content["tables"], "a list")
    for number, table in enumerate(content["tables"], 1):
        _kind(f"table {number} of {file}", table, "a mapping")
        _has(f"Table {number} of {file}", table, "id", "rows")
        for part in ("rows", "derived"):
            at = f"{part} of {table['id']} in {file}"
            _kind(at, table.setdefault(part, []), "a list")
            for place, row in enumerate(table[part], 1):
                _kind(f"entry {place} of {at}", row, "a mapping")
                _has(f"Entry {place} of {at}", row, "value")
                _kind(f"the value of entry {place} of {at}", row["value"], "a number", or_none=True)


def _claims(file: str, content: dict) -> None:
    kinds = {"reported": "a number", "margin": "a number", "trained": "yes or no"}
    for page, claims in content.items():
        _kind(f"{page} of {file}", claims, "a mapping")
        for number, claim in claims.items():
            at = f"{page}.{number} of {file}"
            _kind(at, claim, "a mapping")
            for field, value in claim.items():
                kind = kinds.get(field, "a text")
                _kind(f"{field} of {at}", value, kind, or_none=kind == "a number")


def _run(at: str, fields: Any) -> None:
    """Fields of RunSpec with values; their types are checked when a run is made of them."""
    if fields is not None:
        _kind(at, fields, "a mapping")
        _known(at, fields, RUN)


def _columns(at: str, chosen: Any, panels: dict) -> None:
    _kind(at, chosen, "a mapping")
    _known(at, chosen, panels)
    for panel, alphas in chosen.items():
        _kind(f"{panel} in {at}", alphas, "a list")
        if odd := [a for a in alphas if not isinstance(a, (int, float, str)) or isinstance(a, bool)]:
            raise FedlibError(f"{panel} in {at} lists numbers (alpha) or texts (partitions); got {quoted(odd[0])}.")


def _seeds(at: str, seeds: Any) -> None:
    _kind(at, seeds, "a list")
    if odd := [seed for seed in seeds if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0]:
        raise FedlibError(f"{at} are whole numbers, 0 or more; got {quoted(odd[0])}.")


def _each(at: str, content: Any, allowed: tuple, check: Callable[[str, Any], None]) -> None:
    _kind(at, content, "a mapping")
    _known(at, content, allowed)
    for key, value in content.items():
        check(f"{key} of {at}", value)


def _mapping(file: str, content: dict, key: str):
    _kind(f"{key} of {file}", content.get(key, {}), "a mapping")
    return content.get(key, {}).items()


def _kind(at: str, value: Any, kind: str, or_none: bool = False) -> None:
    right = isinstance(value, KINDS[kind]) and (kind == "yes or no" or not isinstance(value, bool))
    if not right and not (or_none and value is None):
        raise FedlibError(
            f"{at[0].upper() if at[:6] != 'papers' else at[0]}{at[1:]} must be {kind}; got {quoted(value)}."
        )


def _known(at: str, keys: Any, allowed: Any) -> None:
    for key in keys:
        if key not in allowed:
            names = ", ".join(sorted(map(str, allowed)))
            raise FedlibError(
                f"{at[0].upper()}{at[1:]} has {quoted(key)}{meant(key, map(str, allowed))}; allowed: {names}."
            )


def _has(at: str, content: dict, *needed: str) -> None:
    if missing := [key for key in needed if key not in content]:
        raise FedlibError(f"{at} lacks {' and '.join(missing)}.")
