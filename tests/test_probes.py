"""Every probe against numbers worked out by hand or an exact reference; a run has the same numbers with all of them."""

import json
import math
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.spatial.distance import squareform

from fedlib.algorithms import Algorithm, Round
from fedlib.algorithms.awa import AWA
from fedlib.algorithms.base import Products
from fedlib.core.device import one_thread
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel, Layout
from fedlib.core.spec import Measure, RunSpec
from fedlib.data.augment import augment
from fedlib.data.distances import alignment, labelled_transport, similarity, transport
from fedlib.federation.federation import Federation
from fedlib.models import MODELS, build
from fedlib.models.base import evaluate
from fedlib.probes import PROBES
from fedlib.probes.base import draw
from fedlib.probes.classes import loudness, own, rank_correlation, shares_right
from fedlib.probes.landscape import APART, AWAY, bends, hessian_product, mixtures, top_eigen
from fedlib.probes.updates import entropy, kept_products, mixture
from fedlib.runs.compare import compare
from fedlib.runs.engine import missing, run
from fedlib.runs.estimate import estimate
from fedlib.runs.execute import execute, run_one, simulate
from fedlib.runs.record import Record, checksum
from fedlib.runs.store import Store
from fedlib.workbook.frames import layer_kind, probe_frame

TINY = RunSpec(
    dataset="digits(shape=(1, 8, 8))", model="mlp(hidden=8)", partition="dirichlet(alpha=0.5)", clients=3, rounds=2,
    seed=1,
)  # fmt: skip


def after(text: str, theta, thetas, sizes=None, ids=None, **context) -> Round:
    """A round of a model with the layers a (two numbers) and b (one), aggregated by ``text``."""
    layout = Layout.of_state({"a.weight": torch.zeros(1, 2), "b.weight": torch.zeros(1, 1)})
    sizes = torch.tensor(sizes or [1.0] * len(thetas))
    none = torch.zeros(len(thetas), 0)
    r = Round(
        layout, torch.tensor(theta), none[0], torch.tensor(thetas), none, sizes, ids or list(range(len(thetas))),
        context=context,
    )  # fmt: skip
    Algorithm(text).aggregate(r, {})
    return r


def measure(text: str, r: Round, fed=None) -> dict:
    return PROBES.make(text).measure(fed, r)


def federated(spec: RunSpec) -> tuple[Federation, Round]:
    """The federation after its first round."""
    with one_thread():
        fed, algorithm = Federation(spec), Algorithm(spec.algorithm)
        start = fed.start()
        r = fed.train_cohort(1, algorithm, start, {})
        algorithm.aggregate(r, {})
    return fed, r


# ---------------------------------------------------------------- updates


def test_would_reads_a_server_part_and_leaves_the_round_alone():
    r = after("fedavg", [1.0, 0.0, 2.0], [[3.0, 0.0, 2.0], [1.0, 0.0, 2.0]])
    before = r.aggregate.clone()
    found = measure("would(part='lws(beta=1.0, granularity=model)')", r)
    assert found["gamma"]["model"] == pytest.approx(5**0.5 / (1 * 1 + 5**0.5))  # tau 1, step 1, ||w|| sqrt(5)
    assert torch.equal(r.aggregate, before) and "gamma" not in r.logs
    with pytest.raises(FedlibError, match="acts at the server alone"):
        PROBES.make("would(part=feddyn)")


def test_would_finds_what_the_method_itself_finds_in_its_first_round():
    spec = TINY.replace(proxy="balanced(size=20)")
    parts = {"lws(beta=0.5)": "gamma/fc1", "gws(epochs=3)": "gamma", "oracle_gamma(high=1.5)": "gamma"}
    probed = simulate(spec.replace(probes="+".join(f"would(part={part!r})" for part in parts)))
    assert probed.series == simulate(spec).series, "the run itself goes on without them"
    for part, name in parts.items():
        seen = probed.probe(f"would(part={part!r})")[name]
        assert seen[0] == simulate(spec.replace(algorithm=part)).series[name][0] != 1
    with pytest.raises(FedlibError, match="set proxy"):
        TINY.replace(probes="would(part=gws)")


def test_course_follows_the_server_from_pass_to_pass():
    tiny = TINY.replace(proxy="balanced(size=20)", algorithm="law", probes="course(rounds=(2,))")
    for algorithm, epochs in {"law(epochs=4, lr=0.1)": 4, "law(epochs=14, swa=True)": 14}.items():
        record = simulate(tiny.replace(algorithm=algorithm))
        [gamma], [lam] = record.probe("course(rounds=(2,))")["gamma"], record.probe("course(rounds=(2,))")["lambda"]
        assert (len(gamma), len(lam), {len(line) for line in lam}) == (epochs, 3, {epochs})
        assert [sum(now) for now in zip(*lam, strict=True)] == pytest.approx([1] * epochs, abs=1e-3)
        assert gamma[-1] == pytest.approx(record.series["gamma"][1], rel=1e-3)  # of round 2
        if "swa" not in algorithm:  # with it, what is taken is the mean of the course
            taken = [record.series[f"lambda/{k}"][1] for k in "012"]
            assert [line[-1] for line in lam] == pytest.approx(taken, abs=1e-4)
    assert "lambda" not in simulate(tiny.replace(algorithm="gws(epochs=2)")).probe("course(rounds=(2,))")
    stopped = simulate(tiny.replace(algorithm="attentive(epochs=2, until=1)")).probe("course(rounds=(2,))")
    assert stopped == {"round": [2]}
    with pytest.raises(FedlibError, match="follows law, attentive or gws"):
        tiny.replace(algorithm="fedavg")


