"""CReFF, CLIP2FL and FPL on numbers worked out by hand, against autograd, and in small runs."""

import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import fedlib
from fedlib.algorithms import ALGORITHMS, Algorithm, Batch, Client, Round
from fedlib.algorithms import clip2fl as clips
from fedlib.algorithms.creff import classifier, generator, gradient, mismatch, with_one
from fedlib.algorithms.fpl import class_means, finch, infonce
from fedlib.core.device import one_thread
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel, Layout
from fedlib.core.spec import RunSpec
from fedlib.data import load
from fedlib.federation.federation import Federation
from fedlib.models import build
from fedlib.runs.execute import simulate

TINY = RunSpec(
    dataset="digits(shape=(1, 8, 8))", model="mlp(hidden=16)", partition="dirichlet(alpha=0.5)", subset=200,
    test_subset=100, clients=4, participation=0.5, rounds=3, batch_size=16, lr=0.1, seed=1,
)  # fmt: skip
SMALL = "features=4, steps=3, epochs=3"
METHODS = {
    "creff": f"creff({SMALL})",
    "creff released": f"creff({SMALL}, variant=released)",
    "fpl": "fpl",
    "fpl released": "fpl(variant=released)",
    "clip2fl": f"clip2fl({SMALL}, clip=tiny16)",
    "clip2fl released": f"clip2fl({SMALL}, clip=tiny16, variant=released)",
}


@pytest.fixture
def clip(clip_folder, monkeypatch):
    """One of random weights, 16 features."""
    monkeypatch.setenv("FEDLIB_DATA", str(clip_folder))
    return clips.load_clip("tiny16", clip_folder)


def client(model="mlp(hidden=5)", samples=12, classes=3, **fields) -> Client:
    torch.manual_seed(0)
    flat = FlatModel(build(model, (1, 4, 4), classes, seed=1))
    data = torch.randn(samples, 1, 4, 4), torch.arange(samples) % 2  # nobody has class 2
    return Client(
        0, 1, flat.model, flat.layout, flat.theta, flat.grad, flat.theta.clone(), data=data, classes=classes,
        spec=TINY, **fields,
    )  # fmt: skip


def test_creff_gradient_by_hand():
    # Two classes as likely as each other: the error of a sample of class 0 is (-1/2, 1/2), its features (2, 1).
    grad = gradient(torch.zeros(2, 2), torch.tensor([[2.0, 1.0]]), torch.tensor(0))
    assert grad.tolist() == [[-1.0, -0.5], [1.0, 0.5]]


