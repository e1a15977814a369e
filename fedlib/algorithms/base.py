"""The three roles that know nothing of each other, local, weighting and server, and what they see: client and round."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedlib.core.errors import FedlibError
from fedlib.core.layout import Layout
from fedlib.core.registry import Registry

if TYPE_CHECKING:
    from fedlib.algorithms.composition import Algorithm

ALGORITHMS = Registry("algorithm")
register = ALGORITHMS.register

BLOCK = 1 << 15  # columns of the cohort's matrix that fit in the cache together


@dataclass
class Client:
    """What a local method sees while one client trains."""

    id: int
    round: int
    model: nn.Module
    layout: Layout
    theta: Tensor  # the client's parameters, updated in place
    grad: Tensor  # the gradient of the current batch, to be edited in place
    anchor: Tensor  # the parameters this round started from: the global ones, its own where they are personal
    state: dict[str, Any] = field(default_factory=dict)  # survives between this client's rounds
    received: dict[str, Any] = field(default_factory=dict)  # what the server sent along with the model
    data: tuple[Tensor, Tensor] | None = None  # the client's own samples (x, y)
    classes: int = 0
    relative_size: float = 1.0  # its samples over the mean of all clients
    momentum: float = 0.0  # of its SGD
    context: dict[str, Any] = field(default_factory=dict)  # dataset and indices, the place of its samples in it
    memo: dict[str, Any] = field(default_factory=dict)  # lives for this round only
    uploads: dict[str, Any] = field(default_factory=dict)  # what goes to the server along with the model
    logs: dict[str, float] = field(default_factory=dict)
    epoch: int = 0
    epochs: int = 1  # how many this round has for it
    active: slice | None = None  # what the optimiser moves, set before any epoch; None is everything
    spec: Any = None  # the run

    def log(self, name: str, value: float) -> None:
        """A number of this client and round; the record keeps its mean over the cohort."""
        self.logs[name] = float(value)

    @torch.no_grad()
    def features(self, batch: int = 1000) -> Tensor:
        """What the model, in eval mode, makes of the client's own samples."""
        training = self.model.training
        self.model.eval()
        z = torch.cat([self.model.features(x) for x in self.data[0].split(batch)])
        self.model.train(training)
        return z


@dataclass
class Batch:
    """One minibatch and what the model made of it."""

    x: Tensor
    y: Tensor
    features: Tensor | None  # None of a model without: set uses_features where they are needed
    logits: Tensor
    index: Tensor | None = None  # which of the client's own samples these are


class Local:
    """What changes in local training. Every hook may be left out.

    What a client remembers is kept for those who ever took part and goes into every checkpoint. Where clients keep
    their models that is one model each: 1,000 clients with SimpleCNN hold 0.5 GB, with ResNet20 1.1 GB.
    """

    name: ClassVar[str]  # as registered
    uses_features = False  # True if it looks at the model's features, below its linear classifier
    weights = None  # the aggregation this method implies: "size" or "uniform"
    keeps = False  # True if every client keeps the model it trained last (its state's "model"), to be scored by it
    adapts = False  # True if clients fit the global model to their data before they are scored by it
    shares = True  # False if no part of the model is averaged: all of it is personal
    least_epochs = 1  # local epochs without which the method makes no sense

    def check(self, algorithm: "Algorithm") -> None:
        """Refuse other parts that make no sense beside this one."""

    def personal(self, layout: Layout) -> set[str]:
        """The modules that stay with the client: its own again next time, statistics included, and never averaged."""
        return set() if self.shares else {e.module for e in layout.entries}

    def begin(self, c: Client) -> None:
        """Before a client's first epoch."""

    def epoch(self, c: Client) -> None:
        """Before every epoch."""

    def loss(self, c: Client, batch: Batch) -> Tensor | None:
        """A term to add to the cross-entropy."""

    def gradient(self, c: Client) -> None:
        """After the backward pass: edit ``c.grad``."""

    def end(self, c: Client) -> None:
        """After a client's last epoch."""

    def adapt(self, c: Client) -> None:
        """Before a client's own model is scored."""


class Weighting:
    """How much each client counts: one weight per client, or one per client and layer (or tensor)."""

    name: ClassVar[str]  # as registered
    fresh = False  # True if it ignores the weights before it, so it has to come first
    by = "layer"  # what the columns of two-dimensional weights stand for: "layer" or "tensor"

    def weigh(self, r: "Round", weights: Tensor) -> Tensor:
        return weights


class Server:
    """What happens to the aggregate."""

    name: ClassVar[str]  # as registered
    needs_proxy = False  # True if it learns from the server's own data

    def step(self, r: "Round") -> Tensor:
        return r.aggregate

    def evaluated(self, theta: Tensor, layout: Layout, state: dict[str, Any]) -> Tensor:
        """The parameters to evaluate, where they are not those that are broadcast."""
        return theta


class Products(NamedTuple):
    """Inner products of the clients' updates g_k = w_k - w_g and the global parameters w_g, in groups, float64.

    They are few numbers, and what is made of them are thousands of tiny steps: they are always on the CPU.
    """

    gram: Tensor  # <g_j, g_k>, (groups, clients, clients)
    inner: Tensor  # <g_k, w_g>, (groups, clients)
    square: Tensor  # <w_g, w_g>, (groups)

    def model(self) -> "Products":
        """The layers taken together: one group."""
        return Products(*(x.sum(0, keepdim=True) for x in self))


