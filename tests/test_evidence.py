"""A grade follows from specs alone; a cell whose base method has hardly learned counts nowhere."""

import pytest

from fedlib.core.errors import FedlibError
from fedlib.core.spec import Measure, RunSpec
from fedlib.workbook.evidence import OWN, PART, REDUCED, STAND_IN, Evidence, fields_of, grade
from fedlib.workbook.page import Page
from fedlib.workbook.settings import PAPERS, begun, own_grid, read, setting, unstated

PAPER = RunSpec(dataset="cifar10", model="simple_cnn", partition="dirichlet(alpha=0.1)", rounds=200, seed=1)


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, OWN),
        ({"seed": 9, "eval_every": 5, "probes": "spread"}, OWN),
        ({"rounds": 60}, PART),
        ({"rounds": 300}, OWN),
        ({"subset": 4000}, REDUCED),
        ({"test_subset": 2000}, REDUCED),
        ({"clients": 5, "rounds": 60}, REDUCED),
        ({"algorithm": "fedprox(mu=0.1)"}, REDUCED),
        ({"dataset": "fashion_mnist"}, STAND_IN),
        ({"model": "resnet20"}, STAND_IN),
        ({"partition": "dirichlet(alpha=100.0)"}, STAND_IN),
        ({"batch_size": 128}, REDUCED),
    ],
)
def test_the_grade_of_a_run(change, expected):
    assert grade(PAPER.replace(**change), [PAPER]).kind == expected


def test_what_the_paper_does_not_state_is_no_difference():
    assert grade(PAPER.replace(batch_size=128), [PAPER], {"batch_size"}).kind == OWN
    assert grade(PAPER.replace(batch_size=128, rounds=60), [PAPER], {"batch_size"}).kind == PART


def test_the_nearest_of_the_papers_runs_counts():
    other = PAPER.replace(dataset="cifar100", partition="dirichlet(alpha=100.0)")
    found = grade(PAPER.replace(subset=4000), [other, PAPER])
    assert (found.kind, found.differs, found.own) == (REDUCED, ("subset",), PAPER)
    assert grade(PAPER, []).kind == STAND_IN


def test_the_same_data_set_made_smaller_is_reduced():
    paper = PAPER.replace(dataset="cifar100")
    assert grade(PAPER.replace(dataset="cifar100(part=subset)"), [paper]).kind == REDUCED
    shards = PAPER.replace(partition="shards(per_client=2, chunk=200)")
    assert grade(PAPER.replace(partition="shards(per_client=2, chunk=25)"), [shards]).kind == REDUCED
    assert grade(PAPER.replace(partition="shards(per_client=3, chunk=200)"), [shards]).kind == STAND_IN


def test_a_run_that_is_not_finished_is_own_as_far_as_it_is():
    found = grade(PAPER, [PAPER], done=62)
    assert (found.kind, found.done, found.due) == (PART, 62, 200)


def test_measurements_are_own_with_the_papers_parameters():
    paper = Measure("aggregation_time(model=resnet20, clients=20, turns=3)")
    assert grade(Measure("aggregation_time(model=resnet20, clients=20, turns=9)"), [paper, PAPER]).kind == OWN
    assert grade(Measure("aggregation_time(model=resnet20, clients=4)"), [paper]).kind == REDUCED
    assert grade(Measure("aggregation_time(model=resnet8, clients=20)"), [paper]).kind == STAND_IN


def record(spec, accuracy):
    from fedlib.runs.record import Record

    series = {"round": list(range(1, len(accuracy) + 1)), "accuracy": accuracy}
    partition = {"fingerprint": "x", "sizes": [1]}
    return Record.of_run(spec, series, partition, [], {}, 1.0)


def page_evidence() -> Evidence:
    names = ("data", "method", "seed")
    grid, records = {}, {}
    for data, level in (("good", 0.8), ("poor", 0.2)):
        for method in ("fedavg", "lws"):
            for seed in (1, 2):
                spec = PAPER.replace(algorithm=method, seed=seed, subset=4000 if data == "good" else None)
                grid[data, method, seed] = spec
                records[data, method, seed] = record(spec, [level if method == "fedavg" else 0.9])
    theirs = {("good", m, 1): PAPER.replace(algorithm=m) for m in ("fedavg", "lws")}
    return Evidence(grid, theirs, records, names, set(), "fedavg")


def test_a_cell_is_graded_by_its_worst_run_and_only_by_those_it_compares():
    evidence = page_evidence()
    assert evidence.of({"data": "good"}).kind == REDUCED and evidence.of({"data": "poor"}).kind == OWN
    assert evidence.of({}).kind == REDUCED, "what a cell does not name is pooled in it"
    evidence.grid["poor", "lws", 1] = PAPER.replace(algorithm="lws(beta=0.5)", clients=5)
    del evidence.grades
    assert evidence.of({"data": "poor"}).kind == REDUCED
    assert evidence.of({"data": "poor"}, ("fedavg",)).kind == OWN


