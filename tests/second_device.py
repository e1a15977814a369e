"""A second device on machines without one: CPU tensors that count as lying on a card.

Inside ``with second_device() as card`` runs find CUDA. A tensor lies on the card if its memory does, so views, autograd
and torch.func work as ever and every number is the CPU's. What CUDA refuses is refused here: operations across devices,
NumPy on the card's memory, the CPU's generators, cuDNN's backward pass of an RNN in eval mode. And what slows a card
down is counted by the line of fedlib that asked for it: kernels launched, copies between host and card, and reads for
which the host waits. A copy waits too.
"""

import sys
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from fedlib.data import imagenet

aten, functorch = torch.ops.aten, torch._C._functorch
CPU, CARD = torch.device("cpu"), torch.device("cuda:0")
COPIES = {aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
ANSWERS = {  # what CUDA cannot start before it has told the host a number, such as the size of the result
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten._unique2.default,
    aten.unique_dim.default, aten.bincount.default, aten.equal.default, aten.repeat_interleave.Tensor,
}  # fmt: skip
NO_KERNEL = {"aten::_local_scalar_dense", "aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"}


class Card:
    """Which memory is the card's, and what was asked of it."""

    def __init__(self):
        self.memory: dict[int, StorageWeakRef] = {}  # a weak reference keeps the address from being given away again
        self.launches, self.copies, self.reads, self.seeded = Counter(), Counter(), Counter(), set()
        self.recording: Graph | None = None  # what a CUDA graph is made of is not done but noted
        self.depth = 0  # of calls with tensors of the card: what torch makes inside of them, it makes there

    def holds(self, tensor: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return memory_of(tensor)._cdata in self.memory

    def take(self, *tensors: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            for storage in map(memory_of, tensors):
                self.memory.setdefault(storage._cdata, StorageWeakRef(storage))
            if len(self.memory) > 20_000:
                self.memory = {k: ref for k, ref in self.memory.items() if not ref.expired()}

    @property
    def waits(self) -> int:
        """How often the host stood still."""
        return self.copies.total() + self.reads.total()


class Graph:
    """A CUDA graph: operations on fixed memory, noted once and done by ``replay``, whatever the host says then."""

    def __init__(self, card: Card):
        self.card, self.operations, self.kept = card, [], {}

    def keep(self, tensors: list[Tensor]) -> None:
        for storage in map(memory_of, tensors):
            self.kept.setdefault(storage._cdata, (storage, storage.clone()))

    @contextmanager
    def noted(self):
        self.before, self.card.recording = self.card.copies | self.card.reads, self
        try:
            yield
        finally:
            self.card.recording = None
            for storage, before in self.kept.values():
                storage.copy_(before)

    def replay(self) -> None:
        self.card.launches[place(), "replay"] += 1
        with _disable_current_modes(), torch.no_grad():
            for func, args, kwargs, out in self.operations:
                if not func.is_view:
                    again = func(*args, **kwargs)
                    for old, new in zip(tensors_in(out), tensors_in(again), strict=True):
                        old.copy_(new)


def memory_of(tensor: Tensor):
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor.untyped_storage()


def tensors_in(*things) -> list[Tensor]:
    return [t for t in tree_leaves(things) if isinstance(t, Tensor)]


def place() -> str:
    """The line of fedlib that is running."""
    frame = sys._getframe(2)
    while frame and "/fedlib/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return "/".join(Path(frame.f_code.co_filename).parts[-2:]) + f":{frame.f_lineno}" if frame else "elsewhere"


class Kernels(TorchDispatchMode):
    """Every operation, as it would reach a device."""

    def __init__(self, card: Card):
        super().__init__()
        self.card = card

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        card, kwargs = self.card, kwargs or {}
        given = tensors_in(args, kwargs)
        there = [card.holds(t) for t in given]
        if any(there):
            self.count(func, args, kwargs, given, there)
        if card.recording:
            card.recording.keep(given)
        out = func(*args, **kwargs)
        if card.recording and (any(there) or card.depth):
            card.recording.operations.append((func, args, kwargs, out))
        onto_cpu = func in COPIES and func is not aten._to_copy.default and not there[0]
        if any(there) and not onto_cpu or not given and card.depth:
            card.take(*tensors_in(out))
        return out

    def count(self, func, args, kwargs, given: list[Tensor], there: list[bool]) -> None:
        card, name = self.card, func.name().partition(".")[0]
        if any(isinstance(g, torch.Generator) for g in tree_leaves((args, kwargs))):
            raise RuntimeError(f"{name}: a generator of the CPU for a tensor of the card")
        if not all(there):
            if func in COPIES or func in INDEXED and there[0]:  # indices may come from the host, at the price of a copy
                card.copies[place(), name] += 1
            elif not scalars_of_the_host(func, args, kwargs, given, there):
                where = [f"{'card' if t else 'cpu'} {tuple(x.shape)}" for x, t in zip(given, there, strict=True)]
                raise RuntimeError(f"{name}: tensors on two devices: {', '.join(where)}")
        masked = func in INDEXED and any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1]))
        if func in ANSWERS or masked:
            card.reads[place(), name] += 1
        if card.recording:
            if (card.copies | card.reads) != card.recording.before:
                raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
        elif not func.is_view and name not in NO_KERNEL:
            card.launches[place(), name] += kernels(name, args)


