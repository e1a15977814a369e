"""Settings, reported numbers and the tables made from records."""

import dataclasses

import matplotlib.colors
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PathCollection

import fedlib
from fedlib.algorithms import ALGORITHMS
from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.runs.execute import simulate
from fedlib.runs.record import Record
from fedlib.workbook import frames, maps, plots, rank_plots, reported, settings, tables
from fedlib.workbook import notebooks as workbook
from fedlib.workbook.statistics import interval
from fedlib.workbook.tables import show_table

NAMES = ("panel", "method", "seed")
ALL = ("fedlws", "fedawa", "fedlap", "fedlaw", "feddw")


@pytest.fixture(scope="module")
def records():
    setting = settings.setting("fedlap", "mnist", "smoke")
    return {
        ("mnist", m, s): simulate(RunSpec(**setting, algorithm=m, seed=s)) for m in ("fedavg", "fedlap") for s in (1, 2)
    }


def test_scale_overrides_panel_overrides_defaults():
    ours, smoke = (settings.setting("fedlap", "cifar10", scale) for scale in ("paper", "smoke"))
    assert ours["partition"] == "shards(per_client=2, chunk=200)"
    assert (ours["clients"], ours["lr"], ours["dataset"]) == (100, 0.01, "cifar10")
    assert (smoke["clients"], smoke["lr"]) == (10, 0.01)


@pytest.mark.parametrize("path", sorted(settings.PAPERS.glob("*/settings.yaml")), ids=lambda p: p.parent.name)
@pytest.mark.parametrize("scale", settings.SCALES)
def test_every_setting_is_a_valid_run(path, scale):
    name = path.parent.name
    for panel in settings.read(name, "settings.yaml")["panels"]:
        fields = {f.name for f in dataclasses.fields(RunSpec)}
        assert set(settings.setting(name, panel, scale)) <= fields
        RunSpec(**settings.setting(name, panel, scale))


def test_environments_change_a_panel_into_valid_runs():
    runs = {
        name: RunSpec(**settings.setting("feddw", "cifar10", "paper") | change)
        for name, change in settings.environments("feddw").items()
    }
    assert [(r.partition, r.clients_per_round) for r in runs.values()] == [
        ("dirichlet(alpha=0.5)", 10),
        ("dirichlet(alpha=0.1)", 5),
    ]


def test_a_scale_has_its_seeds_and_a_page_takes_others():
    """The paper's own three at its own scale, more of them where runs are short."""
    assert settings.seeds("fedlaw", "paper") == [8, 9, 10]
    assert settings.seeds("fedlaw", "laptop")[:3] == [8, 9, 10]
    [page] = workbook.find(["fedlaw/figure03*"])
    assert {key[-1] for key in page.plan({"scale": "paper"})} == {8, 9, 10}
    assert {key[-1] for key in page.plan({"scale": "paper", "seeds": [1]})} == {1}


def test_unknown_names_list_what_is_allowed():
    with pytest.raises(FedlibError, match="smoke, laptop, paper"):
        settings.setting("fedlap", "mnist", "huge")
    with pytest.raises(FedlibError, match="mnist, fashion_mnist, cifar10"):
        settings.setting("fedlap", "svhn", "smoke")
    with pytest.raises(FedlibError, match="fedlap"):
        settings.setting("fedlapp", "mnist", "smoke")
    with pytest.raises(FedlibError, match="table12"):
        reported.reported_table("fedlws", "table99")
    with pytest.raises(FedlibError, match="table12"):
        reported.reported_cells("fedlws", "table99", tuple)
    with pytest.raises(FedlibError, match="give 'epochs' or use server_grid"):
        settings.build_grid("fedlaw", [("fashion_mlp", 1)], settings.methods("fedlaw", "laptop", "law"), [8], "laptop")


def test_a_scale_changes_what_its_panel_says_and_nothing_else():
    assert settings.setting("fedlap", "mnist", "laptop") == settings.setting("fedlap", "mnist", "paper")
    theirs, here = (settings.setting("fedlap", "cifar10", scale) for scale in ("paper", "laptop"))
    changed = {name: (theirs.get(name), value) for name, value in here.items() if theirs.get(name) != value}
    assert set(changed) == {"model", "subset", "test_subset", "partition", "rounds"}
    assert (changed["rounds"], changed["subset"], changed["test_subset"]) == ((100, 50), (40000, 5000), (None, 2000))


