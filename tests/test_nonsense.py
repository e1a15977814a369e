"""Whatever is typed, the answer is a result or one sentence: no traceback, nothing half-written."""

import contextlib
import io
import os
import sys
import warnings

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedlib import Measure, RunSpec, cli
from fedlib.algorithms import ALGORITHMS, Algorithm
from fedlib.core.errors import FedlibError
from fedlib.core.registry import canonical, parse
from fedlib.data import DATASETS
from fedlib.data.partition import PARTITIONS
from fedlib.models import MODELS
from fedlib.probes import PROBES
from fedlib.runs.measures import MEASURES

BASE = dict(dataset="digits", model="mlp(hidden=4)", partition="iid")
quick = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

names = st.sampled_from(["fedavg", "fedprox", "lws", "awa", "mlp", "digits", "dirichlet", "a", "é", "ﬁ", "_"])
numbers = st.one_of(
    st.integers(-3, 3), st.integers(), st.floats(), st.sampled_from([10**400, -(10**19), 1e308, 5e-324, 2**63])
)
words = st.text(st.characters(codec=None), max_size=12)  # any of Unicode, lone surrogates and NUL too
values = st.recursive(
    numbers | words | st.none() | st.booleans(), lambda part: st.lists(part, max_size=3).map(tuple), max_leaves=6
)
parameters = st.tuples(
    st.sampled_from("mu beta hidden alpha x clamp lr epochs weights".split()), values.map(repr) | words
)
calls = st.builds(
    lambda name, given: f"{name}({', '.join(f'{k}={v}' for k, v in given)})", names, st.lists(parameters, max_size=3)
)
forms = st.one_of(words, names, calls, st.lists(names | calls, max_size=3).map("+".join))
DEEP = [
    "+".join(["fedavg"] * 5000), "fedprox(mu=" + "-" * 20_000 + "1)", "(" * 3000 + "a" + ")" * 3000,
    "a(x=" + "[" * 90 + "]" * 90 + ")", "a(x=" + "9" * 5000 + ")", "a(x=0x" + "f" * 5000 + ")", "a(**{'b': 1})",
    "mlp(hidden=3, hidden=4)", "fedprox(mu=1e999)", "fedprox(mu=1j)", "fedprox(mu=...)", "a" * 100_000, "\0", "\ud800",
    "mlp(hidden=(1,))+mlp", "lambda: 0", "a(x={[]: 1})", "a(x=f'{1}')", "fedprox(mu=nan)",
]  # fmt: skip


def sentence(error: FedlibError) -> None:
    text = str(error)
    assert text.endswith(".") and "\n" not in text and len(text) < 2000


@given(forms)
@settings(quick, max_examples=300)
def test_a_written_form_is_read_or_refused_and_reads_back(text):
    for read in (parse, Algorithm, *(r.make for r in (MODELS, DATASETS, PARTITIONS, PROBES, MEASURES))):
        try:
            thing = read(text)
        except FedlibError as error:
            sentence(error)
            continue
        if read is Algorithm:
            assert str(Algorithm(str(thing))) == str(thing)
        elif read is not parse:
            registry = read.__self__
            assert canonical(registry.make(canonical(thing))) == canonical(thing), "what is written is canonical"


@pytest.mark.parametrize("text", DEEP)
def test_monsters_are_refused(text):
    for read in (Algorithm, MODELS.make, Measure):
        with pytest.raises(FedlibError) as caught:
            read(text)
        sentence(caught.value)


PARAMETERS = [
    (registry, name, field)
    for registry in (ALGORITHMS, MODELS, DATASETS, PARTITIONS, PROBES, MEASURES)
    for name in registry.names()
    for field in registry.entries[name].__dataclass_fields__
]


@given(st.sampled_from(PARAMETERS), values)
@settings(quick, max_examples=600)
def test_every_parameter_of_everything_takes_a_value_or_says_what_it_takes(parameter, value):
    registry, name, field = parameter
    text = f"{name}({field}={value!r})"
    try:
        thing = registry.make(text)
    except FedlibError as error:
        return sentence(error)
    assert canonical(registry.make(canonical(thing))) == canonical(thing)


