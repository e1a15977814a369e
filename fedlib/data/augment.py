"""Images altered at random, as FedDW's code does to the images it trains on, and to its test images too."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

DEGREES = {"crop_flip": 0.0, "crop_flip_turn": 15.0}  # what a run may ask for, with the largest rotation


def augment(x: Tensor, rng: np.random.Generator, degrees: float = 0.0) -> Tensor:
    """Every image shifted by up to four pixels, flipped or not and turned; what comes into view is black."""
    draws = torch.from_numpy(rng.uniform(-1, 1, (4, len(x)))).to(x)
    down, right = ((draw * 4.5).round().clamp(-4, 4) for draw in draws[:2])
    angle, flip = draws[2] * math.radians(degrees), draws[3].sign()
    black, (height, width) = x.min(), x.shape[2:]
    rows = torch.stack(
        [
            torch.stack([flip * angle.cos(), -angle.sin() * height / width, 2 * right / width], 1),
            torch.stack([flip * angle.sin() * width / height, angle.cos(), 2 * down / height], 1),
        ],
        1,
    )
    grid = F.affine_grid(rows, list(x.shape), align_corners=False)
    moved = F.grid_sample(x - black, grid, mode="nearest", padding_mode="zeros", align_corners=False) + black
    return moved.contiguous(memory_format=torch.contiguous_format if x.is_contiguous() else torch.channels_last)
