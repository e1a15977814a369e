"""FedALA: adaptive local aggregation (Zhang et al., AAAI 2023)."""

from typing import Literal

import torch
import torch.nn.functional as F

from fedlib.algorithms.base import Client, Local, last_layers, register
from fedlib.core.errors import FedlibError
from fedlib.core.layout import gather
from fedlib.core.random import stream
from fedlib.models.base import eval_for_gradients

WINDOW, CALM, MOST = 10, 0.1, 100  # converged: ten losses in a row deviate by less than 0.1; we stop at 100 passes


@register("fedala")
class FedALA(Local):
    """A client starts from w_k + (w_g - w_k) * W in its last ``layers`` layers, and from w_g before them.

    w_k is its own model of last time and W, within [0, 1], is learned on its own data: W <- W - eta grad * (w_g - w_k),
    where grad is the local loss's at that start. W is kept; it is learned until it settles at first, then in one
    pass a round, on a random ``sample`` of the data. ``released`` (FedDW's code): always one pass, on all data.
    The model is in eval mode meanwhile. 0 layers are FedAvg, scored by the clients' models.
    """

    layers: int = 1
    eta: float = 1.0
    sample: float | None = None  # 0.8, or 1 as released
    variant: Literal["paper", "released"] = "paper"
    keeps = True

    def __post_init__(self):
        if self.layers < 0 or self.eta < 0 or not 0 < (self.sample or 1) <= 1:
            raise FedlibError("fedala(…) needs layers >= 0, eta >= 0 and a sample in (0, 1].")

    def begin(self, c: Client) -> None:
        adapted = last_layers(c.layout, self.layers, "fedala")
        if "model" not in c.state or not adapted:
            return
        top = slice(adapted[0].slice.start, c.layout.size)
        own, towards = c.state["model"][0][top], c.anchor[top] - c.state["model"][0][top]
        passes = MOST if self.variant == "paper" and "fedala" not in c.state else 1
        w, batches, losses = c.state.setdefault("fedala", torch.ones_like(own)), self.batches(c), []
        eval_for_gradients(c.model)
        c.theta[top] = own + towards * w
        for _ in range(passes):
            losses.append(torch.zeros((), dtype=torch.float64, device=c.theta.device))
            for x, y in batches:
                c.grad.zero_()
                loss = F.cross_entropy(c.model(x), y)
                loss.backward()
                w.sub_(c.grad[top] * towards, alpha=self.eta).clamp_(0, 1)
                c.theta[top] = own + towards * w
                losses[-1] += loss.detach().double() / len(batches)
            if len(losses) > WINDOW and torch.stack(losses[-WINDOW:]).float().std() < CALM:
                break
        c.model.train()
        c.log("ala_weight", w.mean())

    def batches(self, c: Client) -> list:
        """This round's sample of the client's data."""
        x, y = c.data
        share = self.sample or (1.0 if self.variant == "released" else 0.8)
        drawn = stream(c.spec.seed, "ala", c.round, c.id).permutation(len(y))[: max(1, round(share * len(y)))]
        drawn = torch.from_numpy(drawn).to(y.device).split(c.spec.batch_size)
        return [(gather(x, index), y[index]) for index in drawn]
