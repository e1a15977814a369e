"""Runs on a card, without one: the numbers of the CPU, nothing across devices, and a host that does not wait."""

import os

import numpy as np
import pytest
import torch
from second_device import second_device

import fedlib
from fedlib.algorithms import ALGORITHMS, Algorithm, Client
from fedlib.algorithms.uv import median_apart
from fedlib.core.device import driver, prepare_device
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel, gather
from fedlib.core.spec import RunSpec
from fedlib.federation.federation import Federation
from fedlib.federation.training import train
from fedlib.models import build
from fedlib.probes import PROBES
from fedlib.probes.landscape import hessian_product
from fedlib.runs.execute import simulate

BASE = RunSpec(
    dataset="digits(shape=(1, 12, 12))", model="mlp(hidden=16)", partition="dirichlet(alpha=0.5)", subset=60,
    test_subset=40, clients=3, local_epochs=2, batch_size=16, rounds=2, seed=4, lr=0.02, proxy="balanced(size=20)",
)  # fmt: skip
SHORT = {  # forms that end soon
    "awa": "awa(steps=5)", "law": "law(epochs=2)", "gws": "gws(epochs=2)", "attentive": "attentive(epochs=2)",
    "feddf": "feddf(epochs=2)", "fedbe": "fedbe(epochs=2)", "server_ft": "server_ft(epochs=2)",
    "creff": "creff(features=3, steps=3, epochs=2)", "perfedavg": "perfedavg(adapt_steps=1)",
    "clip2fl": "clip2fl(features=3, steps=3, epochs=2, clip=tiny16)", "fedrep": "fedrep",
}  # fmt: skip
METHODS = [SHORT.get(name, name) for name in ALGORITHMS.names()]
LOCAL = [text for text in METHODS if Algorithm(text).locals and "clip2fl" not in text]
OTHER_FORMS = [
    "law(epochs=16, swa=True)", "law(epochs=2, variant=released)", "feddf(epochs=2, variant=released)",
    "awa(steps=5, granularity=layer)", "awa(rule=cosine)", "awa(variant=released)", "awa(steps=5)+lws",
    "lws(variant=released)", "ldawa(variant=released)", "feddyn(variant=released)", "fpl(variant=released)",
    "creff(features=3, steps=3, epochs=2, variant=released)", "fedlap(refresh=batch, through=True)", "dw(form=linear)",
    "dw(variant=released)", "local+dw(form=relu)", "fedrep(variant=released)", "feddistill(variant=released)",
    "fedala(layers=2, variant=released)", "feddisco+fedavgm", "fedprox+feddisco(metric=l2)", "fedproto(average=True)",
]  # fmt: skip


def same_on_both(spec: RunSpec, **kwargs):
    """Run on the CPU and on the card; they must agree to the last digit, except where the card trains a whole cohort at
    once, which rounds otherwise. Returns what was asked of the card."""
    here = simulate(spec)
    with second_device() as card:
        there = simulate(spec, **kwargs)
    assert there.json["environment"]["device"] == "cuda" and there.json["environment"]["card"] == "second device"
    at_once = "mlp" in spec.model and spec.precision == "float32" and not Algorithm(spec.algorithm).locals
    for name, values in here.series.items():
        expected = pytest.approx(values, rel=1e-3, abs=0.03) if at_once and not spec.keep_optimizer else values
        assert there.series[name] == expected, name
    assert there.probes == here.probes and there.status == here.status == "ok"
    assert card.launches.total() > 100, "it ran there"
    return card


@pytest.mark.parametrize("model", ["mlp(hidden=16)", "cnn_fmnist"])
@pytest.mark.parametrize("algorithm", METHODS)
def test_every_algorithm_has_the_cpus_numbers(model, algorithm, request, monkeypatch):
    if algorithm.startswith("clip2fl"):
        if model == "cnn_fmnist":
            pytest.skip("the test's CLIP has 16 features")
        monkeypatch.setenv("FEDLIB_DATA", str(request.getfixturevalue("clip_folder")))
    same_on_both(BASE.replace(model=model, algorithm=algorithm))


@pytest.mark.parametrize("algorithm", OTHER_FORMS)
def test_so_have_their_other_forms(algorithm):
    same_on_both(BASE.replace(algorithm=algorithm))