def test_spread_by_hand():
    r = after("fedavg", [9.0, 9.0, 9.0], [[3.0, 4.0, 0.0], [-3.0, -4.0, 0.0], [0.0, 0.0, 0.0]], sizes=[1.0, 5.0, 2.0])
    assert measure("spread", r) == {"tau": pytest.approx(10 / 3)}  # 5, 5 and 0 from the plain mean


def test_server_step_by_hand():
    r = after("gamma(gamma=0.5)", [3.0, 4.0, 0.0], [[3.0, 4.0, 10.0], [3.0, 4.0, 14.0]])  # average (3, 4, 12)
    assert measure("server_step", r) == pytest.approx({"average": 12.0, "added": 6.5, "weights": 5.0})
    assert measure("server_step", after("fedavg", [3.0, 4.0, 0.0], [[0.0, 0.0, 0.0]]))["added"] == 0


def test_server_step_of_feddyn_is_the_sum_of_all_drifts():
    """h / alpha is minus the sum of all rounds' mean updates, whatever alpha is (everybody takes part)."""
    spec = TINY.replace(algorithm="feddyn(alpha=0.3)", rounds=1, probes="server_step(every=1)", partition="iid")
    found = simulate(spec).probe("server_step(every=1)")
    assert found["added"] == pytest.approx(found["average"], rel=1e-5), "in round 1 that sum is the update itself"


def test_losses_are_those_of_evaluation():
    fed, r = federated(TINY)
    found = measure("losses", r, fed)
    flat = fed.flat
    for k, theta in enumerate(r.thetas):
        flat.theta.copy_(theta)
        x, y = fed.x[fed.indices[k]], fed.y[fed.indices[k]]
        assert found["clients"][k] == pytest.approx(float(F.cross_entropy(flat.model(x), y)), rel=1e-3)
    flat.theta.copy_(r.aggregate)
    everyone = torch.cat(fed.indices)
    whole = F.cross_entropy(flat.model(fed.x[everyone]), fed.y[everyone])
    assert found["global"] == pytest.approx(float(whole), rel=1e-5)
    assert found["test"] == pytest.approx(float(F.cross_entropy(flat.model(fed.x_test), fed.y_test)), rel=1e-5)
    apart = (r.thetas - r.thetas.mean(0)).norm(dim=1)
    assert found["tau"] == pytest.approx(float(apart.mean()), rel=1e-5)
    assert found["squared"] == pytest.approx(float(apart.square().mean()), rel=1e-5)
    assert found["norm"] == pytest.approx(float(r.aggregate.norm()), rel=1e-6)


def test_balance_by_hand():
    clients = [[3.0, 4.0, 10.0], [3.0, 4.0, 14.0]]  # average (3, 4, 12): a step of 12 along the last
    half = measure("balance", after("gamma(gamma=0.5)", [3.0, 4.0, 0.0], clients))
    assert half == pytest.approx(
        {"gamma": 0.5, "norm": 5.0, "step": 6.0, "shrink": 2.5, "r_lws": 2.5 / 6, "r_law": 6 / 2.5}
    )
    layers = measure("balance", after("gamma(gamma=(0.5, 1.0))", [3.0, 4.0, 0.0], clients))
    assert (layers["step"], layers["shrink"], layers["r_law"]) == pytest.approx((12.0, 2.5, 4.8))
    plain = measure("balance", after("fedavg", [3.0, 4.0, 0.0], clients))
    assert (plain["gamma"], plain["shrink"], plain["r_lws"]) == (1.0, 0.0, 0.0) and math.isnan(plain["r_law"])


def test_balance_finds_the_gamma_that_methods_log_and_r_of_the_oracle():
    fed, r = federated(TINY.replace(algorithm="oracle_gamma(high=1.3)"))
    found = measure("balance", r, fed)
    assert found["gamma"] == pytest.approx(r.logs["gamma"], abs=1e-6) and found["gamma"] != 1.0
    # The oracle's r has the sign of 1 - gamma and the step after shrinking; here both are norms, before it.
    gamma, step = r.logs["gamma"], r.aggregate / r.logs["gamma"] - r.theta
    assert found["r_lws"] == pytest.approx(float(abs(1 - gamma) * r.theta.norm() / (gamma * step.norm())), rel=1e-3)


def test_cosines_by_hand():
    clients = [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [2.0, 0.0, 0.0]]  # updates (0, 1), (-1, 1), (1, 0)
    r = after("fedavg", [1.0, 0.0, 0.0], clients, ids=[2, 0, 1])
    root = math.sqrt(0.5)
    found = measure("cosines", r)
    assert found["clients"] == [0, 1, 2]
    assert squareform(found["distance"]) == pytest.approx(
        np.array([[0, 1 + root, 1 - root], [1 + root, 0, 1], [1 - root, 1, 0]]), abs=1e-3
    )
    models = squareform(measure("cosines(of=models)", r)["distance"])  # of (0, 1), (2, 0), (1, 1)
    assert models == pytest.approx(np.array([[0, 1, 1 - root], [1, 0, 1 - root], [1 - root, 1 - root, 0]]), abs=1e-3)


