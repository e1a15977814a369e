"""Named, parameterised things and their written form: ``fedprox(mu=0.01)+lws(beta=0.1)``.

Algorithms, models, data sets, partitions, proxies and optimisers are all written this way: on the
command line, in notebook parameters and in the spec. Text is parsed with Python's own grammar
(never evaluated), checked against the dataclass that the name stands for, and printed back
canonically: parameters in declared order, defaults left out.
"""

import ast
import dataclasses
import functools
import hashlib
import inspect
import keyword
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedlib.core.components import load
from fedlib.core.errors import FedlibError, in_words, meant, quoted

REGISTRIES: dict[str, "Registry"] = {}  # by what they hold, such as "model": for those who may not import them
LONGEST = 10_000  # characters of a written form
LARGEST = 2**63 - 1  # of integers, as torch and numpy have them
HUGE = 1e30  # of other numbers: computed with, they stay within float32


def parse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """``"a(x=1)+b"`` to ``[("a", {"x": 1}), ("b", {})]``."""
    try:
        if not isinstance(text, str) or len(text) > LONGEST:
            raise ValueError
        return _calls(ast.parse(text.strip(), mode="eval").body)
    except FedlibError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise FedlibError(
            f"Cannot read {quoted(text)}: write names with keyword parameters, joined by '+', "
            "such as 'fedprox(mu=0.01)+lws(beta=0.1)'."
        ) from None


def _calls(node: ast.expr) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _calls(node.left) + _calls(node.right)
    if isinstance(node, ast.Name):
        return [(node.id, {})]
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)) or node.args:
        raise ValueError
    keys = [k.arg for k in node.keywords]
    if None in keys:  # **something
        raise ValueError
    if twice := [k for k in keys if keys.count(k) > 1]:
        raise FedlibError(f"{node.func.id!r} is given {twice[0]!r} twice; give every parameter once.")
    return [(node.func.id, {str(k.arg): _value(k.value) for k in node.keywords})]


def _value(node: ast.expr):
    return node.id if isinstance(node, ast.Name) else literal(node)  # a bare word is a string