def scalars_of_the_host(func, args, kwargs, given, there) -> bool:
    """Whether all that is not on the card are numbers that a kernel takes as such."""
    result = kwargs.get("out", args[0] if func._schema.is_mutable else None)
    fills = func.name().startswith(("aten::fill_", "aten::fill."))
    numbers = all(on or not t.ndim for t, on in zip(given, there, strict=True))
    onto_cpu = isinstance(result, Tensor) and not there[[t is result for t in given].index(True)]
    return numbers and (fills or torch.Tag.pointwise in func.tags) and not onto_cpu


def kernels(name: str, args) -> int:
    """One, except for lists of tensors: one for all of them only if they lie in memory alike."""
    if not name.startswith("aten::_foreach_"):
        return 1
    lists = [a for a in args if isinstance(a, list | tuple)]
    alike = all(len({t.stride() for t in row}) == 1 for row in zip(*lists, strict=True))
    return 1 if alike else len(lists[0])


class Calls(TorchFunctionMode):
    """Every call, as Python sees it: what says where a tensor is, moves it or makes one."""

    def __init__(self, card: Card):
        super().__init__()
        self.card = card

    def __torch_function__(self, func, types, args=(), kwargs=None):
        card, kwargs = self.card, dict(kwargs or {})
        x = args[0] if args and isinstance(args[0], Tensor) else None
        on_card, name = x is not None and card.holds(x), getattr(func, "__name__", "")
        if name == "__get__":  # an attribute
            told = {"device": CARD, "is_cuda": True, "is_cpu": False}.get(attribute(func)) if on_card else None
            return func(*args) if told is None else told
        if func in (Tensor.numpy, Tensor.__array__) and on_card:
            raise TypeError("can't convert a tensor of the card to numpy: use .cpu() first")
        if func is Tensor.tolist and on_card:
            card.reads[place(), "tolist"] += 1
            return func(*args)
        if func is Tensor.cpu:
            return self.move(x, CPU, {})
        if func is Tensor.to:
            target, rest = destination(card, args[1:], kwargs)
            return self.move(x, CARD if target.type == "cuda" else CPU, rest) if target else func(x, **rest)
        if name == "lstm" and on_card:
            return self.rnn(func, args, kwargs)
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            return self.make(func, args, kwargs | {"device": CPU})
        if func is Tensor.new_tensor and on_card and "device" not in kwargs:
            return self.make(func, args, kwargs)
        inside = any(card.holds(t) for t in tensors_in(args, kwargs))
        card.depth += inside
        try:
            return func(*args, **kwargs)
        finally:
            card.depth -= inside

    def move(self, x: Tensor, target: torch.device, rest: dict) -> Tensor:
        card, here = self.card, CARD if self.card.holds(x) else CPU
        if here != target:
            card.copies[place(), f"to {target.type}"] += 1
            kept, card.memory, rest = card.memory, {}, rest | {"copy": True}
            try:
                out = Tensor.to(x, CPU, **rest)
            finally:
                card.memory = kept
            if target == CARD:
                card.take(out)
            return out
        return Tensor.to(x, **rest) if rest else x

    def make(self, func, args, kwargs) -> Tensor:
        """A new tensor on the card; one made of the host's numbers is copied there."""
        card = self.card
        if kwargs.get("generator") is not None:
            raise RuntimeError(f"{func.__name__}: a generator of the CPU for a tensor of the card")
        out = func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, Tensor.new_tensor):
            if args and isinstance(args[0], Tensor) and func is torch.as_tensor and card.holds(args[0]):
                return out
            card.copies[place(), func.__name__] += 1
            out = out.clone()
        else:
            card.launches[place(), func.__name__] += 1
        card.take(out)
        return out

    def rnn(self, func, args, kwargs):
        """cuDNN's RNNs: no backward pass in eval mode, and none of second order."""
        self.card.depth += 1
        try:
            out = func(*args, **kwargs)
        finally:
            self.card.depth -= 1

        def refuse(grad):
            if not args[6]:  # whether it is in training mode
                raise RuntimeError("cudnn RNN backward can only be called in training mode")
            if torch.is_grad_enabled():
                raise RuntimeError("derivative for aten::_cudnn_rnn_backward is not implemented")

        if torch.backends.cudnn.enabled and out[0].requires_grad:
            out[0].register_hook(refuse)
        return out