def test_an_exhibits_own_choice_replaces_the_papers():
    wide, own = (settings.open_choices("fedawa", e).set_index("left open")["our choice"] for e in (None, "table7"))
    assert "last ten rounds" in wide["score"] and "last three rounds" in own["score"]
    assert {*wide.index} <= {*own.index} and own.index.is_unique
    open_here = settings.open_choices("fedlaw", "figure12")["left open"].tolist()
    assert "server epochs" not in open_here, "null: there is none"


@pytest.mark.parametrize("name", ALL)
def test_reported_numbers_load(name):
    tables = reported.reported(name)["tables"]
    assert reported.reported(name)["paper"] == name
    assert tables or reported.reported(name)["stated_in_prose"]
    for table in tables:
        rows = reported.reported_table(name, table["id"])
        empty = rows[rows["value"].isna()] if len(rows) else rows
        assert empty.get("status", pd.Series()).notna().all()  # a cell without a number says why
        assert len(empty) == len(empty.get("status", []))


def test_a_reported_cell():
    cell = reported.reported_table("fedlws", "table1").query(
        "method == 'fedavg' and dataset == 'cifar10' and alpha == 100"
    )
    assert cell["value"].tolist() == [76.01]


def test_prose_numbers_of_a_figure():
    said = reported.prose_numbers("fedlap", "figure2")["the paper says"]
    assert said.str.contains("80% accuracy").sum() == 1
    assert not said.str.contains("50% accuracy").any()


def test_critical_difference_shows_who_is_told_apart():
    figure = rank_plots.critical_difference(pd.Series({"c": 4.0, "a": 1.0, "b": 2.5}), 2.0, reference="a")
    [axis] = figure.axes
    assert [t.get_text() for t in axis.get_yticklabels()] == ["a", "b", "c"]
    together, apart = (c.get_offsets().tolist() for c in axis.collections if isinstance(c, PathCollection))
    assert together == [[1.0, 0.0], [2.5, 1.0]] and apart == [[4.0, 2.0]], "c is three ranks away, b one and a half"
    bars = [s.tolist() for c in axis.collections if isinstance(c, LineCollection) for s in c.get_segments()]
    assert [[0.0, 0.0], [2.0, 0.0]] in bars and len(bars) == 3, "half the difference to either side"


def test_curves_and_scores_come_from_the_records(records):
    frame = frames.curves(records, NAMES)
    assert list(frame.columns) == [*NAMES, "round", "accuracy"] and len(frame) == 4 * 3
    record = records["mnist", "fedlap", 2]
    mine = frame.query("method == 'fedlap' and seed == 2")
    assert mine["accuracy"].tolist() == pytest.approx([100 * a for a in record.series["accuracy"]])
    scores = frames.scores(records, NAMES, last=lambda c: frames.last(c, 10))
    assert scores.loc[("mnist", "fedlap", 2), "last"] == pytest.approx(mine["accuracy"].mean())
    assert set(frames.curves(records, NAMES, "lap_term")["method"]) == {"fedlap"}  # FedAvg has no such term


def test_settled_says_which_seeds_there_are(records):
    assert frames.describe_runs(records, NAMES) == "4 runs in 2 cells, each with seeds 1, 2. Data: digits."
    partial = {k: r for k, r in records.items() if k != ("mnist", "fedlap", 2)}
    assert frames.describe_runs(partial, NAMES) == "3 runs in 2 cells, each with seeds 1 or 1, 2. Data: digits."


def test_weights_stand_beside_the_shares_of_the_data_in_the_cohort():
    setting = settings.setting("fedawa", "R0.5", "smoke")
    record = simulate(RunSpec(**setting, algorithm="awa(steps=1, lr=0.000001)", seed=1))
    weights = frames.weights({(1,): record}, ("seed",))
    assert list(weights) == ["seed", "client", "round", "weight", "size", "even"]
    assert len(weights) == 2 * 5 and set(weights["even"]) == {0.2}, "two rounds, half of ten clients"
    assert weights["weight"].to_numpy() == pytest.approx(weights["size"].to_numpy(), abs=1e-4), "hardly moved"
    assert weights.groupby("round")[["weight", "size"]].sum().to_numpy() == pytest.approx(1, abs=1e-3)


