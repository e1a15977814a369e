"""What a model knows of the classes: its accuracy in each, its classifier's rows, where features lie (FedDW)."""

import numpy as np
import scipy
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms import Client, Round
from fedlib.algorithms.dw import relations, slope, soft_labels
from fedlib.core.errors import FedlibError
from fedlib.core.layout import gather
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.data import DATASETS
from fedlib.data.augment import augment
from fedlib.models.base import eval_for_gradients, evaluate
from fedlib.probes.base import PROBES, Fed, Probe, by_id, cosines, draw, round_significant


@PROBES.register("groups")
class Groups(Probe):
    """The new model's test accuracy in every class and, where there are domains, in every domain (FedAWA Table 7)."""

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return test / 3

    @torch.no_grad()
    def measure(self, fed: Fed, r: Round) -> dict:
        fed.flat.load(r.aggregate, r.aggregate_buffers)
        model = fed.flat.model.eval()
        right = torch.cat([model(x).argmax(1) for x in fed.x_test.split(1000)]) == fed.y_test
        groups = {"classes": (fed.y_test, fed.classes)}
        if fed.domain_test is not None:
            groups["domains"] = fed.domain_test, int(fed.data.domain_test.max()) + 1
        return {name: round_significant(shares_right(right, group, count)) for name, (group, count) in groups.items()}


def shares_right(right: Tensor, group: Tensor, count: int) -> Tensor:
    """The mean of ``right`` in each of ``count`` groups; NaN where one has no member."""
    right, group = right.cpu().double(), group.cpu()  # a card's sums by group are not deterministic
    return torch.bincount(group, right, count) / torch.bincount(group, minlength=count)


@PROBES.register("ensemble")
class Ensemble(Probe):
    """What the clients' models say together of some test images, which is what FedDF's students learn.

    A client is as loud as its mean absolute logit: ``loudest`` is the largest over the median, ``holds`` that client's
    number of classes. ``one_answer`` is the share of images which the mean of the logits puts into the same class,
    ``logits`` its accuracy, ``probabilities`` that of the mean of probabilities. ``active`` is the share of the new
    model's features above zero: at 0 a network of ReLUs is dead.
    """

    uses_features = True
    every: int | None = 1
    samples: int = 500

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return (spec.clients_per_round + 1) * min(self.samples, test) / 3

    @torch.no_grad()
    def measure(self, fed: Fed, r: Round) -> dict:
        (counts,), (x, y), model = r.need("counts"), draw(fed, "ensemble", self.samples, "test"), fed.flat.model.eval()
        said = []
        for theta, buffers in zip(r.thetas, r.client_buffers, strict=True):
            fed.flat.load(theta, buffers)
            said.append(model(x))
        said = torch.stack(said)
        fed.flat.load(r.aggregate, r.aggregate_buffers)
        found = loudness(said, y) | {"active": float((model.features(x) > 0).double().mean())}
        found["holds"] = int((counts[found["holds"]] > 0).sum())
        return {name: round_significant(value) for name, value in found.items()}


def loudness(said: Tensor, y: Tensor) -> dict:
    """Of the clients' logits (clients x images x classes): see ``Ensemble``; ``holds`` is the row of the loudest."""
    loud, answers = said.double().abs().mean((1, 2)), said.mean(0).argmax(1)
    return {
        "loudest": float(loud.max() / loud.median().clamp(min=torch.finfo(loud.dtype).tiny)),
        "holds": int(loud.argmax()),
        "one_answer": float(answers.bincount().max() / len(y)),
        "logits": float((answers == y).double().mean()),
        "probabilities": float((said.softmax(2).mean(0).argmax(1) == y).double().mean()),
    }


@PROBES.register("class_norms")
class ClassNorms(Probe):
    """Rank correlation of a client's class shares with the norms of its classifier's rows (FedDW Fig. 4).

    ``norms`` (as shares of their sum) and ``shares`` are kept for the first clients. A client that starts from a
    fresh model is a centralised training on its own mix of classes: round 1 of a long one repeats the experiment.
    """

    keep: int = 3  # clients whose norms and shares are kept: the paper draws three

    def measure(self, fed: Fed, r: Round) -> dict:
        rows, (counts,) = by_id(r), r.need("counts")
        norms = r.layout.classifier.entries[0].view(r.thetas)[rows].norm(dim=2).double().cpu().numpy()
        mix = np.asarray(counts, float)[rows]
        norms, mix = norms / norms.sum(1, keepdims=True), mix / mix.sum(1, keepdims=True)
        found = {"correlation": round_significant([rank_correlation(s, n) for s, n in zip(mix, norms, strict=True)])}
        return found | {"norms": round_significant(norms[: self.keep]), "shares": round_significant(mix[: self.keep])}


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's; NaN where one does not vary."""
    return float(scipy.stats.spearmanr(a, b).statistic) if np.ptp(a) > 0 and np.ptp(b) > 0 else float("nan")