@pytest.mark.parametrize("model", ["mlp(hidden=16)", "cnn_fmnist"])
def test_every_probe_has_the_cpus_numbers_and_asks_this_card_only(model):
    short = {
        "would": "would(part='gws(epochs=2)')", "hessian": "hessian(top=2, samples=20, along=(-1.0, 1.0))",
        "tsne": "tsne(samples=40, perplexity=5.0)", "augmented": "augmented(draws=2)", "simplex": "simplex(steps=3)",
    }  # fmt: skip
    probes = "+".join(short.get(name, name) for name in PROBES.names())
    card = same_on_both(BASE.replace(model=model, algorithm="dw+law(epochs=2)", probes=probes))
    assert card.seeded == {torch.device("cuda:0")}, "every other card would get a context of its own"


@pytest.mark.parametrize("transform", ["unit", "half", "imagenet"])
@pytest.mark.parametrize("model", ["mlp(hidden=4)", "resnet8"])
def test_training_images_are_bytes_on_a_card_and_scaled_there(model, transform):
    spec = BASE.replace(dataset="digits(shape=(3, 12, 12))", model=model, transform=transform)
    here, index = Federation(spec), torch.tensor([7, 3])
    with second_device() as card:
        there = Federation(spec)
        assert there.x.x.dtype == torch.uint8 and there.x.x.is_cuda
        gather(there.x, index)
        copies = card.copies.total()
        for i in (index.to("cuda"), torch.tensor([[5, 4], [2, 0]], device="cuda")[:, 0]):
            gather(there.x, i)
        assert card.copies.total() == copies + 2, "only those of the indices"
        found = gather(there.x, index), next(there.x.split(2))
        assert all(x.is_cuda for x in found)
        found = [x.cpu() for x in found]
    for x, expected in zip(found, (gather(here.x, index), here.x[:2]), strict=True):
        assert torch.equal(x, expected) and x.stride() == expected.stride() and x.dtype == torch.float32


WORDS = {"dataset": "digit_words", "model": "feddw_bilstm(vocabulary=258)", "rounds": 1, "local_epochs": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "feddw_cnn_mnist", "dataset": "digits"},
        {"model": "textcnn(vocabulary=258, dim=4)", "dataset": "digit_words"},
        {"model": "vit(dim=16, depth=1, heads=1, mlp=16)"},
        {"model": "simple_cnn", "dataset": "digits(shape=(3, 20, 20))"},
        WORDS,
    ],
    ids=lambda changes: changes["model"].partition("(")[0],
)
def test_networks_with_dropout_convolutions_and_an_lstm(changes):
    same_on_both(BASE.replace(**{"rounds": 1, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "law(epochs=1)"},
        {"algorithm": "fedala", "rounds": 2},
        {"algorithm": "perfedavg(adapt_steps=1)"},
    ],
    ids=lambda changes: changes["algorithm"],
)
def test_gradients_in_eval_mode_through_an_lstm(changes):
    """cuDNN has none."""
    same_on_both(BASE.replace(**{**WORDS, "subset": 20, "test_subset": 20, "proxy": "balanced(size=10)", **changes}))


def test_second_derivatives_through_an_lstm():
    """cuDNN has none either."""

    def product(device: str):
        flat, x = FlatModel(build("feddw_bilstm(vocabulary=17)", (3,), 2, 0), device), torch.arange(6).view(2, 3)
        return hessian_product(flat, x.to(device), torch.tensor([0, 1]).to(device))(np.ones(flat.layout.size))

    here = product("cpu")
    with second_device():
        assert np.array_equal(product("cuda"), here) and here.any()
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize("algorithm", ["fedavg", "feduv", "fpl", "moon", "fedproto", "feddistill"])
def test_bfloat16(algorithm):
    same_on_both(BASE.replace(algorithm=algorithm, precision="bfloat16"))


@pytest.mark.parametrize("algorithm", ["scaffold+awa(steps=5)", "fedper", "feddf(epochs=2, variant=released)"])
def test_a_run_goes_on_from_a_checkpoint(algorithm, stopped):
    spec = BASE.replace(algorithm=algorithm, optimizer="adam", lr=0.001, keep_optimizer=True, rounds=3)
    with second_device():
        checkpoint = stopped(spec)
    same_on_both(spec, checkpoint=checkpoint)


def inputs(device: str) -> tuple:
    net, generator = build("cnn_fmnist", (1, 12, 12), 10, 0), torch.Generator().manual_seed(1)
    start = net.state_dict()
    noise = {n: 0.01 * torch.randn(t.shape, generator=generator) for n, t in start.items() if t.is_floating_point()}
    clients = [{n: t + k * noise[n] if n in noise else t.clone() for n, t in start.items()} for k in (1, 2, 3)]
    x, y = torch.rand(20, 1, 12, 12, generator=generator), torch.arange(20) % 10
    counts = torch.randint(1, 9, (3, 10), generator=generator)
    sent = [torch.randn(10, 5, generator=generator) for _ in clients]
    states = [{n: t.to(device) for n, t in state.items()} for state in (start, *clients)]
    return net, states[0], states[1:], (x, y), counts, sent