def test_a_triangle_has_its_corners_where_one_share_is_all():
    _, [axis] = plots.panels(1)
    points = np.array([(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.5, 0)])
    maps.triangle(axis, points, np.array([1.0, 2.0, 3.0, 4.0]), "abc")
    at = {text.get_text(): text.get_position()[0] for text in axis.texts}
    assert at == {"a": 0, "b": 1, "c": 0.5}
    _, [axis] = plots.panels(1)
    maps.simplex_path(axis, points, "abc")
    dots = axis.collections[0].get_offsets()
    assert dots.tolist() == [pytest.approx(p) for p in ([0, 0], [1, 0], [0.5, 0.75**0.5], [0.5, 0])]
    assert axis.lines[-1].get_xydata().tolist() == [pytest.approx([0.5, 0.75**0.5 / 3])], "equal shares"


def test_probes_of_a_run_are_found_by_name():
    setting = settings.setting("fedlaw", "looked_into", "smoke")
    spec = RunSpec(**setting, algorithm="fedavg", seed=1)
    train, test = frames.probe_forms(spec, "hessian")
    assert "every=5" in train and "on=test" in test and frames.probe_forms(spec, "tsne") == []
    assert set(simulate(spec).probes) >= {train, test, *frames.probe_forms(spec, "rescaling")}


def test_metrics_worked_out_by_hand():
    curve = pd.Series([10.0, 50.0, 40.0, 80.0], index=[5, 10, 15, 20])  # evaluated every fifth round
    assert frames.rounds_to(curve, 45) == 10
    assert np.isnan(frames.rounds_to(curve, 81))
    assert frames.first(curve, 10) == 30
    assert frames.last(curve, 10) == 60, "the last ten rounds, whatever was evaluated in them"
    assert frames.at(curve, 15) == 40 and np.isnan(frames.at(curve, 16))
    assert frames.oscillation(curve) == pytest.approx(np.std([40, -10, 40], ddof=1))


def test_summary_says_how_often_a_target_was_reached():
    assert tables.mean_text([1.0, 2.0, 3.0]) == "2.0 ± 2.5"
    assert tables.mean_text([4.0]) == "4.0"
    assert tables.mean_text([7.0, np.nan, 7.0]) == "7.0 ± 0.0 (in 2 of 3)"
    assert tables.mean_text([np.nan, np.nan]) == "–"


def test_a_method_keeps_its_look():
    look = plots.style("fedprox(mu=0.01)")
    assert look["label"] == "FedProx (mu=0.01)"
    assert plots.style("FedProx")["color"] == look["color"] == plots.style("fedprox(mu=1)+lws")["color"]
    assert plots.style("fedprox+lws")["linestyle"] != look["linestyle"]
    assert plots.style("brand_new") == plots.style("brand_new")
    known = settings.names()["methods"]
    looks = [tuple(map(str, s[1:])) for s in known.values()]
    assert len(set(looks)) == len(looks) and set(known) <= set(ALGORITHMS.names())


def test_methods_of_one_figure_differ_in_more_than_colour():
    compared = "fedavg fedprox moon feduv fedbabu fedproto fedper fedrep fedala perfedavg feddistill local dw".split()
    known = settings.names()["methods"]
    looks = [known[name][1:] for name in compared]
    for n, (colour, marker, line) in enumerate(looks):
        for other in looks[:n]:
            assert (marker, line) != other[1:], "told apart in grey"
            assert colour != other[0] or (marker != other[1] and line != other[2])
    shrinking = "fedavg gws lws law attentive".split()
    assert len({known[name][1] for name in shrinking}) == len(shrinking)


def test_learning_curves_draws_every_run(records):
    frame = frames.curves(records, NAMES)
    figure = plots.learning_curves(frame, "panel", stated=[("mnist", 2, 30)])
    (axis,) = figure.axes
    ours = [line for line in axis.lines if line.get_label() == "FedLap"]
    mean = frame.query("method == 'fedlap'").groupby("round")["accuracy"].mean()
    np.testing.assert_allclose(ours[0].get_ydata(), mean)
    assert matplotlib.colors.same_color(ours[0].get_color(), plots.style("fedlap")["color"])
    assert axis.get_xlabel() and axis.get_ylabel() and axis.get_title() == "mnist"
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["FedAvg", "FedLap", "stated in the paper"]