@PROBES.register("relations")
class Relations(Probe):
    """FedDW's two matrices: SL, the clients' soft labels by class, and CR = w w^T of the new classifier (Fig. 8).

    ``frobenius`` is ||SL - softmax(CR)||_F; ``similarity`` the correlation of the two off the diagonal.
    """

    matrices: bool = True  # keep SL and softmax(CR) themselves

    def check(self, spec: RunSpec) -> None:
        classes = len(DATASETS.make(spec.dataset).class_names)
        if self.matrices and classes > 20:
            raise FedlibError(
                f"Matrices of {classes} classes are too large for a record; take relations(matrices=False)."
            )

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return train * spec.clients_per_round / spec.clients / 3

    def measure(self, fed: Fed, r: Round) -> dict:
        sl = self.soft_labels(fed, r)
        cr = relations(r.layout.classifier.entries[0].view(r.aggregate))
        off = ~torch.eye(len(sl), dtype=torch.bool, device=sl.device)
        similarity = float(torch.corrcoef(torch.stack([sl[off], cr[off]]))[0, 1])
        found = {"frobenius": float((sl - cr).norm()), "similarity": similarity}
        return found | ({"SL": round_significant(sl), "CR": round_significant(cr)} if self.matrices else {})

    def soft_labels(self, fed: Fed, r: Round) -> Tensor:
        """Eq. 7: over the clients' trained models, each on its own data; a class that nobody holds is itself."""
        flat, sums, counts = fed.flat, 0.0, 0.0
        for k, theta, buffers in zip(r.ids, r.thetas, r.client_buffers, strict=True):
            fed.flat.load(theta, buffers)
            data = gather(fed.x, fed.indices[k]), fed.y[fed.indices[k]]
            mine, held = soft_labels(
                Client(
                    k, r.number, flat.model, flat.layout, flat.theta, flat.grad, r.theta, data=data, classes=fed.classes
                )
            )
            sums, counts = sums + mine, counts + held
        return torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), torch.eye(len(counts)).to(sums))


@PROBES.register("omega")
class Omega(Probe):
    """FedDW's term as the next round starts with it, of the Omega that the server sends and the new classifier.

    ``term`` is ||Omega - softmax(CR)||_F^2 / C^2, before mu; ``lag`` how far Omega is from this round's own SL (zero
    for Eq. 7, as long as every class is held); ``diagonal`` its mean there. Where no Omega is sent, SL takes its place.
    """

    every: int | None = 1

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return train * spec.clients_per_round / spec.clients / 3

    def measure(self, fed: Fed, r: Round) -> dict:
        sl = Relations().soft_labels(fed, r)
        sent = r.broadcast.get("omega", sl)
        cr = relations(r.layout.classifier.entries[0].view(r.aggregate))
        found = {"term": (sent - cr).square().mean(), "lag": (sent - sl).norm(), "diagonal": sent.diagonal().mean()}
        return {name: round_significant(value) for name, value in found.items()}


@PROBES.register("pull")
class Pull(Probe):
    """The norms of two gradients by the classifier's weight, mean over the round's clients: ``loss`` of a client's
    cross-entropy on its own data, ``term`` of FedDW's term before mu; at the new model (``start`` of the next round)
    and at the clients' trained models (``end`` of this one). Omega is the one that the server sends next; where none
    is sent, the round's own soft labels.
    """

    every: int | None = 1

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return 2 * train * spec.clients_per_round / spec.clients

    def measure(self, fed: Fed, r: Round) -> dict:
        omega = r.broadcast["omega"] if "omega" in r.broadcast else Relations().soft_labels(fed, r)
        entry, found = r.layout.classifier.entries[0], {"start": [], "end": []}
        for k, theta, buffers in zip(r.ids, r.thetas, r.client_buffers, strict=True):
            places = {"start": (r.aggregate, r.aggregate_buffers), "end": (theta, buffers)}
            for when, place in places.items():
                fed.flat.load(*place)
                by_loss = entry.view(loss_gradient(fed, k)).norm()
                by_term = 2 * slope(entry.view(fed.flat.theta), omega).norm() / len(omega) ** 2
                found[when].append([float(by_loss), float(by_term)])
        means = {when: np.mean(pairs, axis=0) for when, pairs in found.items()}
        return {
            f"{what} {when}": round_significant(m[i])
            for i, what in enumerate(("loss", "term"))
            for when, m in means.items()
        }