def literal(text: str | ast.expr, where: str = "A number") -> Any:
    """The number, text, tuple … that Python reads there; ValueError if it is none, FedlibError if it is too large."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError from None
    return bounded(where, value)


def bounded(where: str, value: Any) -> Any:
    """``value``, unless a number in it is too large for any computation, or none at all."""
    for part in value if isinstance(value, tuple | list | set) else ():
        bounded(where, part)
    if isinstance(value, int) and abs(value) > LARGEST or isinstance(value, float) and not abs(value) <= HUGE:
        raise FedlibError(f"{where} must be finite, an integer below 2**63 or another below 1e30; got {quoted(value)}.")
    return value


def registry_of(kind: str) -> "Registry":
    """The registry of models, say, with everything in it."""
    load()
    return REGISTRIES[kind]


class Registry:
    """Classes by name. Registering makes the class a frozen dataclass whose fields are its parameters."""

    # What is done to a class that fedlib does not bring, such as to make its revision tell its data.
    complete: Callable[[type], None] | None = None
    # What a text with '+' stands for, where the parts make something new: Algorithm.
    compose: Callable[[str], Any]

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, type] = {}
        REGISTRIES[kind] = self

    @property
    def entries(self) -> dict[str, type]:
        """All that is registered: whoever looks something up finds the plugins' things too."""
        load()
        return self._entries

    def register(self, name: str) -> Callable[[type], type]:
        """Give the class below this name; its annotated fields become its parameters."""
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise FedlibError(f"A {self.kind} is named by letters, digits and '_', such as fedavg; got {quoted(name)}.")

        def add(cls: Any) -> type:
            cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
            cls.name = name
            if "revision" not in cls.__dict__:
                cls.revision = code_revision(cls)
                if cls.revision != 1 and self.complete:
                    self.complete(cls)
            if self._entries.get(name, cls).__module__ != cls.__module__:
                raise FedlibError(f"The {self.kind} {name!r} exists already, in {self._entries[name].__module__}.")
            self._entries[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        return sorted(self.entries)

    def make(self, text: str) -> Any:
        """The one thing a text without '+' names."""
        things = self.make_all(text)
        if len(things) != 1:
            raise FedlibError(f"Expected one {self.kind}, got {quoted(text)}: '+' composes algorithms only.")
        return things[0]

    def make_all(self, text: str) -> list:
        return [self._make(name, values) for name, values in parse(text)]

    def _make(self, name: str, values: dict):
        if name not in self.entries:
            near, known = meant(name, self.entries), ", ".join(self.names())
            raise FedlibError(f"Unknown {self.kind} {quoted(name)}{near}; the known ones are: {known}.")
        cls = self.entries[name]
        fields = dataclasses.fields(cls)
        for key, value in values.items():
            if key not in (allowed := [f.name for f in fields]):
                raise FedlibError(
                    f"{self.kind} {name!r} has no parameter {quoted(key)}{meant(key, allowed)}; it takes: "
                    f"{', '.join(allowed) or 'none'}."
                )
            values[key] = check(f"{name}({key}=…)", kinds(cls)[key], value)
        needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
        if lacking := [key for key in needed if key not in values]:
            raise FedlibError(f"{self.kind} {name!r} needs {', '.join(lacking)}: write {name}({lacking[0]}=…).")
        try:
            return cls(**values)
        except FedlibError:
            raise
        except Exception as error:  # a tuple of texts where it counts on numbers, say
            given = ", ".join(f"{key}={quoted(value)}" for key, value in values.items())
            raise FedlibError(f"{self.kind} {name!r} can make nothing of {given}: {in_words(error)}.") from None


def code_revision(thing: Any) -> int | str:
    """1 of what fedlib brings, which is raised by hand; of a plugin its file's checksum, of anything else its code's.

    So a class that is edited in a notebook's cell, or in a script, makes other runs.
    """
    if thing.__module__.partition(".")[0] == "fedlib":
        return 1
    if given := getattr(sys.modules.get(thing.__module__), "__revision__", None):
        return given
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):  # typed at a prompt, or made by a program
        functions = [thing] if inspect.isfunction(thing) else [f for f in vars(thing).values() if inspect.isfunction(f)]
        text = repr([(_instructions(f.__code__), f.__defaults__) for f in functions])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _instructions(code: types.CodeType) -> tuple:
    """What a function does, without the addresses and line numbers that change from one session to the next."""
    constants = [_instructions(c) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    return code.co_code, code.co_names, constants


@functools.cache
def kinds(cls: type) -> dict[str, Any]:
    """The types of a class's fields; a file that begins with ``from __future__ import annotations`` has texts there."""
    try:
        return get_type_hints(cls)
    except Exception as error:  # whatever stands there was written by a user
        raise FedlibError(f"The types of {cls.__name__}'s parameters cannot be read: {in_words(error)}.") from None


def check(where: str, kind: Any, value: Any) -> Any:
    """``value`` as ``kind``; an int is a float where a float is expected, a bool never is."""
    bounded(where, value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            near = meant(value, filter(lambda one: isinstance(one, str), get_args(kind)))
            raise FedlibError(f"{where} is one of {', '.join(map(str, get_args(kind)))}; got {quoted(value)}{near}.")
        return value
    allowed = get_args(kind) or (kind,)  # int | None -> (int, NoneType)
    for one in allowed:
        if get_origin(one) is Literal and value in get_args(one):
            return value
        one = get_origin(one) or one
        if one is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(one, type) and isinstance(value, one) and not (one is int and isinstance(value, bool)):
            return value
    names = " or ".join(getattr(k, "__name__", str(k)) for k in allowed)
    raise FedlibError(f"{where} must be {names}; got {quoted(value)}.")


def canonical(thing: Any) -> str:
    """The canonical text of a registered thing: defaults left out, declared order."""
    parts = [
        f"{f.name}={_text(getattr(thing, f.name))}"
        for f in dataclasses.fields(thing)
        if getattr(thing, f.name) != f.default
    ]
    return thing.name + (f"({', '.join(parts)})" if parts else "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value.isidentifier() else repr(value)


def require_one_of(kind: str, value: Any, allowed: Iterable) -> None:
    """Raise unless ``value`` is among ``allowed``."""
    if value not in allowed:
        near = meant(value, map(str, allowed))
        raise FedlibError(f"Unknown {kind} {quoted(value)}{near}; allowed: {', '.join(map(str, allowed))}.")