def test_a_base_method_near_chance_tells_nothing():
    evidence = page_evidence()
    assert evidence.learned({"data": "good"}) == pytest.approx(0.7 / 0.9)
    assert evidence.learned({"data": "poor"}) == pytest.approx(0.1 / 0.9), "of the base, whatever others learn"
    assert evidence.informative({"data": "good"}) and not evidence.informative({"data": "poor"})
    assert not evidence.informative({}), "a pooled cell is as good as its worst column"


def test_fedlaws_perceptron_column_is_its_own_and_its_lenet_is_not():
    page = Page("fedlaw.table3", "laptop", [8])
    page.jobs = page.grid(["fedavg", "law"])
    kinds = {key[0]: page.evidence.grades[key].kind for key in page.jobs if key[2] == "fedavg"}
    assert kinds["fashion_mlp_own"] == OWN and kinds["fashion_mlp"] == kinds["fashion_lenet"] == REDUCED


@pytest.mark.parametrize("path", sorted(PAPERS.glob("*/settings.yaml")), ids=lambda p: p.parent.name)
def test_what_is_not_stated_is_a_field_of_a_run(path):
    import dataclasses

    paper = path.parent.name
    fields = {f.name for f in dataclasses.fields(RunSpec)}
    for exhibit in (None, *read(paper, "settings.yaml").get("open_for", {})):
        assert unstated(paper, exhibit) <= fields


def test_the_runs_at_the_papers_own_settings_are_all_in_the_plan_and_differ_from_a_panel_in_nothing_else():
    listed = {path.parent.name: read(path.parent.name, "settings.yaml") for path in PAPERS.glob("*/settings.yaml")}
    papers = {paper: found["own"] for paper, found in listed.items() if paper != "synthesis" and "own" in found}
    assert sorted(listed["synthesis"]["own"]) == sorted(
        f"{p}.{panel}" for p, panels in papers.items() for panel in panels
    )
    for paper, panel in ((paper, panel) for paper, panels in papers.items() for panel in panels):
        theirs = RunSpec(**setting(paper, panel, "paper"))
        for (_, column, method, seed), spec in own_grid(paper, panel, "paper").items():
            differs = {n for n, value in fields_of(spec).items() if value != fields_of(theirs)[n]}
            free = {"partition", "participation", "algorithm", "seed"} | (
                {"model"} if method.startswith("dw") else set()
            )
            if "preset" in papers[paper][panel]:
                free |= {"keep_optimizer", "client_holdout", "optimizer"}
            assert differs <= free and spec.seed == seed, (paper, panel, column, method)


def test_own_runs_come_seed_by_seed_so_that_methods_can_be_compared_at_any_time():
    grid = own_grid("feddw", "mnist", "paper")
    assert [key[3] for key in grid] == [1] * 6 + [2] * 6 + [3] * 6
    assert {key[1:3] for key in list(grid)[:6]} == {
        (e, m) for e in ("practical", "pathological") for m in ("fedavg", "dw", "dw10")
    }
    dw = grid["mnist", "pathological", "dw10", 1]
    assert (dw.model, dw.participation, dw.algorithm) == ("feddw_cnn_mnist(bias=False)", 0.5, "dw(mu=10.0)")
    assert own_grid("fedlws", "cifar10", "smoke")["cifar10", 100, "lws", 1].dataset == "digits"
    assert {key[3] for key in own_grid("fedlaw", "simple_cnn", "smoke")} == {8, 9}
    as_released = own_grid("fedlaw", "fashion_mlp_own", "paper")["fashion_mlp_own", 0.1, "fedprox", 8]
    assert (as_released.keep_optimizer, as_released.client_holdout, as_released.optimizer) == (True, 0.3, "sgd")
    with pytest.raises(FedlibError, match="panel run at its own setting of fedlws"):
        own_grid("fedlws", "vit", "paper")


def test_a_page_takes_of_the_own_runs_what_has_begun(tmp_path, monkeypatch):
    own = own_grid("feddw", "mnist", "paper")
    dw, other = own["mnist", "practical", "dw", 1], own["mnist", "pathological", "fedavg", 2]
    monkeypatch.setenv("FEDLIB_STORE", str(tmp_path))
    for spec in (dw, other):
        (tmp_path / f"{spec.id}.json").touch()
    begun_now = lambda *seeds, **what: begun("feddw", "mnist", "laptop", seeds, **what)  # noqa: E731
    mine = lambda found: {key: run for key, run in found.items() if run in (dw, other)}  # noqa: E731
    both = {("mnist_own", "practical", "dw", 1): dw, ("mnist_own", "pathological", "fedavg", 2): other}
    assert mine(begun_now(1, 2, 3)) == both and mine(begun_now(3)) == {}
    assert mine(begun_now(1, 2, columns=["pathological"])) == {("mnist_own", "pathological", "fedavg", 2): other}
    assert mine(begun_now(1, 2, methods={"dw": "ours"}, name="whole")) == {("whole", "practical", "ours", 1): dw}
    assert begun("feddw", "mnist", "paper", [1, 2]) == begun("feddw", "mnist", "smoke", [1, 2]) == {}