@pytest.mark.parametrize("models, rest", [("cuda", "cpu"), ("cuda", "cuda"), ("cpu", "cuda")])
@pytest.mark.parametrize("algorithm", ["law(epochs=2)", "feddf(epochs=2)", "oracle_gamma", "fpl", "feddisco+awa+lws"])
def test_aggregate_takes_what_lies_on_either_device(algorithm, models, rest):
    def aggregate(models: str, rest: str):
        net, start, clients, data, counts, sent = inputs(models)
        data, counts, sent = tuple(t.to(rest) for t in data), counts.to(rest), [t.to(rest) for t in sent]
        return fedlib.aggregate(
            algorithm, start, clients, [1, 2, 3], model=net, proxy=data, test=data, counts=counts,
            uploads={"fpl": sent}, seed=1,
        )  # fmt: skip

    here = aggregate("cpu", "cpu")
    with second_device():
        there = aggregate(models, rest)
        assert all(t.device.type == models for t in there.state_dict.values())
        state = {name: t.cpu() for name, t in there.state_dict.items()}
    assert all(torch.equal(state[name], t) for name, t in here.state_dict.items())
    assert there.factors == here.factors


# A training step as a CUDA graph.


@pytest.mark.parametrize(
    "changes, recorded",
    [
        ({"model": "mlp(hidden=16)"}, True), ({"model": "cnn_fmnist", "algorithm": "awa(steps=5)+lws"}, True),
        ({"model": "resnet8", "lr_decay": 0.5, "optimizer": "sgd(momentum=0.9, weight_decay=0.1)"}, True),
        ({"model": "feddw_cnn_mnist", "dataset": "digits", "local_epochs": 1}, False),
        ({"model": "cnn_fmnist", "optimizer": "adam", "lr": 0.001}, False),
        ({"model": "cnn_fmnist", "algorithm": "fedprox(mu=0.1)"}, False),
    ],
    ids=["closed form", "BatchNorm", "a rate a round", "dropout", "adam", "a term more"],
)  # fmt: skip
def test_a_step_that_is_recorded_and_replayed_has_the_same_numbers(changes, recorded, monkeypatch):
    monkeypatch.setattr("fedlib.federation.federation.can_vectorise", lambda *_: False)
    spec, launches = BASE.replace(partition="iid", **changes), []
    here = simulate(spec)
    for switch in ("0", "1"):
        monkeypatch.setenv("FEDLIB_CUDA_GRAPHS", switch)
        with second_device() as card:
            assert simulate(spec).series == here.series
        replays = sum(n for (_, name), n in card.launches.items() if name == "replay")
        assert replays == (12 if recorded and switch == "1" else 0), "a client has one full batch of 16 in an epoch"
        launches.append(card.launches.total())
    assert launches[1] < launches[0] or not recorded


@pytest.mark.parametrize("mistake", [lambda a: float(a.sum()), lambda a: a[a > 0], lambda a: a.copy_(torch.ones(4))])
def test_what_asks_the_host_cannot_be_recorded(mistake):
    with second_device():
        a, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(graph):
            mistake(a)


def test_a_graph_works_on_the_memory_it_was_recorded_on():
    with second_device():
        a, b, graph = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            b += a * 2
            c = b.sum()
        assert b.tolist() == [0, 0, 0], "nothing is done while it is recorded"
        for n in (1, 2):
            graph.replay()
            assert b.tolist() == [2 * n] * 3 and c.item() == 6 * n
        a = torch.ones(3, device="cuda") * 5  # elsewhere: the graph does not know
        graph.replay()
        assert b.tolist() == [6, 6, 6]


# What a card is kept waiting for, and with.


def asked(spec: RunSpec, round: int = 2) -> tuple[int, int]:
    """(launches, waits) of one round of a run."""
    counts = [(0, 0)]
    with second_device() as card:
        simulate(spec, on_round=lambda _: counts.append((card.launches.total(), card.waits)))
    return tuple(after - before for before, after in zip(counts[round - 1], counts[round], strict=True))


EVEN = BASE.replace(partition="iid", subset=90)  # every client has 30 samples: 4 steps, or 8 with half the batch


@pytest.mark.parametrize("algorithm", ["fedavg", *LOCAL])
def test_no_training_step_waits(algorithm):
    more, twice = (asked(EVEN.replace(algorithm=algorithm, batch_size=size)) for size in (16, 8))
    assert twice[0] > more[0], "there are more steps"
    assert twice[1] == more[1], "a step waits for the card"


