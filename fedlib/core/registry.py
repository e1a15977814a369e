"""Named, parameterised things and their written form: ``fedprox(mu=0.01)+lws(beta=0.1)``.

Algorithms, models, data sets, partitions, proxies and optimisers are all written this way: on the
command line, in notebook parameters and in the spec. Text is parsed with Python's own grammar
(never evaluated), checked against the dataclass that the name stands for, and printed back
canonically: parameters in declared order, defaults left out.
"""

import ast
import dataclasses
import sys
from typing import Any, Literal, get_args, get_origin

from fedlib.core.components import load
from fedlib.core.errors import FedlibError

REGISTRIES: dict[str, "Registry"] = {}  # by what they hold, such as "model": for those who may not import them


def parse(text: str) -> list[tuple[str, dict[str, Any]]]:
    """``"a(x=1)+b"`` to ``[("a", {"x": 1}), ("b", {})]``."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body if isinstance(text, str) else None
    except SyntaxError:
        tree = None
    calls = _calls(tree) if tree is not None else None
    if calls is None:
        raise FedlibError(
            f"Cannot read {text!r}: write names with keyword parameters, joined by '+', "
            "such as 'fedprox(mu=0.01)+lws(beta=0.1)'."
        )
    return calls


def _calls(node: ast.expr) -> list | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _calls(node.left), _calls(node.right)
        return left + right if left and right else None
    if isinstance(node, ast.Name):
        return [(node.id, {})]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        try:
            return [(node.func.id, {k.arg: _value(k.value) for k in node.keywords})]
        except ValueError:
            return None
    return None


def _value(node: ast.expr):
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)  # a bare word is a string


def registry_of(kind: str) -> "Registry":
    """The registry of models, say, with everything in it."""
    load()
    return REGISTRIES[kind]


class Registry:
    """Classes by name. Registering makes the class a frozen dataclass whose fields are its parameters."""

    compose = None  # what a text with '+' stands for, where the parts make something new: Algorithm

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, type] = {}
        REGISTRIES[kind] = self

    @property
    def entries(self) -> dict[str, type]:
        """All that is registered: whoever looks something up finds the plugins' things too."""
        load()
        return self._entries

    def register(self, name: str):
        def add(cls):
            cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
            cls.name = name
            # raised when its numbers change on purpose; of a plugin it is the file's checksum
            own = getattr(sys.modules.get(cls.__module__), "__revision__", 1)
            cls.revision = cls.__dict__.get("revision", own)
            if self._entries.get(name, cls).__module__ != cls.__module__:
                raise FedlibError(f"The {self.kind} {name!r} exists already, in {self._entries[name].__module__}.")
            self._entries[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        return sorted(self.entries)

    def make(self, text: str):
        """The one thing a text without '+' names."""
        things = self.make_all(text)
        if len(things) != 1:
            raise FedlibError(f"Expected one {self.kind}, got {text!r}: '+' composes algorithms only.")
        return things[0]

    def make_all(self, text: str) -> list:
        return [self._make(name, values) for name, values in parse(text)]

    def _make(self, name: str, values: dict):
        if name not in self.entries:
            raise FedlibError(f"Unknown {self.kind} {name!r}; the known ones are: {', '.join(self.names())}.")
        cls = self.entries[name]
        fields = {f.name: f for f in dataclasses.fields(cls)}
        for key, value in values.items():
            if key not in fields:
                allowed = ", ".join(fields) or "none"
                raise FedlibError(f"{self.kind} {name!r} has no parameter {key!r}; it takes: {allowed}.")
            values[key] = check(f"{name}({key}=…)", fields[key].type, value)
        return cls(**values)


def check(where: str, kind, value):
    """``value`` as ``kind``; an int is a float where a float is expected, a bool never is."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise FedlibError(f"{where} is one of {', '.join(map(str, get_args(kind)))}; got {value!r}.")
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
    raise FedlibError(f"{where} must be {names}; got {value!r}.")


def written(thing) -> str:
    """The canonical text of a registered thing: defaults left out, declared order."""
    parts = [
        f"{f.name}={_text(getattr(thing, f.name))}"
        for f in dataclasses.fields(thing)
        if getattr(thing, f.name) != f.default
    ]
    return thing.name + (f"({', '.join(parts)})" if parts else "")


def _text(value) -> str:
    return value if isinstance(value, str) and value.isidentifier() else repr(value)


def choose(kind: str, value, allowed) -> None:
    """Raise unless ``value`` is among ``allowed``."""
    if value not in allowed:
        raise FedlibError(f"Unknown {kind} {value!r}; allowed: {', '.join(map(str, allowed))}.")