def test_products_by_hand_are_all_that_the_objective_needs():
    # tau = (1, 0, 0) of client 5 and (0, 2, 1) of client 3, from (1, 1, 0); rows by id.
    r = after("fedavg", [1.0, 1.0, 0.0], [[2.0, 1.0, 0.0], [1.0, 3.0, 1.0]], [1.0, 3.0], ids=[5, 3])
    found = measure("products", r)
    assert found == {"gram": [[5.0, 0.0], [0.0, 1.0]], "inner": [2.0, 1.0], "square": 2.0}
    kept = Products(*(torch.tensor(found[name], dtype=torch.float64)[None] for name in ("gram", "inner", "square")))
    by_id, in_cohort = (torch.tensor([lam], dtype=torch.float64) for lam in ([0.75, 0.25], [0.25, 0.75]))
    here, there = AWA().objective(by_id, kept), AWA().objective(in_cohort, r.products.model())
    torch.testing.assert_close(here[0], there[0])


def test_products_are_read_back_of_the_round_or_the_last_before_it():
    record = simulate(TINY.replace(algorithm="awa", probes="products(every=1)"))
    first, last = (kept_products(record, "products(every=1)", n) for n in (1, 60))
    assert [x.shape for x in first] == [(1, 3, 3), (1, 3), (1,)]
    assert first.gram.tolist() == [record.probe("products(every=1)")["gram"][0]] != last.gram.tolist()
    one = torch.eye(3, dtype=torch.float64)
    assert AWA().spread(one, last)[0].abs().max() == 0 < AWA().spread(one.mean(0, keepdim=True), last)[0]


def test_coherence_by_hand():
    clients = [[1.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 7.0]]  # two pull the same way, one across
    found = measure("coherence(groups=((0, 1), (1, 2)))", after("fedavg", [0.0, 0.0, 0.0], clients, [2.0, 1.0, 1.0]))
    assert found["coherence"] == pytest.approx({"cohort": 2 * (1 / 2) * (1 / 4) / 3, "0-1": 2 / 9, "1-2": 0.0})
    assert found["cosine"] == pytest.approx({"cohort": 1 / 3, "0-1": 1.0, "1-2": 0.0})


def test_weights_are_by_client_and_sum_to_one_whatever_the_method():
    r = after("fedavg", [0.0, 0.0, 0.0], [[1.0, 0.0, 0.0]] * 2, [3.0, 1.0], ids=[2, 0], clients=4)
    assert measure("weights", r) == {"lambda": [0.25, 0.0, 0.75, 0.0]}
    r = after("ldawa", [1.0, 0.0, 1.0], [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])  # layers: cosines 1, 1 and 0, 1
    assert measure("weights", r) == {"lambda": [0.6667, 0.3333]}


def test_heterogeneity_by_hand():
    p = mixture(np.array([[4.0, 0.0], [0.0, 2.0]]), np.array([0.75, 0.25]))
    assert p.tolist() == [0.75, 0.25] and entropy(p) == pytest.approx(0.811278) and entropy(np.array([1.0, 0.0])) == 0
    fed, r = federated(TINY.replace(clients=4, participation=0.5, partition="shards(per_client=5)"))
    found = measure("heterogeneity(classes=True)", r, fed)
    everyone = fed.partition.counts.sum(0) / fed.partition.counts.sum()
    cohort = fed.partition.counts[r.ids].sum(0) / fed.partition.counts[r.ids].sum()  # weights by size are the union
    assert found["classes"] == pytest.approx(cohort, abs=1e-3)
    assert found["similarity"] == pytest.approx(np.minimum(cohort, everyone).sum(), abs=1e-6) and 0 < found["entropy"]


def test_with_full_batches_the_mean_by_size_is_the_ideal_vector():
    """One step on each client's whole data averages to one step on the union."""
    fed, r = federated(TINY.replace(batch_size=2000))
    found = measure("ideal", r, fed)
    assert found["merged"] == pytest.approx(0, abs=1e-6) == found["aggregate"]
    assert min(found["clients"]) > 0.01 and len(found["clients"]) == 3
    away = measure("ideal(metric=euclidean)", r, fed)
    assert away["merged"] < 1e-3 * float(r.updates.norm(dim=1).min()) < min(away["clients"])


def test_lap_agrees_with_what_fedlap_logs():
    record = simulate(TINY.replace(algorithm="fedlap(q=0.5)", local_epochs=2, probes="lap(every=1)"))
    found = record.probe("lap(every=1)")
    terms = np.array(found["term/fc1"]) + np.array(found["term/classifier"])
    assert 0.5 * terms == pytest.approx(record.series["lap_term"], rel=1e-4)
    assert found["distance/fc1"][0] > 0 and 0 < found["dissimilarity/classifier"][0] < 2
    r = after("fedavg", [1.0, 0.0, 2.0], [[0.0, 1.0, 2.0]])  # a neuron dies, one appears, one stays
    assert measure("lap", r)["distance"] == {"a": 2.0, "b": 0.0}


# ---------------------------------------------------------------- landscape


def test_histogram_by_hand():
    r = after("fedavg", [0.0, 0.0, 0.0], [[-9.0, 0.0005, 0.31]])
    found = measure("histogram(bins=4, limit=1.0, near=0.001)", r)
    assert found == {"counts": [1, 0, 2, 0], "near_zero": pytest.approx(1 / 3)}