def test_no_step_of_adam_waits_after_a_checkpoint(stopped):
    waits = []
    for size in (16, 8):
        spec = EVEN.replace(model="cnn_fmnist", optimizer="adam", keep_optimizer=True, rounds=3, batch_size=size)
        with second_device() as card:
            checkpoint = stopped(spec)
            before = card.waits
            simulate(spec, checkpoint)
        waits.append(card.waits - before)
    assert waits[0] == waits[1]


@pytest.mark.parametrize("algorithm", [text for text in METHODS if "clip2fl" not in text] + ["lws(variant=released)"])
def test_waits_of_a_round_do_not_grow_with_the_network(algorithm):
    small = BASE.replace(algorithm=algorithm, subset=30, batch_size=32)
    shallow, deep = (asked(small.replace(model=f"mlp(hidden={(8,) * n})")) for n in (2, 6))
    assert deep[0] > shallow[0], "there is more to do"
    assert deep[1] == shallow[1], "the host waits layer by layer"


@pytest.mark.parametrize("passes", ["law(epochs={})", "feddf(epochs={})", "creff(features=3, steps={0}, epochs={0})"])
def test_nor_do_they_with_what_the_server_learns(passes):
    few, many = (asked(BASE.replace(algorithm=passes.format(n))) for n in (2, 6))
    assert many[0] > few[0] and many[1] == few[1]


@pytest.mark.parametrize("algorithm, most", [("fedavg", 16), ("awa", 20), ("lws", 17), ("law(epochs=2)", 20)])
def test_waits_of_a_round_are_few(algorithm, most):
    assert asked(BASE.replace(algorithm=algorithm))[1] <= most


@pytest.mark.parametrize("algorithm, most", [("awa", 60), ("awa(granularity=layer)", 60), ("lws", 100)])
def test_what_the_server_weighs_by_costs_few_launches(algorithm, most):
    plain, weighed = (asked(BASE.replace(algorithm=text))[0] for text in ("fedavg", algorithm))
    assert weighed - plain <= most


@pytest.mark.parametrize(
    "model, shape, most", [("mlp", (1, 28, 28), 25), ("simple_cnn", (3, 20, 20), 37), ("resnet20", (3, 16, 16), 176)]
)
def test_launches_of_a_training_step(model, shape, most):
    launches = []
    for size in (10, 5):
        spec = BASE.replace(dataset=f"digits(shape={shape})", model=model, subset=20, clients=2, batch_size=size)
        with second_device() as card:
            fed = Federation(spec)
            flat, before = fed.flat, card.launches.total()
            client = Client(0, 1, flat.model, flat.layout, flat.theta, flat.grad, flat.theta.clone())
            train(flat, fed.x, fed.y, client, [], spec, fed.optimizer, fed.moments, 1)
        launches.append(card.launches.total() - before)
    assert (launches[1] - launches[0]) / 2 <= most  # four steps instead of two


# The settings of a card, and the device that these tests pretend.


