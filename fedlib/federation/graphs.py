"""A training step as one launch: recorded once as a CUDA graph, replayed for every full batch of every client.

Off unless FEDLIB_CUDA_GRAPHS=1, until somebody has measured it on a card (benchmarks/gpu.py does). A recorded step
reads and writes the same memory whenever it is replayed, which suits flat vectors, and nothing in it may ask the host.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedlib.core import environment
from fedlib.core.layout import FlatModel
from fedlib.core.optimizers import SGD
from fedlib.core.spec import RunSpec

WARM_UP = 3  # steps before the recording, in which libraries choose their kernels and take their memory


def can_record(spec: RunSpec, parts: list, optimizer: Any, cuda: bool) -> bool:
    """Plain local training whose step is the same from client to client: Adam counts its steps on the host."""
    plain = not parts and not spec.keep_optimizer and spec.precision != "bfloat16"
    return cuda and environment.cuda_graphs() and plain and isinstance(optimizer, SGD)


class RecordedStep:
    """Does ``step(x, y)``, which trains ``flat`` and returns the loss, by replaying it."""

    def __init__(self, flat: FlatModel, moments: dict[str, Tensor]):
        self.vectors = [flat.theta, flat.grad, flat.buffers, *moments.values()]
        self.recorded: tuple[torch.Size, float] | None = None
        self.random = False

    def __call__(self, step: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, lr: float) -> Tensor:
        if self.recorded != (x.shape, lr):
            self.record(step, x, y)
            self.recorded = x.shape, lr
        if self.random:
            return step(x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss

    def record(self, step: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> None:
        """Record the step on memory of its own for the batch, and leave the model as it was. A step that draws random
        numbers, for dropout, is not recorded: a replay would have to draw what the step itself would have."""
        before, state = [v.clone() for v in self.vectors], torch.cuda.get_rng_state()
        self.x, self.y, self.step = x.clone(), y.clone(), step  # which holds other memory that the graph reads
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                step(self.x, self.y)
        torch.cuda.current_stream().wait_stream(aside)
        self.random = not torch.equal(state, torch.cuda.get_rng_state())
        torch.cuda.set_rng_state(state)
        if not self.random:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = step(self.x, self.y)
        for vector, old in zip(self.vectors, before, strict=True):
            vector.copy_(old)
