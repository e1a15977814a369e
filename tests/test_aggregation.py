"""fedlib.aggregate on plain state_dicts: it changes no input, harms no tensor of any kind and lets nothing slip by."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedlib
from fedlib.algorithms import ALGORITHMS, Local, Server, Weighting
from fedlib.core.errors import FedlibError

CLIENTS, CLASSES, WIDTH = 4, 3, 6
KINDS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint64)


class Net(nn.Module):
    """Something of everything: layers, statistics, positions that index an embedding, a mask."""

    def __init__(self):
        super().__init__()
        self.register_buffer("position_ids", torch.arange(512))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.places = nn.Embedding(512, 4)
        self.fc = nn.Linear(4, WIDTH)
        self.bn = nn.BatchNorm1d(WIDTH)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def features(self, x):
        return torch.relu(self.bn(self.fc(x + self.places(self.position_ids[: len(x)] % 512))))

    def forward(self, x):
        return self.classifier(self.features(x))


def cohort(dtype=torch.float32):
    """A model, and as many clients that moved away from it."""
    torch.manual_seed(0)
    model = Net().to(dtype)

    def moved(t, k):
        if t.is_floating_point():
            return (t + 0.1 * torch.rand_like(t)).to(t.dtype)
        return t + 10 * k if t.ndim == 0 else t.clone()  # BatchNorm's counter is the only one that moves

    clients = [{n: moved(t, k) for n, t in model.state_dict().items()} for k in range(CLIENTS)]
    x, y = torch.randn(12, 4, dtype=dtype), torch.arange(12) % CLASSES
    context = dict(model=model, proxy=(x, y), test=(x, y), counts=torch.eye(CLIENTS, CLASSES) + 1, seed=1)
    each = range(CLIENTS)
    size = sum(p.numel() for p in model.parameters())
    prototypes = [torch.rand(CLASSES, WIDTH, dtype=dtype) for _ in each]
    context["uploads"] = {
        "scaffold": [torch.rand(size, dtype=dtype) for _ in each],
        "fednova": [3, 1, 2, 2],
        "soft_labels": [torch.rand(CLASSES, CLASSES, dtype=dtype) for _ in each],
        "class_counts": [torch.ones(CLASSES, dtype=dtype) for _ in each],
        "prototype_sums": prototypes,
        "prototype_counts": [torch.ones(CLASSES, dtype=dtype) for _ in each],
        "fpl": prototypes,
        "creff": [torch.rand(CLASSES, CLASSES, WIDTH + 1, dtype=dtype) for _ in each],
    }
    return model.state_dict(), clients, context


SHORT = {name: f"{name}(epochs=1)" for name in ("law", "gws", "attentive", "feddf", "fedbe", "server_ft")}
SHORT["creff"] = "creff(features=2, steps=1, epochs=1)"
RULES = [
    SHORT.get(name, name)
    for name, cls in ALGORITHMS.entries.items()
    if issubclass(cls, (Weighting, Server)) and name != "clip2fl"  # which is creff with a CLIP beside it
]
VARIANTS = ["awa(granularity=layer)", "awa(variant=released)", "ldawa(variant=released)", "feddyn(variant=released)"]


def same(a, b) -> bool:
    """Equal to the last bit, through dicts and lists."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, nn.Module):
        return same(a.state_dict(), b.state_dict()) and a.training == b.training
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("form", RULES + VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_rule_leaves_its_arguments_alone_and_integers_unharmed(form, dtype):
    start, clients, context = cohort(dtype)
    first = fedlib.aggregate(form, start, clients, [1, 2, 3, 4], **context)
    given = start, clients, context, first.state
    before = copy.deepcopy(given)
    second = fedlib.aggregate(form, start, clients, [1, 2, 3, 4], state=first.state, round=2, **context)
    assert same(given, before), "no argument is changed, nor the state of the round before"
    assert list(second.state_dict) == list(start)
    for name, tensor in second.state_dict.items():
        assert tensor.dtype == start[name].dtype and tensor.shape == start[name].shape
        if name in ("position_ids", "mask"):
            assert torch.equal(tensor, start[name])
    counter = int(second.state_dict["bn.num_batches_tracked"])
    assert counter == 20 if form in ("fedavg", "lws", "fedadam") else counter >= 0


@pytest.mark.parametrize("form", ["fedavg", "awa(granularity=layer)", "ldawa", "fedadam", "lws"])
def test_identical_clients_keep_their_integers_to_the_last_digit(form):
    start = Net().state_dict() | {"bn.num_batches_tracked": torch.tensor(20_000_001)}
    for kind in KINDS:
        info = None if kind is torch.bool else torch.iinfo(kind)
        start[f"of_{kind}"] = torch.tensor([info.min, info.max, 3] if info else [True, False, True], dtype=kind)
    moved = {n: t + 0.01 if t.is_floating_point() else t for n, t in start.items()}
    result = fedlib.aggregate(form, start, [moved] * 10, [7, 1, 3, 5, 11, 2, 8, 4, 6, 9]).state_dict
    for name, tensor in start.items():
        if not tensor.is_floating_point():
            assert result[name].dtype == tensor.dtype and torch.equal(result[name], tensor), name


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(-(2**62), 2**62)), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_integers_that_differ_are_averaged_and_rounded(pairs):
    sizes = [size + 1 for size, _ in pairs]
    counters = [value for _, value in pairs]
    states = [
        {"w": torch.zeros(1), "count": torch.tensor([value]), "odd": torch.tensor(value % 2 == 1)} for value in counters
    ]
    result = fedlib.aggregate("fedavg", states[0], states, sizes).state_dict
    mean = sum(s * v for s, v in zip(sizes, counters, strict=True)) / sum(sizes)
    assert abs(int(result["count"]) - mean) <= 0.51 + 1e-6 * max(map(abs, counters))
    assert min(counters) <= int(result["count"]) <= max(counters)
    odd = sum(s for s, v in zip(sizes, counters, strict=True) if v % 2) / sum(sizes)
    assert abs(odd - 0.5) < 1e-6 or bool(result["odd"]) == (odd > 0.5)


