"""Partitions: the released splits index for index, the papers' counts, and what must hold for any of them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.core.errors import FedlibError
from fedlib.data.corruption import CORRUPTIONS
from fedlib.data.partition import PARTITIONS, holdout, split
from fedlib.data.proxy import cut

ORACLES = Path(os.environ.get("FEDLIB_ORACLES") or Path(__file__).parent / "oracles")


def oracle(name: str) -> dict:
    return json.loads((ORACLES / f"{name}.json").read_text())


def same(partition, lists) -> bool:
    return [i.tolist() for i in partition.indices] == lists


def labels(n: int = 600, classes: int = 10) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.arange(n) % classes)


# ---------------------------------------------------------------- released code


@pytest.mark.parametrize("alpha", [0.1, 0.5, 100.0])
def test_oracle_dirichlet(alpha):
    o = oracle("fedlaw_dirichlet_partition")
    run = next(r for r in o["runs"] if r["alpha"] == alpha)
    p = split(f"dirichlet(alpha={alpha})", o["labels"]["data"], o["n_clients"], o["seed"])
    assert same(p, run["client_indices"])


def test_oracle_hybrid():
    o = oracle("fedlaw_dirichlet_partition")
    p = split("hybrid(alpha1=10, alpha2=0.1)", o["labels"]["data"], o["n_clients"], o["seed"])
    assert same(p, o["hybrid_10_0.1"]["client_indices"])


def test_oracle_longtail_dirichlet():
    o = oracle("fedlaw_dirichlet_partition")
    p = split("longtail_dirichlet(alpha=0.5, rho=10)", o["labels"]["data"], o["n_clients"], o["seed"])
    assert same(p, o["long_tail_rho10_alpha0.5"]["client_indices"])
    assert p.counts.sum(0).tolist() == [200, 154, 119, 92, 71, 55, 43, 33, 25, 20]  # int(200 * 10^(-c/9))


@pytest.mark.parametrize("key", oracle("fedlaw_partition_sizes_cifar10like")["sizes"])
def test_oracle_dirichlet_sizes_at_cifar10_scale(key):
    alpha, seed = key.removeprefix("alpha").split("_seed")
    y = np.repeat(np.arange(10), 5000)
    np.random.RandomState(5).shuffle(y)
    expected = oracle("fedlaw_partition_sizes_cifar10like")["sizes"][key]
    assert sorted(split(f"dirichlet(alpha={alpha})", y, 20, int(seed)).sizes.tolist()) == expected


def test_oracle_feddw_dirichlet():
    o = oracle("feddw_dirichlet")
    p = split(f"feddw_dirichlet(alpha={o['alpha']})", o["labels"]["data"], o["n_clients"], o["np_random_seed"])
    assert same(p, o["client_idx"])


# ---------------------------------------------------------------- the papers' other splits


def test_shards_of_fedlap():
    y = labels(6000)
    p = split("shards", y, 100, 1)
    assert set(p.sizes) == {60}
    assert (p.counts > 0).sum(1).max() <= 2  # 10 classes of 600 fill 20 chunks of 30 each, so no chunk is mixed
    assert p.counts.sum(0).tolist() == [600] * 10
    small = split("shards(per_client=2, chunk=20)", y, 100, 1)  # as CIFAR-10: 200 chunks that leave data over
    assert set(small.sizes) == {40} and small.counts.sum(0).tolist() == [600] * 6 + [400] + [0] * 3
    by_class = np.argsort(y, kind="stable")
    assert {tuple(i[:30]) for i in p.indices} <= {tuple(c) for c in by_class.reshape(200, 30)}  # file order kept


def test_class_blocks_are_equal_and_balanced():
    p = split("class_blocks", labels(1300), 12, 3)
    unit = 130 // 12
    assert (p.counts[:4] == [2 * unit] * 5 + [0] * 5).all()
    assert (p.counts[4:8] == [0] * 5 + [2 * unit] * 5).all()
    assert (p.counts[8:] == unit).all()


def test_iid_sizes_differ_by_one_at_most():
    assert set(split("iid", labels(601), 7, 0).sizes) == {85, 86}


def test_domains_stay_apart():
    y, domains = labels(600), np.repeat([0, 1, 2], [100, 200, 300])
    p = split("domains", y, 7, 0, domains)  # 3 + 2 + 2 clients
    assert [set(domains[i]) for i in p.indices] == [{0}] * 3 + [{1}] * 2 + [{2}] * 2
    assert p.sizes.tolist() == [34, 33, 33, 100, 100, 150, 150]


def test_empty_clients_are_kept_as_released():
    y = labels(100)
    assert (split("dirichlet(alpha=0.01)", y, 50, 0).sizes == 0).any()
    p = split("feddw_dirichlet(alpha=0.01)", y, 50, 0)
    assert p.sizes.min() == 1 and sum(i.tolist() == [0] for i in p.indices) > 1


def test_hybrid_clients_of_one_size_differ_in_their_classes():
    """FedLAW Figure 12: client 0 by alpha1, the two others by alpha2 on what is left; no size tells them apart."""
    y = labels(6000)
    for seed in range(3):
        apart, alike = (
            split(f"hybrid(alpha1={a}, alpha2={b}, equal=True)", y, 3, seed) for a, b in ((100, 0.1), (0.1, 100))
        )
        for p in (apart, alike):
            assert len(set(p.sizes)) == 1 and 1800 <= p.sizes[0] <= 2000
            assert len(np.unique(np.concatenate(p.indices))) == 3 * p.sizes[0]
        overlap = [[np.minimum(p.counts[i], p.counts[j]).sum() / p.sizes[0] for i, j in ((0, 1), (1, 2))]
                   for p in (apart, alike)]  # fmt: skip
        assert overlap[0][0] > overlap[0][1] and overlap[1][0] < 0.6 < 0.9 < overlap[1][1]


# ---------------------------------------------------------------- what holds for all of them

TEXTS = st.one_of(
    st.sampled_from(["iid", "shards", "shards(per_client=3)", "shards(per_client=1, chunk=2)", "hybrid"]),
    st.floats(0.05, 1000).map(lambda a: f"dirichlet(alpha={a})"),
    st.tuples(st.floats(0.05, 100), st.floats(1, 50)).map(lambda t: f"longtail_dirichlet(alpha={t[0]}, rho={t[1]})"),
)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, clients=st.integers(1, 20), seed=st.integers(0, 2**32 - 1), n=st.integers(60, 300))
def test_partitions_are_disjoint_in_range_and_deterministic(text, clients, seed, n):
    y = labels(n, 7)
    p, again = split(text, y, clients, seed), split(text, y, clients, seed)
    everything = np.concatenate(p.indices)
    assert len(p.indices) == clients and p.counts.shape == (clients, 7)
    assert len(np.unique(everything)) == len(everything)
    assert everything.size == 0 or (0 <= everything.min() and everything.max() < n)
    assert (p.counts == [np.bincount(y[i], minlength=7) for i in p.indices]).all()
    assert p.fingerprint == again.fingerprint and same(again, [i.tolist() for i in p.indices])
    if text == "iid" or text.startswith(("dirichlet", "hybrid")):
        assert len(everything) == n  # nothing is lost either


def test_fingerprint_sees_order_owner_and_seed():
    y = labels()
    prints = [split("iid", y, k, s).fingerprint for k in (5, 6) for s in (0, 1)]
    assert len(set(prints)) == 4 and all(len(f) == 16 for f in prints)


def test_splitting_leaves_the_global_random_stream_and_the_labels_alone():
    y = labels()
    before, state = y.copy(), np.random.get_state()[1].copy()
    for name in PARTITIONS.names():
        parameters = "(alpha=0.5)" if name.endswith("dirichlet") else ""
        split(name + parameters, y, 12, 0, domains=y % 3)
    assert (y == before).all() and (np.random.get_state()[1] == state).all()


@pytest.mark.parametrize(
    "text, clients, says",
    [
        ("dirichlet", 5, "positive number"),
        ("dirichlet(alpha=0)", 5, "positive number"),
        ("dirichlet(alpha=-1.0)", 5, "positive number"),
        ("dirichlet(alpha=1e-9)", 5, "larger alpha"),
        ("dirichlet(alpha=nothing)", 5, "must be float"),
        ("feddw_dirichlet(alpha=0)", 5, "positive number"),
        ("hybrid(alpha2=0)", 5, "positive number"),
        ("hybrid(alpha2=0.01, equal=True)", 20, "larger alphas"),
        ("longtail_dirichlet(alpha=1, rho=0.5)", 5, "at least 1"),
        ("shards(per_client=0)", 5, "at least 1"),
        ("shards(chunk=-3)", 5, "at least 1"),
        ("shards(chunk=1000)", 5, "smaller chunks"),
        ("shards", 400, "fewer clients"),
        ("iid", 601, "number of samples"),
        ("iid", 0, "number of samples"),
        ("class_blocks", 10, "exactly 12 clients"),
        ("domains", 5, "has domains"),
        ("sorted", 5, "Unknown partition"),
    ],
)
def test_bad_partitions_are_refused_with_a_sentence(text, clients, says):
    with pytest.raises(FedlibError, match=says):
        split(text, labels(), clients, 0)


def test_bad_seeds_and_too_few_clients_for_the_domains_are_refused():
    with pytest.raises(FedlibError, match="seed"):
        split("iid", labels(), 5, -1)
    with pytest.raises(FedlibError, match="each of the 3 domains"):
        split("domains", labels(), 2, 0, domains=labels() % 3)


# ---------------------------------------------------------------- proxy sets, corruption, hold-out


def test_balanced_proxy_and_the_rest_make_the_test_set():
    y = labels(1000)
    proxy, rest = cut("balanced(size=200)", y, 0)
    assert np.bincount(y[proxy]).tolist() == [20] * 10
    assert sorted([*proxy, *rest]) == list(range(1000))
    assert (cut("balanced(size=200)", y, 0)[0] == proxy).all() and (cut("balanced(size=200)", y, 1)[0] != proxy).any()


def test_the_balanced_long_tail_keeps_the_curve_and_fills_every_client():
    y = labels(5000)
    p = split("longtail_dirichlet(alpha=0.1, rho=50, balanced=True)", y, 20, 3)
    plain = split("longtail_dirichlet(alpha=0.1, rho=50)", y, 20, 3)
    assert p.counts.sum(0).tolist() == plain.counts.sum(0).tolist() == [int(500 * 50 ** (-c / 9)) for c in range(10)]
    assert p.sizes.min() >= 10 > plain.sizes.min() and len(set(np.concatenate(p.indices))) == p.sizes.sum()
    assert p.sizes.std() < plain.sizes.std()
    with pytest.raises(FedlibError, match="larger alpha or fewer clients"):
        split("longtail_dirichlet(alpha=0.1, rho=50, balanced=True)", labels(600), 100, 3)


def test_longtailed_proxy_has_its_size_and_ratio():
    y = labels(5000)
    counts = np.bincount(y[cut("longtail(size=1000, rho=10)", y, 0)[0]])
    assert counts.sum() == 1000 and (np.diff(counts) < 0).all()
    assert counts[0] / counts[-1] == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    "text",
    ["balanced(size=7)", "balanced(size=205)", "balanced(size=20000)", "longtail(size=5)", "longtail(rho=0.1)"],
)
def test_impossible_proxies_are_refused(text):
    with pytest.raises(FedlibError):
        cut(text, labels(1000), 0)


def test_a_proxy_must_leave_something_to_score_on():
    with pytest.raises(FedlibError, match="leaves no test sample"):
        cut("balanced(size=30)", np.repeat([0, 1, 2], 10), 0)


@pytest.mark.parametrize("fraction, corrupted", [(0.0, 0), (0.25, 5), (0.5, 10), (0.75, 15), (1.0, 20)])
def test_swap_exchanges_two_labels_on_that_share_of_the_clients(fraction, corrupted):
    y = labels(2000)
    p = split("iid", y, 20, 0)
    new = CORRUPTIONS.make(f"swap(fraction={fraction})").apply(y, p, 0)
    touched = [k for k, i in enumerate(p.indices) if (new[i] != y[i]).any()]
    assert touched == CORRUPTIONS.make(f"swap(fraction={fraction})").clients(20, 0).tolist()
    assert len(touched) == corrupted
    for k in touched:
        old, now = y[p.indices[k]], new[p.indices[k]]
        a, b = np.unique(old[old != now])
        assert (now[old == a] == b).all() and (now[old == b] == a).all()
        assert (now[(old != a) & (old != b)] == old[(old != a) & (old != b)]).all()


def test_a_larger_share_corrupts_the_same_clients_and_more():
    few, many = (set(CORRUPTIONS.make(f"swap(fraction={f})").clients(20, 4)) for f in (0.25, 0.75))
    assert few < many


def test_swap_is_felt_by_a_client_with_a_single_class():
    y = np.repeat([0, 1, 2], 30)
    p = split("shards(per_client=1)", y, 3, 0)
    assert (CORRUPTIONS.make("swap(fraction=1)").apply(y, p, 0) != y).all()


@given(n=st.integers(0, 200), fraction=st.floats(0, 0.99), seed=st.integers(0, 10**6))
def test_holdout_keeps_the_rest_in_order(n, fraction, seed):
    mine = np.arange(n) * 3
    kept = holdout(mine, fraction, seed)
    assert len(kept) == n - int(fraction * n) and set(kept) <= set(mine) and (np.diff(kept) > 0).all()
    assert (kept == holdout(mine, fraction, seed)).all()


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_holdout_of_nothing_or_everything_is_refused(fraction):
    with pytest.raises(FedlibError):
        holdout(np.arange(10), fraction, 0)