def test_rescaling_passes_through_the_loss_and_through_log_classes():
    record = simulate(TINY.replace(probes="rescaling(factors=(0.0, 1.0, 1.5))"))
    [losses] = record.probe("rescaling(factors=(0.0, 1.0, 1.5))")["loss"]
    assert losses[:2] == pytest.approx([math.log(10), record.series["loss"][-1]], rel=1e-3)
    assert losses[2] != pytest.approx(losses[1], rel=1e-3)


def test_descent_by_hand_and_against_finite_differences():
    fed, r = federated(TINY)
    found = measure("descent(samples=200)", r, fed)
    step = r.aggregate - r.theta
    assert found["own"] + found["cross"] == pytest.approx(float(step.square().sum()), rel=1e-4)
    lam = r.sizes / r.sizes.sum()
    alone = sum(float(lam[k] ** 2 * (r.thetas[k] - r.theta).square().sum()) for k in range(3))
    assert found["own"] == pytest.approx(alone, rel=1e-4)

    x, y = draw(fed, "descent", 200, "train")
    losses = []
    for share in (-1e-2, 1e-2):  # central differences along the step
        fed.flat.theta.copy_(r.theta + share * step)
        losses.append(evaluate(fed.flat.model, x, y)[1])
    assert found["linear"] == pytest.approx((losses[0] - losses[1]) / 2e-2, rel=0.02)
    fed.flat.theta.copy_(r.aggregate)
    after_it = evaluate(fed.flat.model, x, y)[1]
    fed.flat.theta.copy_(r.theta)
    assert found["drop"] == pytest.approx(evaluate(fed.flat.model, x, y)[1] - after_it, rel=1e-4)


def test_the_cross_term_is_what_clients_agree_on():
    fed, _ = federated(TINY)
    size = fed.flat.layout.size
    for sign, expected in ((1.0, 2 * 0.75 * 0.25 * 4), (-1.0, -2 * 0.75 * 0.25 * 4), (0.0, 0.0)):
        theta, thetas = torch.zeros(size), torch.zeros(2, size)
        thetas[0, 0] = 2.0
        thetas[1, 0 if sign else 1] = 2.0 * (sign or 1.0)
        none = torch.zeros(2, 0)
        r = Round(fed.flat.layout, theta, none[0], thetas, none, torch.tensor([3.0, 1.0]), [0, 1])
        Algorithm("fedavg").aggregate(r, {})
        found = measure("descent(samples=20)", r, fed)
        assert found["own"] == pytest.approx((0.75**2 + 0.25**2) * 4) and found["cross"] == pytest.approx(expected)


def test_hessian_against_the_exact_one():
    fed, r = federated(TINY.replace(model="mlp(hidden=4)", dataset="digits(shape=(1, 4, 4))"))
    found = measure("hessian(samples=50, along=(0.0, 0.3))", r, fed)
    x, y = draw(fed, "hessian", 50, "train")
    names = [e.name for e in r.layout.parameters]

    def loss(theta):
        return F.cross_entropy(torch.func.functional_call(fed.flat.model, split(theta), (x,)), y)

    def split(theta):
        return {name: e.view(theta) for name, e in zip(names, r.layout.parameters, strict=True)}

    exact = torch.autograd.functional.hessian(loss, r.aggregate.clone())
    values, vectors = torch.linalg.eigh(exact.double())
    assert found["eigenvalues"] == pytest.approx(values.flip(0)[:5].tolist(), rel=2e-3)
    assert found["ratio"] == pytest.approx(float(values[-1] / values[-5]), rel=4e-3)
    moved = [float(loss(r.aggregate + d * vectors[:, -1].float())) for d in (0.0, 0.3, -0.3)]
    assert found["loss"][0] == pytest.approx(moved[0], rel=1e-3)
    assert min(abs(found["loss"][1] - m) for m in moved[1:]) < 2e-3 * moved[0], "in one direction or the other"


def test_a_hessian_of_nothing_leaves_the_run_alive():
    fed, r = federated(TINY.replace(model="mlp(hidden=4)", dataset="digits(shape=(1, 4, 4))"))
    r.aggregate.fill_(1e20)
    found = measure("hessian(samples=50, along=(0.0, 0.3))", r, fed)
    assert np.isnan(found["ratio"]) and np.isnan(found["loss"]).all()


def test_hessian_products_do_not_depend_on_the_memory_format():
    x, y, products = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.arange(4), []
    for channels_last in (False, True):
        flat = FlatModel(build("cnn_fmnist", (1, 28, 28), 10, 0), channels_last=channels_last)
        state = flat.layout.unpack(flat.theta, flat.buffers)
        direction, _ = flat.layout.pack(
            {name: torch.linspace(-1, 2, t.numel()).view(t.shape) for name, t in state.items()}
        )
        product = torch.from_numpy(hessian_product(flat, x, y)(direction.double().numpy()))
        products.append(flat.layout.unpack(product, flat.buffers.double()))
    for name, one in products[0].items():
        torch.testing.assert_close(one, products[1][name], rtol=1e-3, atol=1e-3)


def test_top_eigenvalues_of_a_known_matrix():
    values, vectors = top_eigen(lambda v: np.arange(30) * np.ravel(v), np.ones(30), 3, 1e-6)
    assert values == pytest.approx([29, 28, 27], abs=1e-4)
    assert abs(vectors[29, 0]) == pytest.approx(1, abs=1e-3) == abs(vectors[28, 1])


