"""An algorithm is parts joined by "+", such as ``"fedprox(mu=0.01)+lws(beta=0.1)"``: its written form.

Local parts change training, each adding to the others; weightings decide how clients are averaged, each starting from
the weights before it; server parts act on the average, left to right.
"""

import torch
from torch import Tensor

from fedlib.algorithms.base import ALGORITHMS, Local, Round, Server, Weighting, average, start_weights
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Device, Layout
from fedlib.core.registry import canonical


class Algorithm:
    """The parts a written form names, in the order local, weighting, server."""

    def __init__(self, text: str):
        self.parts = ALGORITHMS.make_all(text)
        if len({p.name for p in self.parts}) < len(self.parts):
            raise FedlibError(f"{text!r} names a part twice; every part may appear once.")
        self.locals = [p for p in self.parts if isinstance(p, Local)]
        self.weightings = [p for p in self.parts if isinstance(p, Weighting)]
        self.servers = [p for p in self.parts if isinstance(p, Server)]
        for later in self.weightings[1:]:
            if later.fresh:
                raise FedlibError(
                    f"{later.name!r} decides the weights by itself and would throw away those of "
                    f"{self.weightings[0].name!r}; put it first or leave one of them out."
                )
        if len(keeping := [p.name for p in self.locals if p.keeps]) > 1:
            raise FedlibError(
                f"{keeping[0]!r} and {keeping[1]!r} both say which part of a model is the client's own; leave one out."
            )
        for part in self.locals:
            part.check(self)
            idle = [p.name for p in self.weightings + self.servers if not isinstance(p, Local)]
            if idle and not part.shares:
                raise FedlibError(f"{part.name!r} averages no models: {idle[0]!r} has nothing to act on; leave it out.")

    def __str__(self) -> str:
        """Canonical: the averaging that would be implied anyway is named only where nothing else is."""
        implied = "fedavg" if self.start == "size" else "fedavg(weights=uniform)"
        names = [canonical(p) for p in self.locals + self.weightings]
        names = [n for n in names if n != implied] or [implied]
        return "+".join(names + [canonical(p) for p in self.servers if p not in self.locals])

    @property
    def start(self) -> str:
        """The weights before any weighting: by size, unless a local method says otherwise."""
        return next((p.weights for p in self.locals if p.weights), "size")

    @property
    def evaluation(self) -> str:
        """What is scored unless the run says otherwise: the global model, or all clients' own."""
        return "clients" if any(p.keeps or p.adapts for p in self.locals) else "global"

    @property
    def whole(self) -> bool:
        """Whether the global model is complete: no part of it stays with the clients."""
        return all(p.shares and type(p).personal is Local.personal for p in self.locals)

    def personal(self, layout: Layout, device: Device = None) -> tuple[Tensor, Tensor] | None:
        """Masks of the parameters and of the buffers that stay with the clients; None if all are shared."""
        if not (modules := set().union(*(p.personal(layout) for p in self.locals))):
            return None
        masks = [torch.zeros(n, dtype=torch.bool, device=device) for n in (layout.size, layout.buffer_size)]
        for e in layout.entries:
            masks[e.buffer][e.slice] = e.module in modules
        return tuple(masks)

    def aggregate(self, r: Round, memory: dict[str, dict]) -> tuple[Tensor, Tensor]:
        """The new global (theta, buffers); ``memory`` keeps what parts remember, by part name."""
        personal = self.personal(r.layout, r.theta.device)
        if personal:  # is not sent: to the server these did not move
            r.thetas.copy_(torch.where(personal[0], r.theta, r.thetas))
            r.client_buffers.copy_(torch.where(personal[1], r.buffers, r.client_buffers))
        weights = start_weights(self.start, r.sizes)
        for part in self.weightings:
            r.state = memory.setdefault(part.name, {})
            weights = part.weigh(r, weights)
            if weights.ndim not in (1, 2) or len(weights) != len(r.ids):
                raise FedlibError(
                    f"{part.name!r} returned weights of shape {tuple(weights.shape)} for {len(r.ids)} clients; one per "
                    "client, or one per client and layer, is what a weighting returns."
                )
        r.weights = weights
        by = self.weightings[-1].by if self.weightings else "layer"
        r.aggregate, r.aggregate_buffers = average(r, weights, by)
        if r.server_lr != 1.0:
            r.aggregate = torch.lerp(r.theta, r.aggregate, r.server_lr)
        for part in self.servers:
            r.state = memory.setdefault(part.name, {})
            r.aggregate = part.step(r)
        if personal:
            r.aggregate = torch.where(personal[0], r.theta, r.aggregate)
            r.aggregate_buffers = torch.where(personal[1], r.buffers, r.aggregate_buffers)
        return r.aggregate, r.aggregate_buffers

    def evaluated(self, theta: Tensor, layout: Layout, memory: dict[str, dict]) -> Tensor:
        """What stands for the global ``theta`` in an evaluation."""
        for part in self.servers:
            theta = part.evaluated(theta, layout, memory.get(part.name, {}))
        return theta


ALGORITHMS.compose = Algorithm
