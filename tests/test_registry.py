"""Written forms parse, are checked, and print back canonically."""

import sys
import types
from typing import Literal

import pytest

from fedlib.algorithms import ALGORITHMS, Algorithm
from fedlib.core.errors import FedlibError
from fedlib.core.registry import Registry, canonical, parse


def test_an_annotation_may_be_a_text(monkeypatch):
    """As in every file that begins with ``from __future__ import annotations``."""
    things = Registry("thing")
    names = {"__name__": "fedlib_plugin_later", "Literal": Literal}
    source = "from __future__ import annotations\nclass Mine:\n    a: float = 1.0\n    b: int | None = None\n"
    exec(source + "    c: Literal['x', 'y'] = 'x'\nclass Odd:\n    a: Nowhere = 1\n", names)
    monkeypatch.setitem(sys.modules, "fedlib_plugin_later", types.SimpleNamespace(**names))
    things.register("mine")(names["Mine"])
    things.register("odd")(names["Odd"])
    assert canonical(things.make("mine(a=2, b=3, c=y)")) == "mine(a=2.0, b=3, c=y)"
    with pytest.raises(FedlibError, match="must be float; got 'high'"):
        things.make("mine(a=high)")
    with pytest.raises(FedlibError, match="The types of Odd's parameters cannot be read: .*Nowhere"):
        things.make("odd(a=1)")


def test_what_has_no_default_has_to_be_given():
    things = Registry("thing")
    things.register("mine")(type("Mine", (), {"__annotations__": {"a": int}}))
    with pytest.raises(FedlibError, match="thing 'mine' needs a: write mine"):
        things.make("mine")
    assert things.make("mine(a=1)").a == 1


@pytest.mark.parametrize("name", ["my rule", "", "lambda", "a+b", None])
def test_a_name_can_be_written(name):
    with pytest.raises(FedlibError, match="is named by letters, digits and '_'"):
        ALGORITHMS.register(name)


def test_a_name_is_given_once():
    plugin = type("Mine", (), {"__module__": "fedlib_plugin_mine"})
    with pytest.raises(FedlibError, match="The algorithm 'fedavg' exists already, in fedlib.algorithms.avg"):
        ALGORITHMS.register("fedavg")(plugin)
    assert ALGORITHMS.entries["fedavg"].__module__ == "fedlib.algorithms.avg"


def test_parse_reads_names_numbers_words_and_tuples():
    assert parse("a") == [("a", {})]
    assert parse("a(x=1, y=-0.5)+b(word=power, shape=(1, 28, 28))") == [
        ("a", {"x": 1, "y": -0.5}),
        ("b", {"word": "power", "shape": (1, 28, 28)}),
    ]


@pytest.mark.parametrize("text", ["", "a(", "a(1)", "a-b", "a(x=__import__('os'))", "a.b", "a(x=f(1))", "1"])
def test_parse_refuses_anything_else(text):
    with pytest.raises(FedlibError, match="Cannot read"):
        parse(text)


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("fedavg", "fedavg"),
        ("fedavg(weights=size)", "fedavg"),
        ("fedprox(mu=0.01)", "fedprox"),
        ("fedprox(mu=1)", "fedprox(mu=1.0)"),
        ("fedavg+fedprox", "fedprox"),
        ("fedlap(q=0.5, reading=scale)", "fedlap"),
        ("fedlap+fedavg", "fedlap+fedavg"),  # FedLap alone averages alike, so size weights are worth saying
        ("fedlap+fedavg(weights=uniform)", "fedlap"),
        ("fedlap(reading='power')", "fedlap(reading=power)"),
    ],
)
def test_canonical_form(text, canonical):
    assert str(Algorithm(text)) == canonical
    assert str(Algorithm(canonical)) == canonical


@pytest.mark.parametrize(
    "text, says",
    [
        ("fedfoo", "the known ones are: .*fedavg"),
        ("fedpox", r"\(did you mean 'fedprox'\?\); the known ones are: .*fedavg"),
        ("fedprox(mu=1, mu=2)", "'fedprox' is given 'mu' twice"),
        ("fedprox(mu=1e999)", "must be finite"),
        ("fedprox(mu=" + "9" * 400 + ")", "must be finite.*got 9999.*…"),
        ("fedlap(reading=powr)", r"one of scale, power; got 'powr' \(did you mean 'power'\?\)"),
        ("lws(clamp=(a, b))", "'lws' can make nothing of clamp=|Cannot read"),
        ("lws(clamp=('a', 'b'))", "'lws' can make nothing of clamp=\\('a', 'b'\\): TypeError"),
        ("fedprox(nu=1)", "no parameter 'nu'; it takes: mu"),
        ("fedprox(mu=high)", "must be float"),
        ("fedprox(mu=True)", "must be float"),
        ("fedlap(reading=other)", "one of scale, power"),
        ("fedlap(q=2)", r"\[0, 1\]"),
        ("fedprox(mu=-1)", "must not be negative"),
        ("fedprox+fedprox", "twice"),
    ],
)
def test_mistakes_get_a_sentence_with_what_is_allowed(text, says):
    with pytest.raises(FedlibError, match=says):
        Algorithm(text)