def test_creff_mismatch_by_hand():
    real, fake = torch.tensor([[1.0, 0, 1], [0, 1, 1]]), torch.tensor([[1.0, 0, -1], [0, 1, -1]])
    # Rows (w_j, b_j): cos = (1 - 1) / 2 = 0 in both. As released: the weights agree, the bias points the other way.
    assert float(mismatch(real, fake, 2, "paper")) == pytest.approx(1.0)
    assert float(mismatch(real, fake, 2, "released")) == pytest.approx(2.0, abs=1e-5)
    assert float(mismatch(real[:, :2], fake[:, :2], 2, "released")) == pytest.approx(0.0, abs=1e-5)  # without a bias


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_creff_matching_is_autograd_through_autograd(variant, bias):
    """The closed form of the gradients, and its slope by the features, against torch's double backward."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3, bias=bias)
    phi = torch.cat([p.detach().reshape(3, -1) for p in net.parameters()], 1)
    real, v = torch.randn(3, *phi.shape), torch.randn(3, 6, 4, requires_grad=True)
    written = 0.0
    for c in range(3):
        loss = F.cross_entropy(net(v[c]), torch.full((6,), c))
        grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        fake = torch.cat([g.reshape(3, -1) for g in grads], 1)
        torch.testing.assert_close(gradient(phi, with_one(v[c], phi), torch.tensor(c)), fake)
        if variant == "paper":
            written += sum(1 - F.cosine_similarity(real[c, j], fake[j], dim=0) for j in range(3)) / 3
        else:
            written += sum(1 - F.cosine_similarity(real[c, j, :4], fake[j, :4], dim=0) for j in range(3))
            written += 1 - F.cosine_similarity(real[c, :, 4], fake[:, 4], dim=0) if bias else 0
    mine = ALGORITHMS.make(f"creff(variant={variant})").objective(None, v, phi, real, torch.arange(3))
    torch.testing.assert_close(mine, written, rtol=1e-4, atol=1e-4)
    slopes = [torch.autograd.grad(x, v, retain_graph=True)[0] for x in (mine, written)]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("model", ["mlp(hidden=5)", "resnet8"])
def test_creff_client_sends_the_mean_gradient_of_every_class_it_has(model):
    c = client(model)
    (x, y), before = c.data, {name: t.clone() for name, t in c.model.state_dict().items()}
    ALGORITHMS.make("creff").begin(c)
    mine = c.uploads["creff"]
    assert mine[2].isnan().all() and c.model.training
    assert all(torch.equal(t, before[name]) for name, t in c.model.state_dict().items()), "BatchNorm's statistics too"
    c.model.eval()
    for label in (0, 1):
        loss = F.cross_entropy(c.model(x[y == label]), y[y == label])
        grads = torch.autograd.grad(loss, list(c.model.classifier.parameters()))
        expected = torch.cat([g.reshape(3, -1) for g in grads], 1)
        torch.testing.assert_close(mine[label], expected, rtol=1e-4, atol=1e-6)


def test_creff_released_draws_a_few_images_ten_times():
    few, many = client(samples=60), client(samples=400)  # at most 32 of a class are drawn
    uploads = []
    for c in (few, many):
        for variant in ("paper", "released"):
            ALGORITHMS.make(f"creff(variant={variant})").begin(c)
            uploads.append(c.uploads["creff"][:2].clone())
    torch.testing.assert_close(uploads[0], uploads[1])
    assert 0 < float((uploads[2] - uploads[3]).norm() / uploads[2].norm()) < 0.3


def test_creff_server_matches_re_trains_and_leaves_the_average_alone():
    net = build("mlp(hidden=5)", (1, 2, 2), 3, seed=1)
    w = net.state_dict()
    torch.manual_seed(0)
    flat = FlatModel(net)
    start = classifier(flat.layout, flat.theta)
    hidden = with_one(torch.randn(2, 3, 20, 5) + 2 * torch.randn(2, 3, 1, 5), start)  # real features to be matched
    sent = torch.stack([gradient(start, z, torch.arange(3)) for z in hidden])
    sent[0, 1:] = sent[1, 2] = math.nan  # class 0 of both, class 1 of the second client, class 2 of nobody
    form, runs = "creff(features=8, steps=150, epochs=200, classifier_lr=0.1)", {}
    for number in (1, 2):
        result = fedlib.aggregate(form, w, [w, w], [1, 3], uploads={"creff": list(sent)}, state=runs, round=number)
        runs = result.state
        assert all(torch.equal(result.state_dict[name], t) for name, t in w.items()), "what is broadcast"
        if number == 1:
            phi, v = runs["creff"]["classifier"].clone(), runs["creff"]["features"].clone()
            first = result.factors["mismatch"]
    random = ALGORITHMS.make(form).objective(None, torch.randn_like(v), start, sent.nanmean(0), torch.tensor([0, 1]))
    assert first < 0.2 * float(random)
    shown = Algorithm("creff").evaluated(flat.theta, flat.layout, {"creff": {"classifier": phi}})
    layer = flat.layout.classifier
    torch.testing.assert_close(classifier(flat.layout, shown), phi)
    assert torch.equal(shown[: layer.slice.start], flat.theta[: layer.slice.start])
    assert torch.equal(Algorithm("creff").evaluated(flat.theta, flat.layout, {}), flat.theta), "nothing to show yet"


@pytest.mark.parametrize("bias", [True, False])
def test_creff_re_trains_a_linear_layer_by_sgd(bias):
    torch.manual_seed(0)
    v, net = torch.randn(3, 5, 4), torch.nn.Linear(4, 3, bias=bias)
    r = Round(None, *[torch.zeros(0)] * 5, [], number=7, context={"seed": 0})
    part = ALGORITHMS.make("creff(features=5, epochs=3, batch=4, classifier_lr=0.2)")
    mine = part.retrain(r, v, torch.zeros(3, 4 + bias))
    rng = generator(r, "creff classifier", 7)
    start = (2 * torch.rand(3, 4 + bias, generator=rng) - 1) / 2  # nn.Linear's: uniform within 1 / sqrt(width)
    net.weight.data, z, y = start[:, :4].clone(), v.flatten(0, 1), torch.arange(3).repeat_interleave(5)
    if bias:
        net.bias.data = start[:, 4].clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for _ in range(3):
        for i in torch.randperm(15, generator=rng).split(4):
            optimizer.zero_grad()
            F.cross_entropy(net(z[i]), y[i]).backward()
            optimizer.step()
    torch.testing.assert_close(mine, torch.cat([p.detach().reshape(3, -1) for p in net.parameters()], 1))


def trained(spec: RunSpec) -> torch.Tensor:
    """The global parameters that would be broadcast after the run."""
    with one_thread():
        fed, algorithm, memory = Federation(spec), Algorithm(spec.algorithm), {}
        run = fed.start()
        for number in range(1, spec.rounds + 1):
            r = fed.train_cohort(number, algorithm, run, {})
            run.theta, run.buffers = algorithm.aggregate(r, memory)
    return run.theta


def test_creff_trains_as_fedavg_does_and_is_evaluated_otherwise():
    creff = TINY.replace(algorithm=f"creff({SMALL})")
    assert torch.equal(trained(creff), trained(TINY))
    assert simulate(creff).series["loss"] != simulate(TINY).series["loss"]


def on_circle(*degrees) -> np.ndarray:
    angle = np.radians(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], 1) * np.arange(1, len(angle) + 1)[:, None]  # length is no matter


@pytest.mark.parametrize(
    "degrees, clusters",
    [
        ((5,), [0]),
        ((5, 80), [0, 0]),  # each other's neighbours
        ((0, 1, 90, 91), [0, 0, 1, 1]),
        ((0, 1, 3, 90, 91), [0, 0, 0, 1, 1]),  # the third point's neighbour is the second
        ((0, 1, 10, 11, 90, 91, 100, 101), [0, 0, 0, 0, 1, 1, 1, 1]),  # four pairs, then two pairs of pairs
    ],
)
def test_finch_on_a_circle(degrees, clusters):
    assert finch(on_circle(*degrees)).tolist() == clusters


def test_infonce_on_three_vectors():
    z, prototypes = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    e = math.e
    one = infonce(z, torch.tensor([4]), prototypes, torch.tensor([4, 5, 5]), 1.0)
    assert float(one) == pytest.approx(-math.log(e / (e + 1 + 1 / e)))
    two = infonce(z, torch.tensor([4]), prototypes, torch.tensor([4, 4, 5]), 0.5)
    assert float(two) == pytest.approx(-math.log((e**2 + 1) / (e**2 + 1 + e**-2)))


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_fpl_term_is_the_written_loss(variant):
    torch.manual_seed(0)
    prototypes, labels = torch.randn(4, 6), torch.tensor([0, 0, 1, 3])  # nobody sent class 2
    z, y = torch.randn(5, 6, requires_grad=True), torch.tensor([0, 1, 2, 3, 0])
    part, c = ALGORITHMS.make(f"fpl(temperature=0.3, variant={variant})"), client()
    c.classes, c.memo["fpl"] = 4, []
    assert part.loss(c, Batch(None, y, z, None)) is None, "no prototypes in the first round"
    c.received["fpl"], c.data = (prototypes, labels), (None, y)
    part.begin(c)
    mine = part.loss(c, Batch(None, y, z, None))
    written = 0.0
    for sample, label in zip(z, y, strict=True):
        if label != 2:
            e = (F.cosine_similarity(sample[None], prototypes) / 0.3).exp()
            square = (sample - prototypes[labels == label].mean(0)).square()
            written -= (e[labels == label].sum() / e.sum()).log()
            written += square.sum() if variant == "paper" else square.mean()
    torch.testing.assert_close(mine, written / 5)
    torch.testing.assert_close(*(torch.autograd.grad(loss, z, retain_graph=True)[0] for loss in (mine, written / 5)))
    unknown = part.loss(c, Batch(None, y[2:3], z[2:3], None))
    assert unknown.item() == 0 and not torch.autograd.grad(unknown, z)[0].any()


def test_fpl_prototypes_are_the_sent_models_or_the_last_epochs():
    c, z = client(), torch.randn(12, 5)
    ALGORITHMS.make("fpl").end(c)
    y, mine = c.data[1], c.uploads["fpl"]
    with torch.no_grad():
        features = c.model.eval().features(c.data[0])
    torch.testing.assert_close(mine[:2], torch.stack([features[y == label].mean(0) for label in (0, 1)]))
    assert mine[2].isnan().all()
    part = ALGORITHMS.make("fpl(variant=released)")
    for c.epoch in range(2):
        part.epoch(c)
        for half in (slice(0, 7), slice(7, 12)):
            part.loss(c, Batch(None, y[half], z[half] * c.epoch, None))
    part.end(c)
    torch.testing.assert_close(c.uploads["fpl"][:2], torch.stack([z[y == label].mean(0) for label in (0, 1)]))


def test_fpl_server_clusters_every_class():
    points, w = torch.from_numpy(on_circle(0, 1, 90, 91)).float(), {"w": torch.zeros(1)}
    sent = [torch.stack([p, torch.full((2,), math.nan), p]) for p in points]
    for lacking in sent[1:]:
        lacking[2] = math.nan  # class 2 is the first client's alone, class 1 nobody's
    thetas, none = torch.zeros(4, 1), torch.zeros(4, 0)
    r = Round(Layout.of_state(w), w["w"], none[0], thetas, none, torch.ones(4), list(range(4)), uploads={"fpl": sent})
    Algorithm("fpl").aggregate(r, {})
    prototypes, labels = r.broadcast["fpl"]
    assert labels.tolist() == [0, 0, 2] and r.logs["prototypes"] == 3
    torch.testing.assert_close(prototypes, torch.stack([points[:2].mean(0), points[2:].mean(0), points[0]]))


def test_clip_sees_images_as_open_clip_shows_them(clip, clip_folder):
    from open_clip.transform import PreprocessCfg, image_transform_v2

    data = load("digits(shape=(1, 8, 8))")
    mine = clips.image_features(clip, data.x_train[:20], torch.device("cpu"))
    show = image_transform_v2(PreprocessCfg(**clip[0].visual.preprocess_cfg), is_train=False)
    images = [show(Image.fromarray(x[0].numpy()).convert("RGB")) for x in data.x_train[:20]]
    with torch.no_grad():
        theirs = clip[0].encode_image(torch.stack(images))
    assert float(F.cosine_similarity(mine, theirs).min()) > 0.999  # PIL rounds to bytes in between
    text = clips.text_features("tiny16", clip_folder, data.class_names)
    torch.testing.assert_close(text.norm(dim=1), torch.ones(10))


def test_clip2fl_client_term_is_the_written_loss():
    torch.manual_seed(0)
    c, logits = client(), torch.randn(3, 3, requires_grad=True)
    c.state["clip2fl"], index = torch.randn(12, 3) * 5, torch.tensor([7, 0, 4])
    mine = ALGORITHMS.make("clip2fl(distill=0.5)").loss(c, Batch(None, None, None, logits, index))
    p, q = (c.state["clip2fl"][index] / 3).softmax(1), (logits / 3).softmax(1)
    written = 0.5 * 9 * (p * (p.log() - q.log())).sum(1).mean()
    torch.testing.assert_close(mine, written)
    torch.testing.assert_close(*(torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (mine, written)))


def test_clip2fl_server_term_by_brute_force():
    torch.manual_seed(0)
    v, text = torch.randn(3, 4, 5), F.normalize(torch.randn(3, 5))
    labels = torch.arange(3).repeat_interleave(4)
    scores = v.flatten(0, 1) @ text.T
    torch.testing.assert_close(clips.contrast(v @ text.T, "paper"), F.cross_entropy(scores, labels))
    copies = scores[:, labels]  # every feature's scores with one text feature per feature
    others = ~torch.eye(12, dtype=torch.bool)
    log_p = copies - (copies.exp() * others).sum(1, keepdim=True).log()
    same = (labels[:, None] == labels) & others
    released = -((log_p * same).sum(1) / same.sum(1)).mean()
    torch.testing.assert_close(clips.contrast(v @ text.T, "released"), released)


def test_clip2fl_says_what_it_needs(clip, clip_folder, monkeypatch):
    with pytest.raises(FedlibError, match=r"as many features as CLIP \(16\), not 8"):
        simulate(TINY.replace(model="mlp(hidden=8)", algorithm=METHODS["clip2fl"]))
    with pytest.raises(FedlibError, match="neither found nor fetched.*open_clip_model.safetensors"):
        clips.load_clip("nothing", clip_folder)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(FedlibError, match=r"pip install -e '.\[clip\]'"):
        clips.load_clip("other", clip_folder)


@pytest.mark.parametrize("text", ["creff(steps=0)", "creff(lr=0)", "fpl(temperature=0)", "clip2fl(contrast=-1)"])
def test_parameters_out_of_range_are_refused(text):
    with pytest.raises(FedlibError, match="needs|must be"):
        ALGORITHMS.make(text)


def test_class_means_by_hand():
    means = class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), 3)
    assert means[[0, 2], 0].tolist() == [2, 5] and means[1].isnan()


@pytest.mark.parametrize("method", METHODS)
def test_composes_with_awa_and_survives_a_stop(method, stopped, request):
    """With FedAWA's weights, stopped and taken up again: the same numbers as without a stop."""
    if "clip" in method:
        request.getfixturevalue("clip")
    spec = TINY.replace(algorithm=f"{METHODS[method]}+awa(lr=0.1)")
    resumed, straight = simulate(spec, stopped(spec)), simulate(spec)
    assert resumed.series == straight.series
    assert any(name.startswith("lambda/") for name in straight.series)
    for other in (METHODS[method], "awa(lr=0.1)"):
        assert straight.series["loss"] != simulate(spec.replace(algorithm=other)).series["loss"]