def test_simplex_has_the_clients_in_its_corners():
    assert mixtures(2).tolist() == [[0, 0, 1], [0, 0.5, 0.5], [0, 1, 0], [0.5, 0, 0.5], [0.5, 0.5, 0], [1, 0, 0]]
    fed, r = federated(TINY)
    found = measure("simplex(steps=2, samples=None)", r, fed)
    for client, corner in ((0, 5), (1, 2), (2, 0)):
        fed.flat.theta.copy_(r.thetas[r.ids.index(client)])
        loss = evaluate(fed.flat.model, fed.x_test, fed.y_test)[1]
        assert found["loss"][corner] == pytest.approx(loss, rel=1e-3)
    assert found["best"] == mixtures(2)[int(np.argmin(found["loss"]))].tolist()
    assert "loss" not in measure("simplex(steps=2, landscape=False)", r, fed)
    with pytest.raises(FedlibError, match="three clients"):
        TINY.replace(clients=4, probes="simplex")


def test_bends_of_a_known_bowl():
    points = mixtures(10)
    a, b = (points - [0.5, 0.2, 0.3]) @ APART, (points - [0.5, 0.2, 0.3]) @ AWAY
    assert bends(points, 7 + 1.5 * a**2 - a * b + 4 * b**2) == pytest.approx((3, 8))
    assert APART @ AWAY == pytest.approx(0) and APART @ APART == pytest.approx(1) == AWAY @ AWAY


# ---------------------------------------------------------------- classes


def test_accuracy_by_groups_by_hand():
    right, group = torch.tensor([True, False, True, True]), torch.tensor([0, 0, 2, 2])
    found = shares_right(right, group, 3)
    assert found[[0, 2]].tolist() == [0.5, 1.0] and found[1].isnan()  # nobody in the second


def test_accuracy_by_domain_averages_to_the_accuracy():
    fed, r = federated(TINY.replace(dataset="digit_counts", partition="domains", proxy="balanced(size=50)"))
    found = measure("groups", r, fed)
    total = fed.evaluate(r.aggregate, r.aggregate_buffers, Algorithm("fedavg"), {})["accuracy"]
    for name, of in (("domains", fed.domain_test), ("classes", fed.y_test)):
        shares = torch.bincount(of).double() / len(of)
        assert float(shares @ torch.tensor(found[name]).double()) == pytest.approx(total, abs=1e-3)
    assert len(found["domains"]) == 2 and found["domains"][0] != found["domains"][1]


def test_a_loud_client_drowns_the_others_in_the_mean_of_logits_and_not_of_probabilities():
    quiet = [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]  # right on all three images
    loud = [[60.0, 0.0, 0.0]] * 3  # knows the first class only
    said, y = torch.tensor([quiet, loud, quiet]), torch.tensor([0, 1, 2])
    found = loudness(said, y)
    assert found["loudest"] == pytest.approx(30) and found["holds"] == 1
    assert found["one_answer"] == 1.0 and found["logits"] == pytest.approx(1 / 3)
    assert found["probabilities"] == 1.0
    alone = loudness(torch.stack([said[0], said[2]]), y)
    assert alone["loudest"] == 1.0 and alone["one_answer"] == pytest.approx(1 / 3) and alone["logits"] == 1.0


def test_an_ensemble_of_one_client_is_that_client():
    fed, r = federated(TINY.replace(clients=1, partition="iid"))
    found = measure("ensemble", r, fed)
    x, y = draw(fed, "ensemble", 500, "test")
    accuracy, _ = evaluate(fed.flat.model, x, y)
    assert found["logits"] == found["probabilities"] == pytest.approx(accuracy, abs=1e-4)
    assert found["loudest"] == 1 and found["holds"] == 10 and 0 < found["active"] < 1
    r.aggregate = torch.full_like(r.aggregate, -1.0)
    assert measure("ensemble", r, fed)["active"] == 0


def test_class_norms_by_hand():
    layout = Layout.of_state({"classifier.weight": torch.zeros(3, 2)})
    w = torch.tensor([[3.0, 4.0, 0.0, 2.0, 1.0, 0.0], [0.0, 1.0, 0.0, 2.0, 0.0, 3.0]])  # norms 5, 2, 1 and 1, 2, 3
    none = torch.zeros(2, 0)
    counts = np.array([[1, 2, 6], [0, 4, 4]])
    r = Round(layout, w[0], none[0], w, none, torch.ones(2), [1, 0], context={"counts": counts})
    found = measure("class_norms(keep=1)", r)
    assert found["correlation"] == pytest.approx([math.sqrt(3) / 2, -1], abs=1e-3)  # client 0 first; it has a tie
    assert found["norms"] == [pytest.approx([1 / 6, 1 / 3, 1 / 2], abs=1e-3)] and found["shares"] == [[0, 0.5, 0.5]]
    assert math.isnan(rank_correlation(np.ones(3), np.arange(3)))


def test_relations_are_feddws_own():
    fed, r = federated(TINY.replace(algorithm="dw", partition="shards(per_client=2)"))
    found = measure("relations", r, fed)
    assert torch.tensor(found["SL"]) == pytest.approx(r.broadcast["omega"], abs=1e-3)
    w = r.layout.classifier.entries[0].view(r.aggregate)
    cr = torch.softmax(w @ w.T, 1)
    assert torch.tensor(found["CR"]) == pytest.approx(cr, abs=1e-3)
    assert found["frobenius"] == pytest.approx(float((r.broadcast["omega"] - cr).norm()), rel=1e-4)
    assert -1 <= found["similarity"] <= 1 and "SL" not in measure("relations(matrices=False)", r, fed)


