"""Everything is a vector: a model's parameters are views into one flat tensor, its buffers into another.

``Layout`` knows which slice is which tensor, which slices make a layer (one per module) and which layer is
the classifier. It alone converts memory formats: a 4-d weight may be stored channels-last inside its slice.
"""

import math
import mmap
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")

Device = torch.device | str | None


@dataclass(frozen=True)
class Entry:
    """One tensor of a state_dict: its slice of the parameter or of the buffer vector."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    buffer: bool
    slice: slice
    module: str
    channels_last: bool = False

    def view(self, vector: Tensor) -> Tensor:
        """This tensor as a view of the last dimension of ``vector`` (leading dimensions are kept)."""
        part = vector[..., self.slice]
        lead = part.shape[:-1]
        if not self.channels_last:
            return part.view(lead + self.shape)
        o, i, *kernel = self.shape
        return part.view(*lead, o, *kernel, i).movedim(-1, len(lead) + 1)

    def flat(self, tensor: Tensor, device: Device = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """The other way: this tensor's numbers in the order of its slice, without a copy where there is a choice."""
        tensor = tensor.to(device, dtype)
        return (tensor.movedim(1, -1) if self.channels_last else tensor).reshape(-1)


@dataclass(frozen=True)
class Layer:
    """The parameters of one module: a contiguous slice of theta."""

    name: str
    slice: slice
    entries: tuple[Entry, ...]


class Layout:
    """Where each tensor of a model lives in its two flat vectors."""

    def __init__(self, tensors: list[tuple[str, torch.Size, torch.dtype, bool]], channels_last: bool = False):
        self.entries: list[Entry] = []
        bare = not any("." in name for name, *_ in tensors)  # a single nn.Linear: one layer, not two
        ends = {False: 0, True: 0}  # the buffer vector and the parameter vector grow apart
        for name, shape, dtype, buffer in tensors:
            start = ends[buffer]
            ends[buffer] = start + math.prod(shape)
            last = channels_last and not buffer and len(shape) == 4
            module = name.rpartition(".")[0] or ("layer" if bare else name)
            self.entries.append(Entry(name, shape, dtype, buffer, slice(start, ends[buffer]), module, last))
        self.size, self.buffer_size = ends[False], ends[True]

    @classmethod
    def of_model(cls, model: nn.Module, channels_last: bool = False) -> "Layout":
        parameters = dict(model.named_parameters())
        state = model.state_dict()
        return cls([(n, t.shape, t.dtype, n not in parameters) for n, t in state.items()], channels_last)

    @classmethod
    def of_state(cls, state: dict[str, Tensor]) -> "Layout":
        """From a plain state_dict, where only the names tell BatchNorm's statistics from parameters."""

        def buffer(name: str, tensor: Tensor) -> bool:
            return not tensor.is_floating_point() or name.endswith(BUFFERS)

        return cls([(n, t.shape, t.dtype, buffer(n, t)) for n, t in state.items()])

    @cached_property
    def parameters(self) -> list[Entry]:
        return [e for e in self.entries if not e.buffer]

    @cached_property
    def weights(self) -> list[Entry]:
        """The weight matrices and kernels: parameters with an input and an output dimension."""
        return [e for e in self.parameters if len(e.shape) >= 2]

    @cached_property
    def layers(self) -> list[Layer]:
        """One layer per module that holds parameters, in the order of the state_dict."""
        groups: dict[str, list[Entry]] = {}
        for e in self.parameters:
            groups.setdefault(e.module, []).append(e)
        return [Layer(n, slice(es[0].slice.start, es[-1].slice.stop), tuple(es)) for n, es in groups.items()]

    @cached_property
    def classifier(self) -> Layer:
        return next((x for x in self.layers if x.name == "classifier"), self.layers[-1])

    def pack(
        self, state: dict[str, Tensor], device: Device = None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """A state_dict as (theta, buffers); counters become floating-point numbers."""
        thetas, buffers = self.pack_all([state], device, dtype)
        return thetas[0], buffers[0]

    @torch.no_grad()
    def pack_all(
        self,
        states: list[dict[str, Tensor]],
        device: Device = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:
        """A cohort's state_dicts as two matrices, one row per state_dict."""
        thetas = matrix(len(states), self.size, device, dtype)
        buffers = matrix(len(states), self.buffer_size, device, dtype)
        for k, state in enumerate(states):
            for rows, buffer in ((thetas, False), (buffers, True)):
                flat = [e.flat(state[e.name], device, dtype) for e in self.entries if e.buffer == buffer]
                if flat:
                    torch.cat(flat, out=rows[k])
        return thetas, buffers

    def unpack(self, theta: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The state_dict back, in the original dtypes and contiguous; what is no floating point is rounded."""

        def tensor(e: Entry) -> Tensor:
            values = e.view(buffers if e.buffer else theta)
            values = values if e.dtype.is_floating_point else values.round()  # a mean of counters: 2.9999998 is 3
            return values.to(e.dtype).clone(memory_format=torch.contiguous_format)

        return {e.name: tensor(e) for e in self.entries}


def matrix(rows: int, columns: int, device: Device = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """An empty matrix; a large one on huge pages, since touching new memory page by page costs more than filling it."""
    size = rows * columns * dtype.itemsize
    if size < 1 << 24 or torch.device(device or "cpu").type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(rows, columns, device=device, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(rows, columns)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x in the memory format of x; plain indexing would lose channels_last."""
    if x.ndim == 4 and not x.is_contiguous():
        return x.permute(0, 2, 3, 1)[index].permute(0, 3, 1, 2)
    return x[index]


class FlatModel:
    """A module whose parameters, gradients and buffers are views into ``theta``, ``grad`` and ``buffers``."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        dtype: torch.dtype = torch.float32,
    ):
        self.model = model.to(device)
        self.layout = Layout.of_model(model, channels_last)
        self.theta, self.buffers = self.layout.pack(model.state_dict(), device, dtype)
        self.grad = torch.zeros_like(self.theta)
        owners = dict(self.model.named_modules())
        for e in self.layout.entries:
            module, _, name = e.name.rpartition(".")
            if e.buffer and not e.dtype.is_floating_point and not e.name.endswith(BUFFERS):
                continue  # positions or masks of a model's own, which nothing averages: they index, so stay integers
            if e.buffer:
                # .data: views of one tensor share a version counter, and the second BatchNorm's in-place update
                # would make autograd believe that the first one's statistics had been overwritten.
                owners[module]._buffers[name] = e.view(self.buffers).data
            else:
                parameter = owners[module]._parameters[name]
                parameter.data = e.view(self.theta)
                parameter.grad = e.view(self.grad)
        self.parameters = list(self.model.parameters())
        self.gradients: list[Any] = [p.grad for p in self.parameters]

    def load(self, theta: Tensor, buffers: Tensor) -> None:
        self.theta.copy_(theta)
        self.buffers.copy_(buffers)

    def backward(self, loss: Tensor) -> None:
        """The gradient of ``loss`` into ``grad``: one copy; zeroing and accumulating would pass over it thrice."""
        torch._foreach_copy_(self.gradients, torch.autograd.grad(loss, self.parameters, materialize_grads=True))