def test_of_many_methods_two_may_be_drawn_strong(records):
    frame = frames.curves(records, NAMES)
    (axis,) = plots.learning_curves(frame, "panel", strong=["fedlap"]).axes
    seeds = frame["seed"].nunique()
    label = lambda name: [line for line in axis.lines if line.get_label() == name]  # noqa: E731
    assert len(axis.lines) == seeds + 2, "the seeds of the strong one, and two means"
    assert len(axis.collections) == 1, "one band"
    assert label("FedLap")[0].get_linewidth() > label("FedAvg")[0].get_linewidth()


def test_a_number_far_from_all_others_is_written_at_the_edge():
    here = [1.0, 2.0, 3.0, -1.0, 44.0, 0.5, 0.0, 2.5]
    frame = pd.DataFrame({"panel": "a", "row": list("abcdefgh"), "here": here, "reported": np.nan})
    (axis,) = plots.reported_vs_ours(frame, "points", zero=0).axes
    assert [text.get_text() for text in axis.texts] == ["+44"]
    assert axis.get_xlim()[1] < 10, "which flattens no panel"
    frame.loc[4, "here"] = 4.0
    (axis,) = plots.reported_vs_ours(frame, "points", zero=0).axes
    assert not axis.texts


def test_what_comes_after_the_skipped_rounds_fills_each_panel(records):
    frame = frames.curves(records, NAMES)
    low = frame[frame["round"] == 1].assign(accuracy=-500.0)
    late = frame[frame["round"] > 1]
    frame = pd.concat([low, late, late.assign(panel="far", accuracy=late["accuracy"] + 1000)])
    for sharey, top in ((False, 110), (True, 1200)):
        axis, _ = plots.learning_curves(frame, "panel", sharey=sharey, skip=1).axes
        assert -100 < axis.get_ylim()[0] < frame["accuracy"][frame["accuracy"] >= 0].min()
        assert frame["accuracy"][frame["panel"] == "mnist"].max() < axis.get_ylim()[1] <= top


def test_leads_are_paired_by_seed_and_round(records):
    frame = frames.curves(records, NAMES)
    figure = plots.leads(frame, "panel", "fedlap")
    drawn = next(line for line in figure.axes[0].lines if line.get_label() == "FedAvg")
    gaps = [records["mnist", "fedlap", s].accuracy - records["mnist", "fedavg", s].accuracy for s in (1, 2)]
    np.testing.assert_allclose(drawn.get_ydata(), np.mean(gaps, axis=0))
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["over FedAvg"]


def test_a_variant_looks_the_same_by_either_name_and_like_no_method():
    here, there = (plots.style_or_default("FedLAW with SWA", place) for place in (3, 7))
    assert here == there == plots.style("law_swa")
    looks = [tuple(map(str, s[1:])) for kind in ("methods", "variants") for s in settings.names()[kind].values()]
    assert len(set(looks)) == len(looks)


def test_partition_bubbles_shows_every_holding():
    counts = np.array([[3, 0, 0], [0, 6, 1]])
    (axis,) = plots.partition_bubbles(counts).axes
    assert axis.collections[0].get_offsets().tolist() == [[0, 0], [1, 1], [1, 2]]
    area = axis.collections[0].get_sizes()
    assert area[1] == pytest.approx(2 * area[0])


def test_heatmaps_share_a_scale_and_keep_their_places():
    low, high = np.eye(2), np.full((2, 2), 4.0)
    figure = maps.heatmaps({"SL": {"a": low, "b": high}, "CR": {"a": high, "b": low}}, ticks="xy")
    axes, shown = figure.axes[:4], [axis.images[0] for axis in figure.axes[:4]]
    assert [m.get_array().tolist() for m in shown] == [m.tolist() for m in (low, high, high, low)]
    assert {m.get_clim() for m in shown} == {(0, 4)}
    assert [a.get_title() for a in axes] == ["a", "b", "", ""]
    assert [a.get_ylabel() for a in axes] == ["SL", "", "CR", ""]