def test_omega_is_what_the_server_sends():
    fed, r = federated(TINY.replace(algorithm="dw", partition="shards(per_client=2)"))
    found = measure("omega", r, fed)
    assert found["term"] == pytest.approx(measure("relations", r, fed)["frobenius"] ** 2 / 100, rel=1e-3)
    assert found["lag"] == pytest.approx(0, abs=1e-5)
    fed, late = federated(TINY.replace(algorithm="dw(variant=released)", partition="shards(per_client=2)"))
    sl, start = torch.tensor(measure("relations", late, fed)["SL"]), torch.eye(10)  # half of either, after one round
    found = measure("omega", late, fed)
    assert found["lag"] == pytest.approx(float((start - sl).norm() / 2), rel=1e-2)
    assert found["diagonal"] == pytest.approx(float((1 + sl.diagonal().mean()) / 2), rel=1e-2)


def test_augmented_images_are_shifted_flipped_or_turned_and_no_more():
    x = torch.zeros(200, 1, 9, 9)
    x[:, 0, 4, 4], x[:, 0, 4, 5] = 2, 1  # a bright pixel in the middle, a darker one to its right
    moved = augment(x - 1, np.random.default_rng(0)) + 1  # black is the smallest value, here -1
    bright, dark = (moved == 2).nonzero(), (moved == 1).nonzero()
    assert len(bright) == 200 and set(bright[:, 2].tolist()) == set(bright[:, 3].tolist()) == set(range(9))
    at = dict(zip(bright[:, 0].tolist(), bright[:, 2:].tolist(), strict=True))
    sides = {(row - at[k][0], column - at[k][1]) for k, _, row, column in dark.tolist()}
    assert sides == {(0, 1), (0, -1)}, "flipped or not"
    turned = augment(x, np.random.default_rng(0), degrees=90.0)
    assert not torch.equal(turned, moved) and set(turned.unique().tolist()) == {0, 1, 2}
    fed, r = federated(TINY.replace(dataset="digits", partition="iid", lr=0.1, local_epochs=5))
    found = measure("augmented(draws=3)", r, fed)
    total = fed.evaluate(r.aggregate, r.aggregate_buffers, Algorithm("fedavg"), {})["accuracy"]
    assert found["clean"] == pytest.approx(100 * total, rel=1e-3) and len(found["augmented"]) == 3
    assert max(found["augmented"]) < found["clean"], "digits moved about are harder for a perceptron"


def test_a_row_that_points_to_its_own_class():
    features = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0]])
    y = torch.tensor([0, 0, 2])
    assert own(features, y, torch.tensor([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]])) == 1.0
    assert own(features, y, torch.tensor([[0.0, 1.0], [5.0, 5.0], [0.0, 1.0]])) == 0.5


def test_tsne_is_a_map_of_features_and_rows():
    fed, r = federated(TINY.replace(partition="iid", lr=0.1, local_epochs=5))
    found = measure("tsne(samples=60, perplexity=10.0)", r, fed)
    assert np.shape(found["points"]) == (60, 2) and np.shape(found["rows"]) == (10, 2) and len(found["labels"]) == 60
    assert found == measure("tsne(samples=60, perplexity=10.0)", r, fed) and found["own"] >= 0.8


# ---------------------------------------------------------------- data


def test_transport_by_hand():
    a, b = np.array([[0.0], [1.0]]), np.array([[1.0], [2.0]])
    assert transport(a, b) == pytest.approx(1.0) and transport(a, a) == 0 and transport(a, a[::-1]) == 0
    assert transport(np.array([[0.0]]), a) == pytest.approx(math.sqrt(0.5))
    # The same points with labels the other way round: going to a point costs nothing, taking its class for the other
    # costs 1, staying with the class costs the distance 1 and nothing more.
    labels = np.array([0, 1])
    assert labelled_transport(a, labels, a, labels) == labelled_transport(a, labels, a, 1 - labels) == 0
    # Against one class of both points, each class is sqrt(1/2) away: the cost 0 + 1/2 for both.
    assert labelled_transport(a, labels, a, np.array([7, 7])) == pytest.approx(math.sqrt(0.5))
    assert similarity([0.0, 1.0]).tolist() == [1.0, 0.5]
    assert alignment([[3, 4], [1, 0]], [3, 4]) == pytest.approx([1.0, 0.6])