@dataclass
class Round:
    """What the server sees after one round of local training."""

    layout: Layout
    theta: Tensor  # the global parameters before the round, (P)
    buffers: Tensor  # the global buffers before the round
    thetas: Tensor  # the clients' parameters, (clients, P)
    client_buffers: Tensor  # the clients' buffers, (clients, B)
    sizes: Tensor  # samples per client
    ids: list[int]
    number: int = 1
    server_lr: float = 1.0
    context: dict[str, Any] = field(default_factory=dict)  # model, proxy, test and seed, for methods that need them
    uploads: dict[str, list] = field(default_factory=dict)  # what the clients sent along, by name
    broadcast: dict[str, Any] = field(default_factory=dict)  # what goes to the clients with the next model
    weights: Tensor | None = None  # (clients) or (clients, layers)
    aggregate: Tensor | None = None  # (P), what a server part improves on
    aggregate_buffers: Tensor | None = None  # (B), averaged like the parameters; a server part may replace them
    state: dict[str, Any] = field(default_factory=dict)  # what the current part remembers between rounds
    logs: dict[str, Any] = field(default_factory=lambda: defaultdict(dict))

    @cached_property
    def updates(self) -> Tensor:
        """g_k = w_k - w_g."""
        return self.thetas - self.theta

    @cached_property
    def products(self) -> Products:
        """What norms, distances and cosines of updates and models are made of, per layer, in one pass.

        Blocks of the updates stay in the cache and are never written out. Differences are taken before products,
        since g_k is small beside w_k; the blocks' float32 products are summed in float64.
        """
        k, layers = len(self.ids), self.layout.layers
        gram, inner, square = (self.theta.new_zeros(len(layers), *s, dtype=torch.float64) for s in ((k, k), (k,), ()))
        scratch = self.theta.new_empty(
            k * BLOCK
        )  # reused: a new block each time goes back to the system and costs more
        for i, layer in enumerate(layers):
            for start in range(layer.slice.start, layer.slice.stop, BLOCK):
                block = slice(start, min(start + BLOCK, layer.slice.stop))
                w = self.theta[block]
                g = torch.sub(self.thetas[:, block], w, out=scratch[: k * len(w)].view(k, -1))
                gram[i] += g @ g.T
                inner[i] += g @ w
                square[i] += w @ w
        few = torch.cat([x.flatten() for x in (gram, inner, square)]).cpu()  # one transfer
        parts = few.split([gram.numel(), inner.numel(), square.numel()])
        return Products(*(p.view_as(x) for p, x in zip(parts, (gram, inner, square), strict=True)))

    @property
    def samples(self) -> float:
        """How many samples all clients hold together, whether they took part or not (where known)."""
        return float(self.context.get("samples") or self.sizes.sum())

    @property
    def clients(self) -> int:
        """How many clients there are, whether they took part or not (where known)."""
        return self.context.get("clients") or len(self.ids)

    def need(self, *names: str) -> list:
        """Parts of the context that a method cannot do without."""
        if lacking := [n for n in names if self.context.get(n) is None]:
            run = ", or in a run set its proxy" if "proxy" in lacking else ""
            raise FedlibError(
                f"This method needs {' and '.join(lacking)}: pass {', '.join(f'{n}=…' for n in lacking)} to "
                f"fedlib.aggregate{run}."
            )
        return [self.context[n] for n in names]

    def sent(self, name: str) -> list:
        """What every client sent along under this name."""
        if len(self.uploads.get(name, ())) != len(self.ids):
            raise FedlibError(
                f"This method needs {name!r} of every client, which its local part sends: pass it in uploads=."
            )
        return self.uploads[name]

    def log(self, name: str, value: float | Tensor, key: str | None = None) -> None:
        """A number of this round, or one of several (``key`` is a layer, say)."""
        value = float(value)
        if key is None and not isinstance(self.logs.get(name), dict):
            self.logs[name] = value
        elif isinstance(self.logs[name], dict):
            self.logs[name][key or "model"] = value
        else:  # a number of the whole model is joined by those of its layers
            self.logs[name] = {"model": self.logs[name], key: value}

    def log_each(self, name: str, values: dict[str, Tensor]) -> None:
        """One of several numbers each, read from the device at once."""
        for key, value in zip(values, torch.stack(list(values.values())).tolist(), strict=True):
            self.log(name, value, key)


def last_layers(layout: Layout, count: int, method: str) -> list:
    """The last ``count`` layers, which ``method`` treats apart."""
    layers = layout.layers
    if count > len(layers):
        raise FedlibError(
            f"{method}(layers={count}) is more than the model has: {', '.join(layer.name for layer in layers[:8])}"
            f"{'…' * (len(layers) > 8)} are {len(layers)} layers."
        )
    return layers[len(layers) - count :]


def start_weights(kind: str, sizes: Tensor) -> Tensor:
    return sizes / sizes.sum() if kind == "size" else torch.full_like(sizes, 1 / len(sizes))


def average(r: Round, weights: Tensor, by: str = "layer") -> tuple[Tensor, Tensor]:
    """sum_k lambda_k w_k for parameters and buffers, with one lambda per client, or per client and layer or tensor.

    Buffers belong to no layer: they take a client's mean weight over the layers. They are statistics, so weights
    that do not sum to one (L-DAWA's) are normalised for them.
    """
    if weights.ndim == 1:
        return weights @ r.thetas, weights @ r.client_buffers
    if by == "layer":
        slices = [layer.slice for layer in r.layout.layers]
        mean = weights.mean(1).clamp(min=0)
        buffers = mean / mean.sum() @ r.client_buffers
        return torch.cat([w @ r.thetas[:, s] for w, s in zip(weights.T, slices, strict=True)]), buffers
    theta, buffers = torch.empty_like(r.theta), torch.empty_like(r.buffers)
    for w, e in zip(weights.T, r.layout.entries, strict=True):
        source, target = (r.client_buffers, buffers) if e.buffer else (r.thetas, theta)
        target[e.slice] = w @ source[:, e.slice]
    return theta, buffers
