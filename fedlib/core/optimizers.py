"""Local optimisers as vector operations on (theta, grad); the same update rules as torch.optim."""

import math

import torch
from torch import Tensor

from fedlib.core.errors import FedlibError
from fedlib.core.registry import Registry

OPTIMIZERS = Registry("optimizer")


@OPTIMIZERS.register("sgd")
class SGD:
    """Gradient descent, with PyTorch's momentum and weight decay."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0  # a longer gradient is shortened to this length, before weight decay; 0 leaves it

    def __post_init__(self):
        if not 0 <= self.momentum < 1 or self.weight_decay < 0 or self.clip < 0:
            raise FedlibError("sgd needs momentum in [0, 1), weight_decay >= 0 and clip >= 0.")

    def state(self, theta: Tensor) -> dict[str, Tensor]:
        return {"velocity": torch.zeros_like(theta)} if self.momentum else {}

    def step(self, theta: Tensor, grad: Tensor, state: dict, lr: float) -> None:
        if self.clip:  # by client, where a cohort trains at once
            length = grad.norm(dim=-1, keepdim=True)
            grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))  # PyTorch's clip_grad_norm_
        if self.weight_decay:
            grad.add_(theta, alpha=self.weight_decay)
        if self.momentum:
            # One pass instead of two: velocity = grad + momentum * velocity.
            grad = torch.add(grad, state["velocity"], alpha=self.momentum, out=state["velocity"])
        theta.add_(grad, alpha=-lr)


@OPTIMIZERS.register("adam")
class Adam:
    """Adam as in PyTorch; its weight decay is added to the gradient."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self):
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.eps > 0 and self.weight_decay >= 0):
            raise FedlibError("adam needs beta1 and beta2 in [0, 1), eps > 0 and weight_decay >= 0.")

    def state(self, theta: Tensor) -> dict[str, Tensor]:
        return {
            "mean": torch.zeros_like(theta),
            "square": torch.zeros_like(theta),
            "scratch": torch.empty_like(theta),
            "steps": torch.zeros(()),
        }

    def step(self, theta: Tensor, grad: Tensor, state: dict, lr: float) -> None:
        if self.weight_decay:
            grad.add_(theta, alpha=self.weight_decay)
        steps = state["steps"] = state["steps"].cpu()  # a checkpoint brings it to the card, where reading it waits
        steps += 1
        t = int(steps)
        state["mean"].lerp_(grad, 1 - self.beta1)
        state["square"].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        root = torch.sqrt(state["square"], out=state["scratch"])
        root.div_(math.sqrt(1 - self.beta2**t)).add_(self.eps)
        theta.addcdiv_(state["mean"], root, value=-lr / (1 - self.beta1**t))