def test_a_missing_number_is_a_dash(capsys):
    show_table(pd.DataFrame({"a": [1.5, np.nan], "b": [1, 2]}))
    shown = capsys.readouterr().out
    assert ">–</td>" in shown and ">1.5</td>" in shown and "nan" not in shown


def test_partition_bubbles_sets_splits_side_by_side():
    left, right = plots.partition_bubbles({"alpha 0.1": np.eye(3), "alpha 100": np.ones((3, 3))}).axes
    assert (left.get_title(), right.get_title()) == ("alpha 0.1", "alpha 100")
    assert (len(left.collections[0].get_offsets()), len(right.collections[0].get_offsets())) == (3, 9)


def test_what_is_no_method_has_the_look_of_its_place():
    assert plots.style_or_default("fedprox", 0) == plots.style("fedprox") == plots.style_or_default("fedprox", 3)
    model, layer = plots.style_or_default("model-wise", 1), plots.style_or_default("layer-wise", 2)
    assert model["label"] == "model-wise" and model["color"] != layer["color"] and model["marker"] != layer["marker"]


def test_dots_are_means_with_intervals():
    values = [("a", "fedavg", x, seed, 10 * x + seed) for x in (1, 100) for seed in (1, 2, 3)]
    frame = pd.DataFrame(values, columns=["panel", "method", "alpha", "seed", "gain"])
    (axis,) = plots.dots(frame, "panel", "alpha", "gain").axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [12, 1002])
    bars = [segment[:, 1] for segment in axis.collections[0].get_segments()]
    np.testing.assert_allclose(bars[0], interval([11, 12, 13])[1:])
    assert [t.get_text() for t in axis.get_xticklabels()] == ["1", "100"]


def test_the_legend_names_what_is_reported_only_where_something_is():
    frame = pd.DataFrame({"panel": "a", "row": ["x", "y"], "reported": [1.5, np.nan], "here": [1.2, 1.9]})
    both, ours = (plots.reported_vs_ours(f, "times", log=True).legends for f in (frame, frame.assign(reported=np.nan)))
    assert [t.get_text() for t in both[0].get_texts()] == ["here", "reported"] and not ours


def test_a_bar_that_would_hide_all_others_ends_with_an_arrow():
    frame = pd.DataFrame({"panel": "a", "row": ["x", "y"], "reported": np.nan, "here": [1.0, 2.0]})
    (axis,) = plots.reported_vs_ours(frame.assign(low=[0.9, -60.0], high=[1.1, 64.0]), "points", zero=0).axes
    low, high = axis.get_xlim()
    assert -3 < low and high < 5
    drawn = [c for c in axis.collections if isinstance(c, PathCollection)]
    assert sum(len(c.get_offsets()) for c in drawn) == 2 + 2, "two dots, two arrows"


def test_every_colour_can_be_seen_on_white():
    def light(colour):
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    assert min(1.05 / (light(colour) + 0.05) for colour in plots.PALETTE) >= 3


def test_panels_stand_two_in_a_row():
    figure, axes = plots.panels(3)
    assert len(axes) == len(figure.axes) == 3 and figure.get_figwidth() < 10


def test_long_titles_of_panels_are_broken_so_that_neighbours_do_not_overlap():
    title = "FashionMNIST, MLP as in the paper, alpha 100"
    frame = pd.DataFrame({"panel": [title, "short"], "row": "x", "reported": 1.5, "here": 1.2})
    titles = [axis.get_title() for axis in plots.reported_vs_ours(frame, "points").axes]
    assert titles[1] == "short" and titles[0].replace("\n", " ") == title and "\n" in titles[0]


def test_halvings_compare_the_first_fifth_of_each_run_with_its_last():
    runs = {("short", 1): [8, 4, 2, 1], ("long", 1): [4, 4, 9, 9, 9, 9, 9, 9, 1, 3]}  # rounds 1, 4; 1-2, 9-10
    values = pd.concat(
        {key: pd.Series(v, range(1, len(v) + 1)) for key, v in runs.items()}, names=["panel", "seed", "round"]
    )
    assert frames.phase(values, late=True).to_dict() == {("short", 1): 1, ("long", 1): 2}
    assert frames.halvings(values).to_dict() == {("short", 1): 3, ("long", 1): 1}


