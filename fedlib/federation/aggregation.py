"""Any aggregation rule of the workbook on your own clients' plain state_dicts, in one line."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedlib.algorithms import Algorithm, Round
from fedlib.core.errors import FedlibError, quoted
from fedlib.core.layout import FlatModel, Layout

CONTEXT = ("model", "proxy", "test", "counts", "samples", "clients", "seed", "uploads")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


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
    client_states: Iterable[dict[str, Tensor]],
    sizes: Sequence[float] | Tensor,
    *,
    state: dict | None = None,
    ids: list[int] | None = None,
    round: int = 1,
    server_lr: float = 1.0,
    trained: bool = False,
    **context: Any,
) -> Aggregation:
    """Aggregate clients' state_dicts by the weighting and server parts of a written form; no argument is changed.

    ``ids`` name the clients where a method remembers them (by default their position). ``trained=True`` says that your
    clients trained as the form's local parts prescribe (fedprox, feddyn …): only they can. ``context`` carries what a
    method needs besides: ``model=`` a module of the same architecture (copied, not touched), ``proxy=(x, y)`` and
    ``test=(x, y)`` tensors, ``counts=`` samples per client and class, ``samples=`` of all clients together and
    ``clients=``, their number, where only some take part, ``seed=`` for the order of server batches,
    ``uploads=`` lists by name of what the local parts sent (which implies trained=True).

    Models with float64 in them are averaged in float64, others in float32. Integers that all clients agree on stay as
    they are, others are averaged and rounded. Whatever is not finite, given or made, is an error.
    """
    rule = Algorithm(algorithm)
    if not (trained or "uploads" in context):
        refuse_local(
            rule, "which only they can: train that way and pass trained=True, or name weightings and server parts only"
        )
    if odd := sorted(set(context) - set(CONTEXT)):
        raise FedlibError(f"fedlib.aggregate takes no {', '.join(odd)}; besides its arguments: {', '.join(CONTEXT)}.")
    if not isinstance(client_states, Iterable):
        raise FedlibError(f"client_states is a list of state_dicts; got {type(client_states).__name__}.")
    client_states = list(client_states)
    check_states(global_state, client_states)
    floats = [t.dtype for s in (global_state, *client_states) for t in s.values() if t.is_floating_point()]
    dtype = torch.float64 if torch.float64 in floats else torch.float32
    device = next(iter(global_state.values())).device
    sizes = checked_sizes(sizes, len(client_states)).to(device, dtype)
    ids = checked_ids(ids, len(sizes))
    if not isinstance(server_lr, Real) or not abs(server_lr) < 1e30 or not isinstance(round, Integral):
        raise FedlibError(f"server_lr is a finite number and round an integer; got {server_lr!r} and {round!r}.")
    if not isinstance(state, dict | None):
        raise FedlibError(f"state= is the .state of an earlier result, a dict; got {type(state).__name__}.")
    check_memory(rule, state or {})
    context = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, context)
    layout = Layout.of_state(global_state)
    theta, buffers = layout.pack(global_state, device, dtype)
    thetas, client_buffers = layout.pack_all(client_states, device, dtype)
    if not finite(theta, buffers):
        raise FedlibError("The global model is not finite: it has diverged. Go on from an earlier one.")
    if lost := [k for k, *rows in zip(ids, thetas, client_buffers, strict=True) if not finite(*rows)]:
        raise FedlibError(f"Client {lost[0]} has diverged: its model is not finite. Aggregate without it.")
    if "model" in context:
        if not isinstance(model := context["model"], nn.Module):
            raise FedlibError(f"model= is a module of the clients' architecture; got {type(model).__name__}.")
        context["model"] = FlatModel(copy.deepcopy(model), device, dtype=dtype)
    uploads = copy.deepcopy(context.pop("uploads", {}))
    r = Round(
        layout, theta, buffers, thetas, client_buffers, sizes, ids, round, server_lr, {"seed": 0, **context}, uploads,
    )  # fmt: skip
    memory = copy.deepcopy(state or {})
    result = layout.unpack(*rule.aggregate(r, memory))
    result |= integers(result, rule, layout, global_state, client_states, r.weights)
    if not finite([t for t in result.values() if t.is_floating_point()], r.weights, memory):
        raise FedlibError(
            f"{algorithm} made something that is not finite of models that are: a parameter, a size, server_lr or what "
            "was passed besides is too large or not finite itself."
        )
    return Aggregation(result, r.weights, dict(r.logs), memory)


def refuse_local(rule: Algorithm, advice: str) -> None:
    """Where only the server's step is done, a part that changes how clients train is not skipped without a word."""
    if rule.locals:
        raise FedlibError(f"{rule.locals[0].name!r} changes how clients train, {advice}.")


def check_memory(rule: Algorithm, state: Mapping) -> None:
    """Raise unless a state is what parts of this rule remember: another's would be passed over without a word."""
    known = [part.name for part in rule.weightings + rule.servers]
    for name, kept in state.items():
        if name not in known or not isinstance(kept, dict):
            raise FedlibError(
                "state= is the .state of an earlier result of the same rule: a dict for "
                f"{' and '.join(known) or 'none'} of its parts; got {type(kept).__name__} for {quoted(name)}. "
                "Leave state= out to begin anew."
            )


