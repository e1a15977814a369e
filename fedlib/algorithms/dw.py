"""FedDW: the classifier's class relations follow the soft labels of all clients (Liu et al.)."""

from typing import Literal

import torch
from torch import Tensor

from fedlib.algorithms.base import Client, Local, Round, Server, register
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Entry


@register("dw")
class DW(Local, Server):
    """Local loss + mu / C^2 ||Omega - A||_F^2 with A = softmax(w w^T) row by row, w the last layer (Eqs. 11, 12).

    Omega (SL) holds the mean soft label of every class, A (CR) how similar the classifier thinks the classes are. The
    clients send soft labels summed by class, with counts (Eqs. 4 to 6); their quotient is Eq. 7. A class that nobody
    holds keeps its row, which is the identity's at the start. The term does not depend on the data, so its
    gradient is added by hand. The equations have no last bias: use a model with ``bias=False``.

    ``form="linear"`` is Section IV.B: ||Omega - A_0^T A - A^T A_0 + A_0^T A_0||^2 / C^2 (Eq. 30), convex in A, with
    A_0 renewed every epoch. Its A^T A takes the place of Eq. 11's A, as printed. ``form="relu"`` is of the code's
    personalised FedDW (``local+dw(form=relu)`` here), where A = softmax(relu(w w^T)). ``released``: mu is divided by 10
    in every ninth round, and Omega is half the old one, half the quotient over all rounds so far.
    """

    mu: float = 0.1
    form: Literal["square", "linear", "relu"] = "square"
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self):
        if self.mu < 0:
            raise FedlibError(f"dw(mu=…) must not be negative; got {self.mu}.")

    def begin(self, c: Client) -> None:
        c.memo["omega"] = c.received.get("omega", torch.eye(c.classes, device=c.theta.device))
        c.memo["mu"] = self.mu / 10 ** (c.round // 9) if self.variant == "released" else self.mu

    def epoch(self, c: Client) -> None:
        c.memo["reference"] = relations(classifier(c).view(c.theta))  # A_0

    def gradient(self, c: Client) -> None:
        if self.mu == 0:
            return
        w = classifier(c).view(c.theta)
        by_w = slope(w, c.memo["omega"], self.form, c.memo["reference"])
        classifier(c).view(c.grad).add_(by_w, alpha=2 * c.memo["mu"] / len(w) ** 2)

    def end(self, c: Client) -> None:
        c.uploads["soft_labels"], c.uploads["class_counts"] = soft_labels(c)

    def step(self, r: Round) -> Tensor:
        r.broadcast["omega"] = mean_soft_labels(r, self.variant)
        return r.aggregate


def slope(w: Tensor, omega: Tensor, form: str = "square", reference: Tensor | None = None) -> Tensor:
    """Half the gradient of ||Omega - A||_F^2 by w, before mu and 1 / C^2; ``reference`` is A_0 of the linear form."""
    a = relations(w, form)
    if form != "linear":
        by_a = a - omega
    else:
        a0 = reference
        rest = a0.T @ a + a.T @ a0 - a0.T @ a0 - omega
        by_a = a0 @ (rest + rest.T)
    by_cr = a * (by_a - (by_a * a).sum(1, keepdim=True))  # through the softmax
    if form == "relu":
        by_cr *= w @ w.T > 0
    return (by_cr + by_cr.T) @ w  # through w w^T


def mean_soft_labels(r: Round, variant: str) -> Tensor:
    """Omega after this round (Eq. 7), or as released; the current part's state keeps it."""
    sums, counts = sum(r.sent("soft_labels")), sum(r.sent("class_counts"))
    identity = torch.eye(len(counts), device=sums.device)
    before = r.state.get("omega", identity)
    if variant == "released":
        sums = r.state["sums"] = r.state.get("sums", 0.0) + sums
        counts = r.state["counts"] = r.state.get("counts", 0.0) + counts
    seen = counts[:, None] > 0
    omega = torch.where(seen, sums / counts[:, None].clamp(min=1), before)
    if variant == "released":
        omega = (torch.where(seen, omega, identity) + before) / 2
    r.state["omega"] = omega
    return omega


def classifier(c: Client) -> Entry:
    """Where the last layer's weight lives."""
    return c.layout.classifier.entries[0]


def relations(w: Tensor, form: str = "square") -> Tensor:
    products = w @ w.T
    return (products.relu() if form == "relu" else products).softmax(1)


@torch.no_grad()
def soft_labels(c: Client, batch: int = 1000) -> tuple[Tensor, Tensor]:
    """The trained model's probabilities on the client's own samples, summed by class, and how many there were."""
    x, y = c.data
    sums = torch.zeros(c.classes, c.classes, device=c.theta.device)
    c.model.eval()
    for xb, yb in zip(x.split(batch), y.split(batch), strict=True):
        sums.index_add_(0, yb, c.model(xb).softmax(1))
    c.model.train()
    return sums, torch.bincount(y, minlength=c.classes).to(sums)