def loss_gradient(fed: Fed, k: int) -> Tensor:
    """The gradient of the mean cross-entropy of the model as it stands, in eval mode, on all data of client ``k``."""
    x, y = gather(fed.x, fed.indices[k]), fed.y[fed.indices[k]]
    eval_for_gradients(fed.flat.model)
    fed.flat.grad.zero_()
    for xb, yb in zip(x.split(1000), y.split(1000), strict=True):
        (F.cross_entropy(fed.flat.model(xb), yb, reduction="sum") / len(y)).backward()
    return fed.flat.grad


@PROBES.register("held_out")
class HeldOut(Probe):
    """The new model's accuracy in percent on the server's own data, which ``proxy`` cuts from the test set."""

    def check(self, spec: RunSpec) -> None:
        if spec.proxy is None:
            raise FedlibError("held_out scores on the server's own data: set proxy, such as balanced(size=1000).")

    def measure(self, fed: Fed, r: Round) -> dict:
        fed.flat.load(r.aggregate, r.aggregate_buffers)
        return {"accuracy": round_significant(100 * evaluate(fed.flat.model, *fed.proxy)[0])}


@PROBES.register("augmented")
class Augmented(Probe):
    """The new model's test accuracy on images as they are, and cropped, flipped and turned at random, as FedDW's code
    does to its test set: crops out of a black frame of four pixels, rotations by up to ``degrees``. In percent."""

    draws: int = 10  # times that the whole test set is altered
    degrees: float = 0.0  # 15 on CIFAR-100, in that code

    def __post_init__(self):
        super().__post_init__()
        if self.draws < 1:
            raise FedlibError(f"augmented(draws=…) is at least 1; got {self.draws}.")

    def check(self, spec: RunSpec) -> None:
        if len(DATASETS.make(spec.dataset).shape) != 3:
            raise FedlibError(f"The probe augmented is for images, which {spec.dataset} does not have.")

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return (self.draws + 1) * test / 3

    def measure(self, fed: Fed, r: Round) -> dict:
        fed.flat.load(r.aggregate, r.aggregate_buffers)
        rng = stream(fed.spec.seed, "probe augmented", r.number)
        pictures = [augment(fed.x_test, rng, self.degrees) for _ in range(self.draws)]
        right = [100 * evaluate(fed.flat.model, x, fed.y_test)[0] for x in (fed.x_test, *pictures)]
        return {"clean": round_significant(right[0]), "augmented": round_significant(right[1:])}


@PROBES.register("tsne")
class Tsne(Probe):
    """A t-SNE map of test features and of the classifier's rows, all of unit length (FedDW Fig. 5).

    ``own`` is the share of classes whose row points to the mean feature of that class more than to any other's.
    """

    uses_features = True
    samples: int = 500
    perplexity: float = 30.0

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.perplexity < self.samples:
            raise FedlibError("tsne(…) needs more samples than its perplexity, which is positive.")

    def work(self, spec: RunSpec, train: int, test: int) -> float:
        return self.samples

    @torch.no_grad()
    def measure(self, fed: Fed, r: Round) -> dict:
        from sklearn.manifold import TSNE

        x, y = draw(fed, "tsne", self.samples, "test")
        fed.flat.load(r.aggregate, r.aggregate_buffers)
        features = torch.nn.functional.normalize(fed.flat.model.eval().features(x).double())
        rows = torch.nn.functional.normalize(r.layout.classifier.entries[0].view(r.aggregate).double())
        seed = int(stream(fed.spec.seed, "probe tsne").integers(2**31))
        points = torch.cat([features, rows]).cpu().numpy()
        places = TSNE(init="pca", perplexity=self.perplexity, random_state=seed).fit_transform(points)
        return {
            "own": own(features, y, rows),
            "points": np.round(places[: len(y)].astype(float), 1).tolist(),
            "labels": y.tolist(),
            "rows": np.round(places[len(y) :].astype(float), 1).tolist(),
        }


def own(features: Tensor, y: Tensor, rows: Tensor) -> float:
    """Share of the classes present in y whose row has the nearest class mean (by cosine) of its own class."""
    present = y.unique()
    means = torch.stack([features[y == c].mean(0) for c in present])
    return float((cosines(rows[present], means).argmax(1) == torch.arange(len(present)).to(y)).double().mean())