def check_states(global_state: Mapping, client_states: Sequence[Mapping]) -> None:
    """Raise unless all are state_dicts of the same tensors, of kinds that can be averaged."""
    named = [("The global", global_state), *((f"Client {k}'s", state) for k, state in enumerate(client_states))]
    if others := [state for _, state in named if not isinstance(state, Mapping)]:
        raise FedlibError(f"Models are given as state_dicts; got {type(others[0]).__name__}: pass model.state_dict().")
    for whose, state in named:
        if odd := sorted(map(str, state.keys() ^ global_state.keys()))[:3]:
            raise FedlibError(f"{whose} state_dict differs from the global one at {', '.join(odd)}.")
        for name, tensor in state.items():
            if (wrong := misfit(tensor, global_state[name])) is not None:
                raise FedlibError(f"{whose} {name} is {wrong}.")
    if not any(t.is_floating_point() and t.numel() for t in global_state.values()):
        raise FedlibError("The global state_dict holds no parameters: pass the state_dict() of a model that has some.")


def misfit(tensor: Any, target: Tensor) -> str | None:
    """What is wrong with a client's tensor beside the global one, or with the global one beside itself."""
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__}; a state_dict holds torch tensors"
    if tensor.layout is not torch.strided or not (tensor.dtype in FLOATS or tensor.dtype in INTEGERS):
        return f"of {tensor.dtype} ({tensor.layout}); dense real tensors can be averaged"
    if tensor.shape != target.shape:
        return f"of shape {tuple(tensor.shape)} and the global one of {tuple(target.shape)}"
    floats = tensor.dtype in FLOATS and target.dtype in FLOATS
    if (torch.promote_types(tensor.dtype, target.dtype) if floats else tensor.dtype) != target.dtype:
        return f"of {tensor.dtype} and the global one of {target.dtype}, which cannot hold it: convert one of them"
    return None


def checked_sizes(sizes: Any, clients: int) -> Tensor:
    """Sample counts (or shares), one per client."""
    try:
        found = torch.as_tensor(sizes, dtype=torch.float64).cpu()
        single = found.float()  # what most models are averaged in
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = single = torch.full((clients,), math.nan)
    if not clients or found.shape != (clients,):
        raise FedlibError(f"Got {clients} client states and {found.numel()} sizes; give one size per client.")
    if not (single >= 0).all() or not 0 < single.sum() < math.inf:
        raise FedlibError("Sizes are sample counts: finite numbers, none negative, at least one positive.")
    return found


def checked_ids(ids: Any, clients: int) -> list:
    """Names of the clients, by default their positions."""
    ids = range(clients) if ids is None else ids.tolist() if hasattr(ids, "tolist") else ids
    ids = list(ids) if isinstance(ids, Iterable) else [ids]
    if not all(isinstance(k, Integral | str) for k in ids) or not len(ids) == len(set(ids)) == clients:
        raise FedlibError(f"ids= has one integer or text for each of the {clients} clients, no two alike; got {ids}.")
    return ids


def finite(*things: Any) -> bool:
    """Whether all numbers in tensors, dicts and lists are. A tensor's sum is quick and finite only if all of it is."""
    for thing in things:
        if isinstance(thing, Tensor):
            good = bool(thing.sum().isfinite()) or bool(thing.isfinite().all())  # a sum may overflow by itself
        elif isinstance(thing, Mapping | list | tuple):
            good = finite(*(thing.values() if isinstance(thing, Mapping) else thing))
        else:
            good = not isinstance(thing, float) or math.isfinite(thing)
        if not good:
            return False
    return True


def integers(
    result: dict, rule: Algorithm, layout: Layout, global_state: Mapping, client_states: list, weights: Tensor
) -> dict[str, Tensor]:
    """What is not floating point: as it is where all clients agree, else the weighted mean in float64, rounded.

    In numpy, which has all kinds of integers. What stays with the clients is the global model's, as always, and
    BatchNorm's counters are the rule's where it made statistics of its own (law with bn=proxy).
    """
    share = weights.double().reshape(len(client_states), -1).mean(1).clamp(min=0).cpu().numpy()
    share = share / share.sum() if share.sum() > 0 else np.full(len(share), 1 / len(share))
    own = set().union(*(part.personal(layout) for part in rule.locals))
    found = {}
    for entry in layout.entries:
        if entry.dtype.is_floating_point:
            continue
        if entry.module in own:
            found[entry.name] = global_state[entry.name].clone()
            continue
        values = np.stack([state[entry.name].detach().cpu().numpy() for state in client_states])
        low, high = values.min(0), values.max(0)
        mean = np.rint(np.tensordot(share, values.astype(np.float64), 1))
        made = result[entry.name].cpu().numpy()
        if entry.name.endswith("num_batches_tracked") and (abs(made - mean) > 1 + 1e-6 * abs(mean)).any():
            continue
        between = (mean > low) & (mean < high)  # rounding never carries a mean past its smallest or largest part
        values = np.where(between, np.where(between, mean, 0).astype(values.dtype), np.where(mean >= high, high, low))
        found[entry.name] = torch.from_numpy(values).to(global_state[entry.name].device)
    return found
