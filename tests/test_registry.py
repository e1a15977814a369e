"""Written forms parse, are checked, and print back canonically."""

import pytest

from fedlib.algorithms import ALGORITHMS, Algorithm
from fedlib.core.errors import FedlibError
from fedlib.core.registry import parse


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