def attribute(getter) -> str:
    return getattr(getattr(getter, "__self__", None), "__name__", "")


def destination(card: Card, given: tuple, kwargs: dict) -> tuple[torch.device | None, dict]:
    """Where ``Tensor.to`` moves a tensor, if anywhere, and its other arguments by name."""
    given, rest, target = list(given), dict(kwargs), kwargs.get("device")
    rest.pop("device", None)
    if given and isinstance(given[0], Tensor):
        like = given.pop(0)
        target, rest["dtype"] = CARD if card.holds(like) else CPU, like.dtype
    elif given and isinstance(given[0], str | torch.device | None):
        target = given.pop(0)
    names = ["dtype", "non_blocking", "copy"]
    rest |= zip(names if given and isinstance(given[0], torch.dtype) else names[1:], given, strict=False)
    rest.pop("non_blocking", None)
    return torch.device(target) if target is not None else None, {k: v for k, v in rest.items() if v is not None}


@contextmanager
def second_device():
    """A machine with a card; yields the ``Card``."""
    card, load, cast = Card(), torch.load, torch.autocast

    def loading(file, map_location=None, **options):
        out = load(file, map_location=CPU, **options)
        if map_location is not None and torch.device(map_location).type == "cuda":
            card.take(*tensors_in(out))
        return out

    class Autocast(cast):
        def __init__(self, device_type, *args, **kwargs):
            super().__init__("cpu", *args, **kwargs)  # its rules are those of the CPU

    def state(device="cuda"):
        card.seeded.add(torch.device(device))
        return torch.get_rng_state()

    cuda = dict(
        is_available=lambda: True, device_count=lambda: 2, get_rng_state=state,
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
        get_device_name=lambda *_: "second device", Stream=mock.Mock, stream=lambda aside: nullcontext(),
        current_stream=mock.Mock, CUDAGraph=lambda: Graph(card), graph=Graph.noted,
    )  # fmt: skip
    with ExitStack() as pretended:
        pretended.enter_context(mock.patch.multiple(torch, load=loading, autocast=Autocast))
        pretended.enter_context(mock.patch.multiple(torch.cuda, **cuda))
        pretended.enter_context(mock.patch.dict("os.environ"))
        pretended.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
        imagenet.cache_clear()  # it may lie on an earlier card
        with Kernels(card), Calls(card):
            yield card