def test_float64_is_averaged_in_float64_and_half_precision_comes_back_as_it_was():
    one = {"w": torch.tensor([1.0, 1 + 1e-12], dtype=torch.float64)}
    two = {"w": torch.tensor([2.0, 1 + 3e-12], dtype=torch.float64)}
    result = fedlib.aggregate("fedavg", one, [one, two], [1, 1]).state_dict["w"]
    assert result.dtype == torch.float64 and (result - torch.tensor([1.5, 1 + 2e-12]).double())[0] == 0
    assert abs(float(result[1]) - 1 - 2e-12) < 1e-15
    for kind in (torch.float16, torch.bfloat16):
        half = [{"w": torch.tensor([v], dtype=kind)} for v in (1.0, 2.0)]
        result = fedlib.aggregate("fedavg", {"w": torch.zeros(1)}, half, [1, 1]).state_dict["w"]
        assert result.dtype == torch.float32 and float(result) == 1.5, "a sum in float32 of what clients sent in half"
        assert fedlib.aggregate("fedavg", half[0], half, [1, 1]).state_dict["w"].dtype == kind


W = {"w": torch.ones(2)}
NAN = {"w": torch.tensor([1.0, math.nan])}
WRONG = [
    (dict(sizes=[1, math.nan]), "Sizes are sample counts: finite"),
    (dict(sizes=[1, math.inf]), "Sizes are sample counts"),
    (dict(sizes=[1, 1e40]), "Sizes are sample counts"),
    (dict(sizes=[1, 10**400]), "Sizes are sample counts"),
    (dict(sizes=[0, 1e-60]), "Sizes are sample counts"),
    (dict(sizes=[3e38, 3e38]), "Sizes are sample counts"),
    (dict(sizes=[1, -1]), "Sizes are sample counts"),
    (dict(sizes=["a", "b"]), "Sizes are sample counts"),
    (dict(sizes=None), "Sizes are sample counts"),
    (dict(sizes=[1, 2, 3]), "2 client states and 3 sizes"),
    (dict(sizes=[[1, 2]]), "one size per client"),
    (dict(client_states=[], sizes=[]), "0 client states"),
    (dict(client_states=7), "list of state_dicts; got int"),
    (dict(client_states=[W, 3]), "got int: pass model.state_dict"),
    (dict(global_state=NAN), "The global model is not finite"),
    (dict(client_states=[W, NAN]), "Client 1 has diverged"),
    (dict(server_lr=math.nan), "server_lr is a finite number"),
    (dict(server_lr=10**400), "server_lr is a finite number"),
    (dict(server_lr="fast"), "server_lr is a finite number"),
    (dict(round=1.5), "round an integer"),
    (dict(ids=[1]), "one integer or text for each of the 2 clients"),
    (dict(ids=[1, 1]), "no two alike"),
    (dict(ids=[[1], [2]]), "one integer or text"),
    (dict(ids=torch.tensor([4, 4])), "no two alike"),
    (dict(state=[1]), "state= is the .state of an earlier result"),
    (dict(algorithm="fedadam", state={"fedadm": {}}), "a dict for fedadam of its parts; got dict for 'fedadm'"),
    (dict(state={"fedadam": {"m": 0}}), "a dict for fedavg of its parts; got dict for 'fedadam'"),
    (dict(algorithm="fedadam", state={"fedadam": 1}), "got int for 'fedadam'"),
    (dict(algorithm="fedprox", trained=True, state={"fedprox": {}}), "a dict for none of its parts"),
    (dict(model=W), "model= is a module"),
    (dict(global_state={}, client_states=[{}, {}]), "holds no parameters"),
    (dict(global_state={"n": torch.tensor(1)}, client_states=[{"n": torch.tensor(1)}] * 2), "holds no parameters"),
    (dict(global_state={"w": np.ones(2)}), "The global w is a ndarray; a state_dict holds torch tensors"),
    (dict(client_states=[W, {"w": [1.0, 1.0]}]), "Client 1's w is a list"),
    (dict(client_states=[W, {"w": torch.ones(3)}]), r"Client 1's w is of shape \(3,\) and the global one of \(2,\)"),
    (dict(client_states=[W, {"w": torch.ones(2).double()}]), "of torch.float64 and the global one of torch.float32"),
    (dict(client_states=[W, {"w": torch.ones(2).long()}]), "of torch.int64 and the global one"),
    (dict(global_state={"w": torch.ones(2) * 1j}), "of torch.complex64 .*dense real tensors"),
    (dict(global_state={"w": torch.ones(2).to_sparse()}), "torch.sparse_coo"),
    (dict(algorithm="fedprox(mu=0.1)"), "'fedprox' changes how clients train.*trained=True"),
    (dict(algorithm="feddyn+lws"), "'feddyn' changes how clients train"),
    (dict(algorithm=None), "Cannot read None"),
    (
        dict(algorithm="fedavgm(lr=1e30)", client_states=[{"w": torch.full((2,), 1e10)}] * 2),
        "not finite of models that",
    ),
]