def test_a_card_is_set_up_to_give_the_same_numbers_twice(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    libraries = torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    before = [library.fp32_precision for library in libraries]
    with pytest.raises(FedlibError, match="tf32 is a way of CUDA cards"):
        simulate(BASE.replace(precision="tf32"))
    assert prepare_device() == torch.device("cpu") and [b.fp32_precision for b in libraries] == before
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ and not torch.are_deterministic_algorithms_enabled()
    with second_device():
        for precision, expected in (("tf32", "tf32"), ("float32", "ieee"), ("bfloat16", "ieee")):
            assert prepare_device(precision).type == "cuda"
            assert [library.fp32_precision for library in libraries] == [expected] * 3
            assert torch.backends.cudnn.allow_tf32 is torch.backends.cuda.matmul.allow_tf32 is (precision == "tf32")
        assert torch.are_deterministic_algorithms_enabled() and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ and not torch.are_deterministic_algorithms_enabled()


def test_tf32_is_asked_for_and_noted():
    tf32 = BASE.replace(precision="tf32")
    assert tf32.id != BASE.id and tf32.to_json()["precision"] == "tf32"
    with second_device():
        record, plain = simulate(tf32), simulate(BASE)
    assert record.series == plain.series, "here it multiplies as ever"
    assert record.json["environment"]["driver"] == "unknown"


def test_the_drivers_version(tmp_path):
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 UTC 2024\nGCC version: 12")
    assert driver(str(path)) == "550.54.15" and driver(str(tmp_path / "none")) == "unknown"


@pytest.mark.parametrize("ties", [False, True])
def test_median_apart_is_the_median_of_what_is_not_zero_and_so_is_its_gradient(ties):
    torch.manual_seed(0)
    for n in range(1, 9):
        for zeros in range(n + 1):
            square = torch.rand(n)
            square[: n // 2] = square[0] if ties else square[: n // 2]
            square[torch.randperm(n)[:zeros]] = 0
            square.requires_grad_()
            mine, apart = median_apart(square)
            if zeros == n:
                assert (float(mine.detach()), float(apart)) == (1, 0)
                continue
            theirs = square[square != 0].median()
            slopes = [torch.autograd.grad(median, square)[0] for median in (mine, theirs)]
            assert torch.equal(mine, theirs) and torch.equal(*slopes) and float(apart) == 1


REFUSED = {
    "adding": lambda a, b: a + b,
    "the other way round": lambda a, b: b + a,
    "multiplying": lambda a, b: a @ b,
    "into the host's memory": lambda a, b: torch.add(a, a, out=b),
    "adding to the host's number": lambda a, b: b[0, 0].clone().add_(a.sum()),
    "an index on the card": lambda a, b: b[a[0].long()],
    "gathering": lambda a, b: a.gather(0, b.long()),
    "numpy": lambda a, b: a.numpy(),
    "a random generator": lambda a, b: torch.rand(2, device="cuda", generator=torch.Generator()),
    "in a view": lambda a, b: a[1:].t() + b[1:].t(),
    "in a backward pass": lambda a, b: (a.requires_grad_() @ a).backward(b),
    "in torch.func": lambda a, b: torch.func.vmap(lambda x: x + b[0])(a),
    "a module": lambda a, b: torch.nn.functional.linear(a, b),
    "labels": lambda a, b: torch.nn.functional.cross_entropy(a, b[0].long()),
    "stacking": lambda a, b: torch.stack([a, b]),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_the_device_refuses(mistake):
    with second_device():
        a, b = torch.ones(4, 4, device="cuda"), torch.ones(4, 4)
        with pytest.raises((RuntimeError, TypeError), match="device|card"):
            REFUSED[mistake](a, b)


COUNTED = {  # (launches, copies, reads)
    "float": (lambda a: float(a[0, 0]), (0, 0, 1)),
    "a condition": (lambda a: bool((a > 0).all()), (2, 0, 1)),
    "tolist": (lambda a: a.tolist(), (0, 0, 1)),
    "cpu": (lambda a: a.cpu(), (0, 1, 0)),
    "a list": (lambda a: torch.tensor([1.0], device="cuda"), (0, 1, 0)),
    "a mask": (lambda a: a[a > 0], (2, 0, 1)),
    "an index of the host": (lambda a: a[torch.tensor([0, 1])], (1, 1, 0)),
    "a view": (lambda a: a.t()[1:].unsqueeze(0)[0, 0], (0, 0, 0)),
    "a number": (lambda a: a.mul_(2).add_(torch.tensor(3.0)), (2, 0, 0)),
    "zeros": (lambda a: torch.zeros(3, device="cuda"), (1, 0, 0)),
    "alike lists": (lambda a: torch._foreach_copy_([a, a], [a + 1, a + 2]), (3, 0, 0)),
    "unlike lists": (lambda a: torch._foreach_copy_([a, a], [a + 1, a.t() + 2]), (4, 0, 0)),
}


@pytest.mark.parametrize("work", COUNTED)
def test_the_device_counts(work):
    call, expected = COUNTED[work]
    with second_device() as card:
        a = torch.ones(4, 4, device="cuda").contiguous()
        card.launches.clear()
        call(a)
    assert (card.launches.total(), card.copies.total(), card.reads.total()) == expected


def test_the_device_knows_views_gradients_and_copies_for_its_own():
    with second_device():
        net = FlatModel(build("cnn_fmnist", (1, 12, 12), 10, 0), "cuda")
        x = torch.rand(4, 1, 12, 12).to("cuda")
        net.backward(net.model(x).square().sum())
        own = [net.theta, net.grad, *net.model.parameters(), *net.gradients, x[0], x.clone(), x.sum(), x.new_zeros(2)]
        assert all(t.device == torch.device("cuda:0") and t.is_cuda and not t.is_cpu for t in own)
        assert all(t.device.type == "cpu" for t in (x.cpu(), torch.zeros(2), net.theta.cpu()[3:]))
        host = torch.zeros(4, 1, 12, 12)
        assert host.copy_(x).device.type == "cpu"
