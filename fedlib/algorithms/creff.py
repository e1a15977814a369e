"""CReFF: classifier re-training with federated features (Shang et al., IJCAI 2022).

Long-tailed clients bias the classifier more than the features below it. So a second classifier phi is trained, on
synthetic "federated" features v_c of every class c, whose gradients are made to match those of the real ones:

    g_c = mean over the clients k with class c of  mean over their samples x of  grad_phi CE(phi(f(x)), c)
    v_c = argmin  (1/C) sum_j 1 - cos(g_c[j], grad_phi CE(phi(v_c), c)[j]),      row j of phi being (w_j, b_j)

phi replaces the classifier wherever the model is evaluated, and the next round's gradients are taken at it. The
averaged model is broadcast and trained as it is.
"""

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms.base import Client, Local, Round, Server, register
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Layout
from fedlib.core.random import stream, torch_seed

DRAWS, DRAWN = 10, 32  # as released: how often a client draws images of a class, and how many at most


@register("creff")
class CReFF(Local, Server):
    """Evaluate the average with a classifier re-trained on federated features; train and broadcast it without.

    ``released``: a client's g_c is the mean of ten draws of up to 32 of its images (augmented there, not here), and the
    rows' mismatches are summed, the bias being a row of its own. The features live on from round to round; phi starts
    afresh.
    """

    uses_features = True
    features: int = 100  # per class
    steps: int = 100  # of gradient matching, a round
    lr: float = 0.1  # of the features: the code's, which goes with its sum; with the equation's mean 1 goes as far
    epochs: int = 300  # of re-training, a round
    batch: int = 32
    classifier_lr: float = 0.01
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self):
        if min(self.features, self.steps, self.epochs, self.batch) < 1 or min(self.lr, self.classifier_lr) <= 0:
            raise FedlibError(f"{self.name} needs features, steps, epochs and batch of at least 1 and positive rates.")

    def begin(self, c: Client) -> None:
        phi = c.received.get(self.name, classifier(c.layout, c.anchor))
        z, y = with_one(c.features(), phi), c.data[1].cpu().numpy()
        rng = stream(c.spec.seed, self.name, c.round, c.id) if self.variant == "released" else None
        c.uploads[self.name] = torch.full((len(phi), *phi.shape), math.nan, device=z.device)  # NaN: no such class here
        classes, draws = np.unique(y).tolist(), []
        for label in classes:
            (mine,) = np.nonzero(y == label)
            draws += [rng.permutation(mine)[:DRAWN] for _ in range(DRAWS)] if rng else [mine]
        rows = torch.from_numpy(np.concatenate(draws)).to(z.device).split([len(i) for i in draws])  # one transfer
        times = len(draws) // len(classes)
        for n, label in enumerate(classes):
            each = [gradient(phi, z[i], label) for i in rows[n * times : (n + 1) * times]]
            c.uploads[self.name][label] = sum(each) / times

    def step(self, r: Round) -> Tensor:
        phi = r.state.get("classifier", classifier(r.layout, r.theta))
        real = torch.stack(r.sent(self.name)).nanmean(0)
        present = torch.nonzero(~real[:, 0, 0].isnan())[:, 0]  # the classes that somebody has
        v = r.state.get("features")
        if v is None:
            shape = len(phi), self.features, r.layout.classifier.entries[0].shape[1]
            v = torch.randn(shape, generator=generator(r, self.name)).to(phi)
        for _ in range(self.steps):
            v.requires_grad_()
            loss = self.objective(r, v, phi, real, present)
            (slope,) = torch.autograd.grad(loss, v)
            v = v.detach() - self.lr * slope
        r.log("mismatch", loss.detach())
        r.state["features"] = v
        r.state["classifier"] = r.broadcast[self.name] = self.retrain(r, v, phi)
        return r.aggregate

    def objective(self, r: Round, v: Tensor, phi: Tensor, real: Tensor, present: Tensor) -> Tensor:
        """The mismatch summed over the classes that are present."""
        fake = gradient(phi, with_one(v[present], phi), present)
        return mismatch(real[present], fake, v.shape[2], self.variant).sum()

    def retrain(self, r: Round, v: Tensor, phi: Tensor) -> Tensor:
        """A new classifier from nn.Linear's start, by plain SGD on the federated features."""
        rng = generator(r, f"{self.name} classifier", r.number)
        phi = ((2 * torch.rand(phi.shape, generator=rng) - 1) / v.shape[2] ** 0.5).to(v)
        z = with_one(v.flatten(0, 1), phi)
        target = torch.eye(len(phi), device=v.device).repeat_interleave(self.features, 0)
        orders = torch.stack([torch.randperm(len(z), generator=rng) for _ in range(self.epochs)])
        for order in orders.to(v.device):
            for i in order.split(self.batch):
                error = (z[i] @ phi.T).softmax(1) - target[i]
                phi.addmm_(error.T, z[i], alpha=-self.classifier_lr / len(i))
        return phi

    def evaluated(self, theta: Tensor, layout: Layout, state: dict) -> Tensor:
        if "classifier" not in state:
            return theta
        theta = theta.clone()
        (weight, *bias), phi = layout.classifier.entries, state["classifier"]
        weight.view(theta).copy_(phi[:, : weight.shape[1]])
        for e in bias:
            e.view(theta).copy_(phi[:, -1])
        return theta


def classifier(layout: Layout, theta: Tensor) -> Tensor:
    """The last layer with (w_j, b_j) as rows."""
    return torch.cat([e.view(theta).reshape(e.shape[0], -1) for e in layout.classifier.entries], 1)


def with_one(z: Tensor, phi: Tensor) -> Tensor:
    """Features as phi takes them: with a one behind them where it has a bias."""
    return F.pad(z, (0, phi.shape[1] - z.shape[-1]), value=1.0)


def gradient(phi: Tensor, z: Tensor, label: int | Tensor) -> Tensor:
    """grad_phi of the mean cross-entropy of samples z of one class, or of several classes with their labels."""
    error = (z @ phi.T).softmax(-1) - torch.eye(len(phi), dtype=z.dtype, device=z.device)[label][..., None, :]
    return error.mT @ z / z.shape[-2]


def mismatch(real: Tensor, fake: Tensor, width: int, variant: str) -> Tensor:
    """How differently the rows of two gradients of a classifier on ``width`` features point."""
    if variant == "paper":
        return (1 - F.cosine_similarity(real, fake, dim=-1)).mean(-1)
    total = 0.0
    for a, b in zip(*((g[..., :width], g[..., width:].mT) for g in (real, fake)), strict=True):  # weights, then bias
        total = total + (1 - (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + 1e-6)).sum(-1)
    return total


def generator(r: Round, *key: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(torch_seed(r.context["seed"], *key))