def test_layers_are_in_order_and_drawn_by_seed_mean():
    setting = settings.setting("fedlws", "cifar10", "smoke")
    runs = {("digits", s): simulate(RunSpec(**setting, algorithm="lws(beta=0.1)", seed=s)) for s in (1, 2)}
    frame = frames.layers(runs, ("data", "seed"))
    assert list(dict.fromkeys(frame["layer"])) == ["fc1", "classifier"]
    assert len(frame) == 2 * 2 * setting["rounds"]
    (axis,) = plots.layer_curves(frame, "data").axes
    drawn = next(line for line in axis.lines if line.get_label() == "classifier")
    both = [record.curve("gamma/classifier") for record in runs.values()]
    np.testing.assert_allclose(drawn.get_ydata(), np.mean(both, axis=0))


def test_histograms_are_shares_of_all_parameters():
    frame = pd.DataFrame({"model": "cnn", "method": ["fedavg", "layer-wise"], "counts": [[1, 2, 1], [0, 4, 0]]})
    (axis,) = plots.histograms(frame, "model", limit=0.3).axes
    shares = [patch.get_data().values.tolist() for patch in axis.patches]
    assert shares == [[0.25, 0.5, 0.25], [0, 1, 0]]


def test_show_renders_source_under_its_file():
    text = fedlib.show(frames.rounds_to).data
    assert text.startswith("`fedlib/workbook/frames.py`\n```python\ndef rounds_to(")
    assert "class RunSpec" in fedlib.show(frames.at, RunSpec).data
    from fedlib.models.base import evaluate  # decorated by torch: under the name of its own file

    assert fedlib.show(evaluate).data.startswith("`fedlib/models/base.py`")


def test_a_grid_can_vary_a_setting():
    forms = settings.methods("fedlaw", "laptop", "fedavg", "gws")
    assert forms["fedavg"] == "fedavg" and forms["gws"].startswith("gws(epochs=")
    assert settings.methods("fedlaw", "paper", "gws") == {"gws": "gws"}
    with pytest.raises(FedlibError, match="fedavg, gws"):
        settings.methods("fedlaw", "paper", "gsw")
    vary = {e: {"local_epochs": e} for e in (1, 5)}
    grid = settings.build_grid("fedlaw", [("fashion_mnist", 1)], forms, [8, 9], "laptop", vary)
    assert len(grid) == 8
    one, five = (grid["fashion_mnist", 1, e, "gws", 8] for e in (1, 5))
    assert one.replace(local_epochs=5) == five and one.local_epochs == 1
    plain = settings.build_grid("fedlaw", [("fashion_mnist", 1)], forms, [8], "laptop")
    assert plain["fashion_mnist", 1, "gws", 8].id == one.replace(local_epochs=2).id


def test_indicators_are_read_in_the_middle_of_training():
    assert frames.middle(pd.Series(range(1, 201), index=range(1, 201))) == 100  # rounds 90 to 110
    assert frames.middle(pd.Series([7.0, 9.0], index=[1, 2])) == 8  # never empty
    setting = settings.setting("fedlaw", "fashion_mnist", "smoke") | {"rounds": 3}
    record = simulate(RunSpec(**setting, algorithm="gamma(gamma=0.5)", seed=8))
    runs, names = {("digits", 8): record}, ("data", "seed")
    found = frames.probe_means(runs, names, "balance")
    probe = record.probe("balance")
    assert found.loc[("digits", 8), "gamma"] == pytest.approx(0.5)
    assert found.loc[("digits", 8), "step"] == pytest.approx(sum(probe["step"][:2]) / 2)  # rounds 1 and 2 of 3
    diverged = Record(record.json | {"status": "diverged"})
    two = frames.probe_means({**runs, ("digits", 9): diverged}, names, "balance")
    assert two.loc[("digits", 9)].isna().all() and two.loc[("digits", 8)].equals(found.loc[("digits", 8)])
    long = frames.probe_long(runs, names, "balance", {"step": "the step", "r_law": "r"})
    assert long.query("quantity == 'r'")["value"].tolist() == probe["r_law"]
    assert list(dict.fromkeys(long["quantity"])) == ["the step", "r"]
