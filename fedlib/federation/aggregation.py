"""Any aggregation rule of the workbook on your own clients' plain state_dicts, in one line."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedlib.algorithms import Algorithm, Round
from fedlib.core.errors import FedlibError
from fedlib.core.layout import FlatModel, Layout

CONTEXT = ("model", "proxy", "test", "counts", "samples", "clients", "seed", "uploads")


@dataclass
class Aggregation:
    """The new global model and how it came about."""

    state_dict: dict[str, Tensor]
    weights: Tensor  # per client, or per client and layer
    factors: dict  # what the server parts logged, such as gamma per layer
    state: dict  # pass back as ``state=`` next round where a method remembers


def aggregate(
    algorithm: str,
    global_state: dict[str, Tensor],
    client_states: list[dict[str, Tensor]],
    sizes: list[int],
    *,
    state: dict | None = None,
    ids: list[int] | None = None,
    round: int = 1,
    server_lr: float = 1.0,
    **context,
) -> Aggregation:
    """Aggregate clients' state_dicts by the weighting and server parts of a written form.

    ``ids`` name the clients where a method remembers them (by default their position); ``context`` carries what a
    method needs besides: ``model=`` a module of the same architecture (copied, not touched), ``proxy=(x, y)`` and
    ``test=(x, y)`` tensors, ``counts=`` samples per client and class, ``samples=`` of all clients together and
    ``clients=``, their number, where only some take part, ``seed=`` for the order of server batches,
    ``uploads=`` lists by name.
    """
    if odd := sorted(set(context) - set(CONTEXT)):
        raise FedlibError(f"fedlib.aggregate takes no {', '.join(odd)}; besides its arguments: {', '.join(CONTEXT)}.")
    if odd := [s for s in (global_state, *client_states) if not isinstance(s, Mapping)]:
        raise FedlibError(f"Models are given as state_dicts; got {type(odd[0]).__name__}: pass model.state_dict().")
    if not client_states or len(client_states) != len(sizes):
        raise FedlibError(f"Got {len(client_states)} client states and {len(sizes)} sizes; give one size per client.")
    if min(sizes) < 0 or sum(sizes) <= 0:
        raise FedlibError("Sizes are sample counts: none negative, at least one positive.")
    layout = Layout.of_state(global_state)
    for k, client in enumerate(client_states):
        if client.keys() != global_state.keys():
            odd = sorted(client.keys() ^ global_state.keys())[:3]
            raise FedlibError(f"Client {k}'s state_dict differs from the global one at {', '.join(odd)}.")
        if odd := [n for n, t in global_state.items() if client[n].shape != t.shape]:
            raise FedlibError(f"Client {k}'s {odd[0]} has shape {tuple(client[odd[0]].shape)}, the global one another.")
    device = next(iter(global_state.values())).device
    context = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, context)
    theta, buffers = layout.pack(global_state, device)
    thetas, client_buffers = layout.pack_all(client_states, device)
    ids = list(range(len(sizes))) if ids is None else list(ids)
    if lost := [k for k, total in zip(ids, thetas.sum(1) + client_buffers.sum(1), strict=True) if not total.isfinite()]:
        raise FedlibError(f"Client {lost[0]} has diverged: its model is not finite. Aggregate without it.")
    if "model" in context:
        context["model"] = FlatModel(copy.deepcopy(context["model"]), device)
    uploads = context.pop("uploads", {})
    r = Round(
        layout, theta, buffers, thetas, client_buffers, torch.tensor(sizes, dtype=torch.float32, device=device),
        ids, round, server_lr, {"seed": 0, **context}, uploads,
    )  # fmt: skip
    memory = {} if state is None else state
    theta, buffers = Algorithm(algorithm).aggregate(r, memory)
    return Aggregation(layout.unpack(theta, buffers), r.weights, dict(r.logs), memory)
