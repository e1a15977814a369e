"""FedLWS: adaptive layer-wise weight shrinking (Shi et al., ICLR 2025)."""

import re
from typing import Literal

import torch
from torch import Tensor

from fedlib.algorithms.base import Round, Server, register
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Entry, Layout

TRANSFORMER = re.compile(r"\b(?:blocks|transformer\.layers)\.(\d+)\.")


@register("lws")
class LWS(Server):
    """Shrink each layer of the aggregate by its own factor gamma (Eqs. 4, 8, 9; Algorithm 1, lines 12 to 14).

    A layer is a module; BatchNorm's statistics are averaged, not shrunk. The released code instead cuts the
    state_dict after every key containing "bias", so a BatchNorm's statistics and its batch counter enter the norms
    of the NEXT group and are shrunk with it, and it keeps beta * tau within [0.01, 0.2] (its beta is 0.03).
    """

    beta: float = 0.01  # Eq. 6; the paper has 0.1 for CNNs and 0.01 for ResNets
    granularity: Literal["layer", "model"] = "layer"  # model: one gamma for all (Eq. 7), never released
    terms: Literal["both", "reg", "opt"] = "both"  # which terms of Eq. 3 feel gamma (Table 10)
    clamp: tuple | None = None  # bounds on beta * tau; None is none, or the released code's
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self):
        if not 0 <= self.beta < float("inf"):
            raise FedlibError(f"lws(beta=…) must not be negative; got {self.beta}.")
        if self.clamp is not None and not (len(self.clamp) == 2 and 0 <= self.clamp[0] <= self.clamp[1]):
            raise FedlibError(f"lws(clamp=…) is a pair (low, high) with 0 <= low <= high; got {self.clamp}.")

    def step(self, r: Round) -> Tensor:
        low, high = self.clamp or ((0.01, 0.2) if self.variant == "released" else (0.0, float("inf")))
        theta, buffers, groups, norms = r.aggregate.clone(), r.aggregate_buffers.clone(), self.groups(r.layout), []
        for _, s, b in groups:
            # g_k - g_mean is w_k - w_mean: the global model cancels.
            tau = torch.hypot(spread(r.thetas[:, s]), spread(r.client_buffers[:, b])).mean()  # Eq. 4
            w = torch.hypot(r.theta[s].norm(), r.buffers[b].norm())
            step = torch.hypot((theta[s] - r.theta[s]).norm(), (buffers[b] - r.buffers[b]).norm())  # ||eta_g g_g||
            norms += tau, w, step
        norms = torch.stack(norms).cpu().view(-1, 3)  # one transfer for all groups
        for (name, s, b), (tau, w, step) in zip(groups, norms, strict=True):
            strength = (self.beta * tau).clamp(low, high)
            gamma = float(w / (strength * step + w)) if w > 0 else 1.0  # Eq. 8; nothing to balance around zero
            self.shrink(theta[s], r.theta[s], gamma)  # Eq. 9
            self.shrink(buffers[b], r.buffers[b], gamma)
            r.log("gamma", gamma, key=name)
            r.log("tau", tau, key=name)
        r.aggregate_buffers = buffers
        return theta

    def shrink(self, new: Tensor, old: Tensor, gamma: float) -> None:
        """Eq. 3 in place: new = old + step; gamma scales the step (opt), the old weights (reg) or both."""
        scaled_part = {"both": new, "opt": new - old, "reg": old}[self.terms]
        new.sub_(scaled_part, alpha=1 - gamma)

    def groups(self, layout: Layout) -> list[tuple[str, slice, slice]]:
        """What shares one gamma: (name, slice of the parameters, slice of the buffers)."""
        nothing = slice(0, 0)
        if self.variant == "released":
            runs = [layout.entries] if self.granularity == "model" else released_runs(layout)
            return [(title(run), span(run, buffer=False), span(run, buffer=True)) for run in runs]
        if self.granularity == "model":
            return [("model", slice(0, layout.size), nothing)]
        return [(layer.name, layer.slice, nothing) for layer in layout.layers]


def spread(w: Tensor) -> Tensor:
    """||w_k - w_mean|| for every row of w, in blocks of columns that stay in the cache."""
    squares = w.new_zeros(len(w))
    for block in w.split(1 << 15, dim=1):
        squares += (block - block.mean(0)).square_().sum(1)
    return squares.sqrt()


def released_runs(layout: Layout) -> list[list[Entry]]:
    """Runs of the state_dict that end with a bias; a transformer's blocks are one run each, embeddings in the first."""
    entries = layout.entries
    blocks = {m[1]: i for i, e in enumerate(entries) if (m := TRANSFORMER.search(e.name))}  # the last entry of each
    after = max(blocks.values(), default=-1)
    ends = [*blocks.values(), *(i for i, e in enumerate(entries) if i > after and "bias" in e.name)]
    starts = [0, *(i + 1 for i in ends)]
    runs = [entries[i:j] for i, j in zip(starts, [*starts[1:], None], strict=True)]
    return [run for run in runs if run]


def span(run: list[Entry], buffer: bool) -> slice:
    """Neighbours in the state_dict are neighbours in their vector."""
    slices = [e.slice for e in run if e.buffer == buffer]
    return slice(slices[0].start, slices[-1].stop) if slices else slice(0, 0)


def title(run: list[Entry]) -> str:
    """The module of a run's first parameter."""
    first = next((e for e in run if not e.buffer), run[0])
    return first.name.rpartition(".")[0] or first.name