def test_clients_with_the_same_classes_are_close(tmp_path):
    """FedLWS Fig. 5: clients 0-3 hold the first five classes, 4-7 the others, 8-11 all."""
    grid = {text: Measure(text) for text in ("data_distances(samples=60)", "data_distances(samples=60, labels=False)")}
    grid |= {"model": Measure("data_distances(samples=60, labels=False, model='mlp(hidden=16)', epochs=2)")}
    for measure_ in grid.values():
        found = execute(measure_).result
        d = squareform(found["distance"])
        assert d[0, 1:4].mean() < d[0, 8:].mean() < d[0, 4:8].mean()
        assert np.mean(found["to_all"][8:]) < np.mean(found["to_all"][:8]) and len(found["to_all"]) == 12
    split = "partition='dirichlet(alpha=0.1)', clients=10"
    cohorts = f"cohort_classes({split}, participation=(0.1, 0.5, 1.0), rounds=5)"
    overlap = execute(Measure(cohorts)).result["similarity"]
    held = np.array(execute(Measure(f"class_counts({split})")).result["counts"], float)
    everyone = held.sum(0) / held.sum()
    alone = [np.minimum(one / one.sum(), everyone).sum() for one in held if one.sum()]
    assert overlap["1"] == pytest.approx(1) and overlap["0.1"] < overlap["0.5"] < 1
    assert min(alone) <= overlap["0.1"] <= max(alone), "a cohort of one client"
    with pytest.raises(FedlibError, match="are shares from 0.1 to 1; got 0.05"):
        Measure("cohort_classes(clients=10, participation=(0.05,))")
    counts = execute(Measure("class_counts(partition=iid, clients=2)")).result["counts"]
    assert np.sum(counts) == 1442 and abs(np.diff(np.sum(counts, 1))) <= 1


def test_layers_are_told_apart_by_name():
    """FedLWS Table 12 averages over the layers of a kind, so names must tell what the modules are."""
    kinds = {"Conv2d": "conv", "Conv1d": "conv", "BatchNorm2d": "norm", "LayerNorm": "norm", "Linear": "linear"}
    kinds |= {"Embedding": "embedding", "LSTM": "lstm"}
    for name in MODELS.names():
        shape = {"feddw_bilstm": (9,), "feddw_mean": (9,), "textcnn": (9,), "amazon_mlp": (9,)}.get(name, (3, 32, 32))
        with torch.device("meta"):
            model = MODELS.make(name).build(shape, 10)
        modules = dict(model.named_modules())
        for layer in Layout.of_model(model).layers:
            parent, kind = layer.name.rpartition(".")[0], kinds[type(modules[layer.name]).__name__]
            if kind == "linear" and parent not in ("", "encoder"):
                kind = type(modules[parent]).__name__.lower()
            assert (
                layer_kind(layer.name)
                == layer_kind(f"gamma/{layer.name}")
                == ("embedding" if "patch" in layer.name else kind)
            )


# ---------------------------------------------------------------- runs


def everything() -> str:
    """All probes there are, in all rounds, so that each could do harm to the next."""
    text = {"simplex": "steps=2, samples=50", "tsne": "samples=40, perplexity=5.0", "hessian": "top=2, samples=10"}
    return "+".join(f"{name}({', '.join(filter(None, [text.get(name), 'every=1']))})" for name in PROBES.names())


@pytest.mark.parametrize(
    "changes",
    [
        dict(model="cnn_fmnist", algorithm="law(epochs=2, bn=proxy)", keep_optimizer=True),
        dict(model="feddw_cnn_mnist", algorithm="scaffold+lws+gws(epochs=2)", optimizer="adam", lr=0.001),
    ],
)
def test_all_probes_change_no_number(changes):
    """With BatchNorm, with dropout, with state of clients and server that outlives a round, with partial cohorts."""
    spec = TINY.replace(dataset="digits", clients=6, participation=0.5, subset=300, test_subset=100)
    spec = spec.replace(proxy="balanced(size=50)", **changes)
    plain, probed = simulate(spec), simulate(spec.replace(probes=everything()))
    assert set(PROBES.names()) == {text.partition("(")[0] for text in probed.probes}
    assert all(found["series"]["round"] == [1, 2] for found in probed.probes.values())
    assert spec.id == probed.id and json.dumps(plain.series) == json.dumps(probed.series)
    assert probed.status == "ok" and len(json.dumps(probed.json)) < 30_000


def test_a_record_that_lacks_a_probe_is_run_again_and_keeps_what_it_had(tmp_path, monkeypatch):
    store, spec = Store(tmp_path), TINY.replace(probes="spread")
    plain = run_one(TINY, store)
    assert not missing([TINY], store) and missing([spec], store)
    first = run_one(spec, store)
    assert first.series == plain.series and first.id == plain.id and list(first.probes) == ["spread"]
    assert first.probe("spread") and simulate(TINY.replace(probes="spread(every=2)")).probe("spread")["round"] == [2]
    both = run([TINY.replace(probes="histogram"), TINY], jobs=1, store=store, progress=False)
    assert [list(r.probes) for r in both] == [["histogram", "spread"]] * 2
    assert both[0].probes["spread"] == first.probes["spread"] and both[0].spec.probes == "histogram+spread"
    monkeypatch.setenv("FEDLIB_TRAIN", "0")
    assert run(TINY.replace(probes="spread+histogram"), store=store).json == both[0].json, "nothing was run"
    with pytest.raises(FedlibError, match="or their probes are not in"):
        run(TINY.replace(probes="spread(rounds=(1,))"), store=store)
    assert probe_frame(both[0], "spread").loc[2, "tau"] == first.probe("spread")["tau"][1]
    with pytest.raises(FedlibError, match="Unknown probe in .* 'lap'; allowed: histogram, spread"):
        both[0].probe("lap")


def test_probes_that_fill_a_record_are_noticed(tmp_path):
    record = simulate(TINY.replace(probes="tsne(every=1, samples=300)+weights"))
    with pytest.warns(UserWarning, match="every=… or rounds=… keeps records small"):
        Store(tmp_path).put(Record(record.json | {"probes": {str(n): record.probes for n in range(4)}}))


