"""A mistake in settings.yaml, reported.yaml or claims.yaml is one sentence that says where it is."""

import pytest
import yaml

from fedlib.core.errors import FedlibError
from fedlib.workbook import schema, settings

SOUND = {
    "settings.yaml": """
        open: [transform]
        seeds: {smoke: [1], laptop: [1, 2, 3], paper: [1, 2, 3]}
        defaults: {clients: 10}
        methods: {fedavg: fedavg, law: {paper: law, laptop: law, smoke: law}}
        presets: {released: {settings: {lr: 0.1}, methods: {fedavg: {algorithm: fedavg, optimizer: sgd}}}}
        chosen: {seeds: "1, 2 and 3."}
        columns: {table1: {paper: {digits: [0.1, 'shards']}, laptop: {digits: [0.1]}}}
        panels: {digits: {paper: {dataset: digits, model: mlp}, laptop: {}, smoke: {rounds: 3}}}
        readings: {power: fedlap}""",
    "reported.yaml": """
        paper: mine
        tables: [{id: table1, rows: [{method: fedavg, value: 1.5}, {method: fedprox, value: null}]}]""",
    "claims.yaml": "table1: {C1: {sentence: It holds., where: Table 1, reported: 2, trained: false}}",
}
MISTAKES = [
    ("settings.yaml", "clients: 10", "cliens: 10", "has 'cliens' (did you mean 'clients'?)"),
    ("settings.yaml", "defaults: {clients: 10}", "default: {clients: 10}", "lacks defaults"),
    ("settings.yaml", "chosen:", "choosen:", "has 'choosen' (did you mean 'chosen'?)"),
    ("settings.yaml", "smoke: {rounds: 3}", "smoke: {round: 3}", "Smoke of the panel digits"),
    ("settings.yaml", "laptop: {}, smoke", "latop: {}, smoke", "has 'latop' (did you mean 'laptop'?)"),
    ("settings.yaml", "laptop: {}, smoke", "laptop: 3, smoke", "must be a mapping; got 3"),
    ("settings.yaml", "laptop: {digits: [0.1]}", "laptop: {digit: [0.1]}", "did you mean 'digits'?"),
    ("settings.yaml", "laptop: {digits: [0.1]}", "laptop: {digits: 0.1}", "must be a list; got 0.1"),
    ("settings.yaml", "laptop: {digits: [0.1]}", "laptop: {digits: [{}]}", "lists numbers (alpha) or texts"),
    ("settings.yaml", "laptop: [1, 2, 3]", "laptop: [1, two]", "whole numbers, 0 or more; got 'two'"),
    ("settings.yaml", "open: [transform]", "open: [transfrom]", "did you mean 'transform'?"),
    ("settings.yaml", "open: [transform]", "open: transform", "Open of papers/mine/settings.yaml must be a list"),
    ("settings.yaml", '"1, 2 and 3."', "[1, 2, 3]", "'seeds' of chosen in"),
    ("settings.yaml", "law: {paper: law", "law: {paper: 5", "Paper of the method law"),
    ("settings.yaml", "settings: {lr: 0.1}", "setting: {lr: 0.1}", "has 'setting' (did you mean 'settings'?)"),
    ("settings.yaml", "settings: {lr: 0.1}", "settings: {lrs: 0.1}", "Settings of the preset released"),
    ("settings.yaml", "optimizer: sgd", "optimiser: sgd", "did you mean 'optimizer'?"),
    ("reported.yaml", "id: table1, ", "", "lacks id"),
    ("reported.yaml", "value: 1.5", "value: '1.5'", "value of entry 1 of rows of table1"),
    ("reported.yaml", "value: 1.5", "percent: 1.5", "lacks value"),
    ("reported.yaml", "tables: [", "tables: [3, ", "Table 1 of papers/mine/reported.yaml must be a mapping; got 3"),
    ("claims.yaml", "{C1: {sentence: It holds., where: Table 1, reported: 2, trained: false}}", "[C1]", "be a mapping"),
    (
        "claims.yaml",
        "reported: 2",
        "reported: two",
        "Reported of table1.C1 of papers/mine/claims.yaml must be a number",
    ),
    ("claims.yaml", "trained: false", "trained: 'no'", "must be yes or no"),
    ("claims.yaml", "It holds.", "[1]", "Sentence of table1.C1"),
    ("claims.yaml", "{C1:", "{C1: {", "papers/mine/claims.yaml is no YAML"),
]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes files of a paper, to be read anew."""
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(settings, "PAPERS", tmp_path)
    settings.read.cache_clear()
    yield lambda name, text: (tmp_path / "mine" / name).write_text(text)
    settings.read.cache_clear()


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_is_read(mine, name):
    mine(name, SOUND[name])
    assert settings.read("mine", name).keys() == yaml.safe_load(SOUND[name]).keys()


@pytest.mark.parametrize("name, right, wrong, says", MISTAKES)
def test_a_mistake_is_a_sentence_with_its_place(mine, name, right, wrong, says):
    assert SOUND[name].count(right) == 1
    mine(name, SOUND[name].replace(right, wrong))
    with pytest.raises(FedlibError) as caught:
        settings.read("mine", name)
    text = str(caught.value)
    assert says in text and f"papers/mine/{name}" in text and text.endswith(".") and "\n" not in text


def test_what_a_page_needs_and_the_settings_lack_is_named(mine):
    mine("settings.yaml", "{defaults: {}, panels: {}}")
    for needs in (
        settings.seeds,
        lambda p, s: settings.columns(p, "table1", s),
        lambda p, s: settings.methods(p, s, "x"),
    ):
        with pytest.raises(FedlibError, match="papers/mine/settings.yaml has no '(seeds|columns|methods):'"):
            needs("mine", "laptop")


def test_every_paper_of_the_workbook_has_the_form():
    for path in sorted(settings.PAPERS.glob("*/*.yaml")):
        schema.check(path.parent.name, path.name, yaml.safe_load(path.read_text(encoding="utf-8")))