@given(st.dictionaries(st.sampled_from(list(RunSpec.__dataclass_fields__)), values | forms, min_size=1, max_size=3))
@settings(quick, max_examples=300)
@example({"clients": 10.0})
@example({"seed": 0.0})
@example({"skip": False})
@example({"lr": 1e308})
@example({"lr_decay": 1e300})
@example({"lr_decay": 2.0, "rounds": 100_000})
@example({"rounds": 10**15})
def test_a_run_is_a_run_or_a_sentence(changes):
    try:
        spec = RunSpec(**BASE | changes)
    except FedlibError as error:
        return sentence(error)
    again = RunSpec.from_json(spec.to_json())
    assert again == spec and again.id == spec.id
    for name, field in RunSpec.__dataclass_fields__.items():
        kinds = getattr(field.type, "__args__", (field.type,))
        assert type(getattr(spec, name)) in kinds or field.type is not int, "integers are integers"


def answer(*arguments: str) -> tuple[int, str, str]:
    """What the command does with these arguments, here: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", ["fedlib", *arguments])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            cli.main()
    return ended.value.code or 0, out.getvalue(), err.getvalue()


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A folder of one's own with nothing in it, and no training."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLIB_STORE", str(tmp_path / "runs"))
    monkeypatch.setenv("FEDLIB_TRAIN", "0")
    return tmp_path


OPTIONS = [f"--{name.replace('_', '-')}" for name in RunSpec.__dataclass_fields__]
typed = st.one_of(values.map(repr), words, forms, st.sampled_from(["", "[]", "None", "true", "-1", "1e400"]))
simulate = st.builds(
    lambda pairs, more: [
        "simulate",
        *(f for k, v in BASE.items() for f in (f"--{k}", v)),
        *sum(map(list, pairs), []),
        *more,
    ],
    st.lists(st.tuples(st.sampled_from([*OPTIONS, "--jobs", "-p", "--nope"]), typed), min_size=1, max_size=3),
    st.lists(st.sampled_from(["--json", "-q", "--fresh", "lr", "--seed"]), max_size=2),
)
others = st.builds(
    lambda command, pairs, more: [command, *sum(map(list, pairs), []), *more],
    st.sampled_from(["list", "plan", "data", "models", "pretrain", "run", "site", "", "simulat", "--version"]),
    st.lists(
        st.tuples(
            st.sampled_from(["--jobs", "--scale", "--sample", "--seconds", "--gpus", "--engine", "--dataset"]), typed
        ),
        max_size=2,
    ),
    st.lists(st.sampled_from(["-p", "seeds", "[]", "no/such*", "nothing.ipynb", "get", "x", "--epochs"]), max_size=3),
)


@given(simulate | others)
@settings(quick, max_examples=250)
@example(["audit", "--seconds", "nan"])
@example(["audit", "--sample", "1", "--sample", "2"])
@example(["plan", "no/such", "--jobs", "9" * 500])
@example(["simulate", *OPTIONS[:1], "digits", "--algorithm", "fedavg", "--algorithm", "lws"])
@example(["run", "x" * 5000 + ".ipynb"])
@example(["site", "--notebooks", "x" * 5000])
@example(["list", "fedlws/table01", "nothing"])
@example(["data", "get", "\ud800"])
@example(["list", "\0.ipynb"])
def test_the_command_answers_or_says_one_sentence(nowhere, arguments):
    if arguments[0] in ("list", "plan", "run", "site") and not any("no" in a or "x" * 9 in a for a in arguments[1:]):
        arguments = [*arguments, "no/such*"]  # else it would go through the whole workbook
    code, out, err = answer(*arguments)
    assert code in (0, 2), (arguments, err)
    if code:
        assert out == "" and "Traceback" not in err, (arguments, err)
        assert err.startswith(("fedlib: ", "Usage: ")) and len(err) < 4000, (arguments, err)
        assert err.count("\n") == 1 and err.rstrip().endswith(".") or "Usage: " in err, (arguments, err)
    assert [name for _, _, files in os.walk(nowhere) for name in files] == [], arguments