def test_two_pages_that_want_different_probes_of_a_run_get_one_run(tmp_path):
    [spec] = missing([TINY.replace(probes="spread"), TINY, TINY.replace(probes="lap+spread")], Store(tmp_path))
    assert spec.probes == "lap+spread" and spec.id == TINY.id
    costs = [estimate(TINY.replace(probes=p)) for p in (None, "spread", "ideal", "ideal(every=1)")]
    assert costs[0] == costs[1] < costs[2] < costs[3]


def test_numbers_that_do_not_come_out_again_are_refused_and_audited(tmp_path):
    store = Store(tmp_path)
    honest = run_one(TINY.replace(probes="spread"), store)

    def edited(**changes) -> Record:
        body = {k: v for k, v in (deepcopy(honest.json) | changes).items() if k != "checksum"}
        return Record(body | {"checksum": checksum(body)})

    series = honest.series | {"loss": [honest.series["loss"][0] + 1e-6, honest.series["loss"][1]]}
    store.put(edited(series=series))
    with pytest.raises(FedlibError, match="was made again, but the numbers moved: loss of round 1"):
        run_one(TINY.replace(probes="lap"), store)
    assert store.get(TINY.id).series == series, "the old record was kept"
    tau = honest.probe("spread")["tau"]
    probes = {"spread": {"revision": 1, "series": {"round": [1, 2], "tau": [tau[0], tau[1] + 1e-6]}}}
    assert "tau of round 2 was" in compare(edited(probes=probes), honest).moved
    probes["spread"]["revision"] = 0
    assert compare(edited(probes=probes), honest).moved == "", "measured in another way"
    assert not edited(probes=probes).has(TINY.replace(probes="spread"))


def test_a_run_stopped_without_probes_starts_again_for_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "0")

    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    spec, store = TINY.replace(rounds=3, probes="spread"), Store(tmp_path)
    whole = simulate(spec)
    for probes, resumed_at in ((None, 1), ("spread", 1), ("spread+histogram", 1)):
        checkpoint = store.checkpoint(spec.id)
        with pytest.raises(KeyboardInterrupt):
            simulate(spec.replace(probes=probes), checkpoint, stop)
        told = []
        again = simulate(spec, checkpoint, told.append)
        assert again.probes["spread"] == whole.probes["spread"] and again.series == whole.series
        assert told[0] == resumed_at
        checkpoint.clear()


def test_when_a_probe_is_due():
    def due(text, last=5):
        return [n for n in range(1, last + 1) if PROBES.make(text).due(n, last)]

    assert due("spread") == [1, 2, 3, 4, 5] and due("hessian") == [5] and due("hessian(every=2)") == [2, 4, 5]
    assert due("spread(rounds=(1, 3))") == [1, 3]
    assert due("spread(rounds=(1, 50))") == [1, 5], "a short run shows its end instead"


@pytest.mark.parametrize(
    "text, says",
    [
        ("spraed", "Unknown probe 'spraed' .did you mean 'spread'..; the known ones are: augmented, balance,"),
        ("hessian(top=0)", "at least 1"),
        ("spread(every=0)", "counts rounds"),
        ("cosines(rounds=(0, 1))", "round numbers"),
        ("cosines(of=clients)", "one of updates, models"),
        ("coherence(groups=(3, 4))", "pairs of ids"),
        ("tsne(samples=20)", "more samples"),
        ("ideal(epochs=0)", "at least 1"),
        ("augmented(draws=0)", "at least 1"),
        ("histogram(limit=0)", "positive limit"),
    ],
)
def test_bad_probes_fail_at_once(text, says):
    with pytest.raises(FedlibError, match=says):
        TINY.replace(probes=text)


# ---------------------------------------------------------------- the pull of FedDW's term


def test_pull_is_autograds_gradient_of_loss_and_term():
    fed, r = federated(TINY.replace(algorithm="dw", partition="shards(per_client=2)"))
    found = measure("pull", r, fed)
    omega, norms = r.broadcast["omega"], {"loss start": [], "term start": [], "loss end": [], "term end": []}
    for k, theta in zip(r.ids, r.thetas, strict=True):
        x, y = fed.x[fed.indices[k]], fed.y[fed.indices[k]]
        for when, weights in {"start": r.aggregate, "end": theta}.items():
            fed.flat.theta.copy_(weights)
            w = fed.flat.model.classifier.weight
            loss = torch.nn.functional.cross_entropy(fed.flat.model(x), y)
            term = (omega - (w @ w.T).softmax(1)).square().mean()
            for name, value in {"loss": loss, "term": term}.items():
                norms[f"{name} {when}"].append(float(torch.autograd.grad(value, w)[0].norm()))
    for name, values in norms.items():
        assert found[name] == pytest.approx(sum(values) / len(values), rel=1e-3), name
    assert min(found.values()) > 0


def test_held_out_scores_on_the_servers_own_data_alone():
    fed, r = federated(TINY.replace(proxy="balanced(size=50)"))
    fed.flat.theta.copy_(r.aggregate)
    x, y = fed.proxy
    right = 100 * float((fed.flat.model(x).argmax(1) == y).float().mean())
    assert len(y) == 50 and measure("held_out", r, fed)["accuracy"] == pytest.approx(right, rel=1e-3)
    with pytest.raises(FedlibError, match="set proxy"):
        TINY.replace(probes="held_out")