@pytest.mark.parametrize("changes, says", WRONG)
def test_what_cannot_be_aggregated_is_a_sentence(changes, says):
    usual = dict(algorithm="fedavg", global_state=W, client_states=[W, {"w": torch.zeros(2)}], sizes=[1, 2])
    with pytest.raises(FedlibError, match=says):
        fedlib.aggregate(**usual | changes)


@pytest.mark.parametrize("form", ["awa", "fedadam", "fedavgm", "adadecay", "lws", "ldawa"])
def test_a_model_that_is_not_finite_is_refused_by_every_rule(form):
    with pytest.raises(FedlibError, match="not finite"):
        fedlib.aggregate(form, NAN, [W, W], [1, 1])


def test_what_becomes_infinite_on_the_way_is_noticed_in_the_state_too():
    far = {"w": torch.full((2,), 1e25)}  # its square is beyond float32, and what is divided by it would vanish
    with pytest.raises(FedlibError, match="fedadam made something that is not finite"):
        fedlib.aggregate("fedadam", W, [far, far], [1, 1])


def test_a_local_part_counts_where_the_clients_did_it():
    clients = [{"w": torch.zeros(2)}, {"w": torch.ones(2)}]
    uploads = {"fednova": [1, 1]}
    assert fedlib.aggregate("fedprox", W, clients, [1, 1], trained=True).state_dict["w"].tolist() == [0.5, 0.5]
    assert fedlib.aggregate("fednova", W, clients, [1, 1], uploads=uploads).state_dict["w"].tolist() == [0.5, 0.5]
    assert all(issubclass(ALGORITHMS.entries[name], Local) for name in ("fedprox", "fednova"))
