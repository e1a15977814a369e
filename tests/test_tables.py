"""Grids of tables from the settings, and the paper's numbers under our names."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedlib.core.errors import FedlibError
from fedlib.workbook import fedlaw_plots, frames, reported, settings

CELL = {"fedavg": "fedavg", "fedavg+lws": "lws(beta={beta})"}


def test_a_grid_has_a_run_for_every_cell_and_the_strength_goes_with_the_network():
    columns = [("fashion_mnist", 100), ("resnet20", 0.1)]
    grid = settings.build_grid("fedlws", columns, CELL, [1, 2], "laptop", beta={"": 0.1, "resnet": 0.02})
    assert len(grid) == 2 * 2 * 2
    assert grid["fashion_mnist", 100, "fedavg+lws", 2].algorithm == "fedavg+lws(beta=0.1)"
    assert grid["resnet20", 0.1, "fedavg+lws", 1].algorithm == "fedavg+lws(beta=0.02)"
    assert grid["fashion_mnist", 100, "fedavg", 1].partition == "dirichlet(alpha=100.0)"
    assert {spec.seed for spec in grid.values()} == {1, 2}


def test_the_servers_work_goes_with_the_column():
    columns = [("fashion_mlp", 0.1), ("cifar10_cnn", 100), ("cifar100_cnn", 100)]
    grid = settings.server_grid("fedlaw", columns, ["fedavg", "law", "feddf"], [8], "paper")
    assert len(grid) == 3 * 3
    fashion, cifar10, cifar100 = (grid[*at, "law", 8] for at in columns)
    assert "lr=0.005" in fashion.algorithm and "lr=0.005" in cifar100.algorithm
    assert cifar10.algorithm == "fedavg+law", "100 epochs and 0.01 are the method's own"
    assert (fashion.local_epochs, fashion.proxy, cifar100.proxy) == (3, "balanced(size=100)", "balanced(size=1000)")
    assert grid["cifar10_cnn", 100, "feddf", 8].algorithm == "fedavg+feddf"


def test_a_preset_is_the_whole_chassis_of_the_authors_code():
    columns, names = [("fashion_mlp", 0.1)], ["fedavg", "fedprox", "feddyn", "feddf", "server_ft", "law", "law_swa"]
    levels = {"text": {}, "forms": "released_methods", "code": "released"}
    grid = settings.server_grid("fedlaw", columns, names, [8], "paper", levels)
    plain = settings.server_grid("fedlaw", columns, names, [8], "paper")
    at = lambda level, method: grid["fashion_mlp", 0.1, level, method, 8]  # noqa: E731
    for method in names:
        text, forms, code = (at(level, method) for level in levels)
        assert text.id == plain["fashion_mlp", 0.1, method, 8].id, "an empty change changes nothing"
        assert (code.keep_optimizer, code.client_holdout) == (True, 0.3)
        assert (forms.keep_optimizer, forms.client_holdout) == (False, 0.0)
        assert code.replace(keep_optimizer=False, client_holdout=0.0) == forms
        stays = ("local_epochs", "proxy", "rounds", "batch_size", "lr", "lr_decay", "subset")
        assert all(getattr(code, name) == getattr(text, name) for name in stays), "what Table 3 states"
    assert at("code", "fedprox").optimizer == "sgd" and at("text", "fedprox").optimizer == at("code", "law").optimizer
    assert at("code", "feddyn").algorithm == "feddyn(variant=released)"
    assert at("code", "law").algorithm == "fedavg+law(variant=released, lr=0.005)"
    assert at("code", "law_swa").algorithm == "fedavg+law(variant=released, lr=0.005, swa=True)"
    with pytest.raises(FedlibError, match="preset of fedlaw 'relesed'"):
        settings.server_grid("fedlaw", columns, names, [8], "paper", {"code": "relesed"})


def test_a_method_may_have_settings_of_its_own():
    methods = {"plain": {"algorithm": "fedprox(mu={mu})", "optimizer": "sgd"}, "fedavg": "fedavg"}
    grid = settings.build_grid("fedlaw", [("fashion_mlp", 1)], methods, [8], "laptop", mu={"": 0.5})
    plain, other = grid["fashion_mlp", 1, "plain", 8], grid["fashion_mlp", 1, "fedavg", 8]
    assert (plain.algorithm, plain.optimizer) == ("fedprox(mu=0.5)", "sgd")
    assert plain.replace(algorithm="fedavg", optimizer=other.optimizer) == other


def test_a_column_at_the_papers_own_setting_is_the_papers_own_at_every_scale_but_smoke():
    theirs = settings.server_grid("fedlaw", [("fashion_mlp", 0.1)], ["fedavg", "law", "feddf"], [8], "paper")
    here = settings.server_grid("fedlaw", [("fashion_mlp_own", 0.1)], ["fedavg", "law", "feddf"], [8], "laptop")
    assert [spec.id for spec in here.values()] == [spec.id for spec in theirs.values()]
    laptop, paper = (settings.setting("fedlaw", "fashion_mlp_own", scale) for scale in ("laptop", "paper"))
    assert laptop == paper
    assert settings.setting("fedlaw", "fashion_mlp_own", "smoke")["dataset"] == "digits"


def test_a_column_may_have_another_partition():
    (spec,) = settings.build_grid("fedlws", [("fashion_mnist", "iid")], {"fedavg": "fedavg"}, [1], "smoke").values()
    assert spec.partition == "iid"


def test_smoke_runs_its_own_columns_or_those_of_laptop():
    assert len(settings.columns("fedawa", "table1", "smoke")) == 1 < len(settings.columns("fedawa", "table1", "laptop"))
    assert settings.columns("fedlws", "table6", "smoke") == settings.columns("fedlws", "table6", "laptop")
    assert ("cifar100", 1) in settings.columns("fedlws", "table6", "paper")
    with pytest.raises(FedlibError, match="table"):
        settings.columns("fedlws", "table99", "paper")


def test_the_reported_gap_is_that_over_the_best_other_of_each_column_that_has_them_all():
    told = {("a", 1, "x"): 3.0, ("a", 1, "y"): 1.0, ("a", 1, "z"): 2.5, ("b", 1, "x"): 5.0, ("b", 1, "y"): 4.0}
    assert reported.reported_gaps(told, "x", "y").to_dict() == {("a", 1): 2.0, ("b", 1): 1.0}
    assert reported.reported_gaps(told, "x", ["y", "z"]).to_dict() == {("a", 1): 0.5}, "b has no z"
    assert reported.reported_gaps(told, "x", "nobody").empty


def test_reported_cells_come_under_our_names():
    told = reported.reported_cells("fedlws", "table6", lambda row: (row["dataset"], row["alpha"], row["method"]))
    assert told["cifar10", 1, "fedavg"] == 75.18
    assert len(told) == 24


def test_printed_means_and_gains_that_do_not_follow_from_the_cells():
    found = reported.arithmetic_errors("fedlws")
    means = found[found["number"].str.startswith("mean accuracy")].set_index("number")["from the cells"]
    assert means.to_dict() == {
        "mean accuracy: feddisco": 58.075,
        "mean accuracy: l_dawa": 56.8633,
        "mean accuracy: l_dawa+lws": 58.7625,
    }
    gains = found[found["number"].str.contains("gain")]
    assert set(gains["table"]) == {"Table 11"}
    assert gains.set_index("number")["from the cells"].to_dict() == {
        "gain: feddisco+lws, cifar100, 100": 0.36,
        "mean gain: feddisco+lws": 1.5625,
    }


def test_the_race_to_a_common_level_is_run_seed_by_seed_to_the_lowest_of_a_cell():
    steps = {("a", "slow", 1): 10, ("a", "fast", 1): 20, ("a", "fast", 2): 5}
    rounds = [1, 2, 3, 4, 5]
    records = {k: SimpleNamespace(accuracy=[n * r for r in rounds], series={"round": rounds}) for k, n in steps.items()}
    index = pd.MultiIndex.from_tuples(records, names=["data", "method", "seed"])
    ends = pd.Series([r.accuracy[-1] for r in records.values()], index, dtype=float)
    assert frames.rounds_to_common(records, ends) == [5, 3, 5], "to 50 percent with seed 1, to 25 with seed 2"
    assert frames.rounds_to_common(records, ends, share=0.4) == [2, 1, 2]


def test_evenness_of_a_split_counts_classes_and_sizes():
    split = SimpleNamespace(result={"counts": [[5, 5], [30, 0], [0, 0]]})  # the third client is empty
    row = frames.evenness({("a", 1): split}, ("data", "seed")).loc["a", 1]
    assert row["entropy"] == pytest.approx((1 + 0) / 2), "of those who hold anything"
    assert (row["smallest"], row["largest"], row["classes"]) == (0, 30, 1)
    assert row["spread of sizes"] == pytest.approx(np.std([10, 30, 0], ddof=1) / (40 / 3))


def test_steadiness_compares_the_end_with_the_best_ten_rounds_and_each_side_at_its_best():
    index = pd.MultiIndex.from_product(
        [["a"], [1], ["fedavg", "feddf", "law", "law_swa"], [1, 2, 3]], names=["data", "alpha", "method", "seed"]
    )
    end = [10, 11, 12] + [14, 15, 16] + [20, 21, 22] + [17, 18, 19.0]
    scores = pd.DataFrame({"last 10": end, "best 10": [e + 3 for e in end]}, index=index)
    scores = scores.assign(roughness=1.0, rounds=200)
    found = fedlaw_plots.steadiness(scores)
    assert found["lead"].values.tolist() == [6, 6, 6] and found["steady"].values.tolist() == [0, 0, 0]
    assert found["kept"].values.tolist() == [-3, -3, -3], "three points below its best"
    assert fedlaw_plots.steadiness(scores.assign(rounds=20))["kept"].values.empty, "too short"
    assert fedlaw_plots.steadiness(scores, data="b")["lead"].values.empty
