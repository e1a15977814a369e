"""DenseNet (Huang et al. 2017) in its CIFAR form: a 3x3 stem without batch norm or pooling."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.models.base import MODELS, Net, image

GROWTH = 32


class Dense(nn.Module):
    """Adds ``GROWTH`` channels computed from all channels so far."""

    def __init__(self, inputs: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * GROWTH, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * GROWTH)
        self.conv2 = nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        return torch.cat((x, out), 1)


class Transition(nn.Module):
    """Halves the channels and the image."""

    def __init__(self, inputs: int):
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNetNet(Net):
    def __init__(self, channels: int, classes: int, blocks: tuple[int, ...]):
        super().__init__()
        width = 2 * GROWTH
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.body = nn.Sequential()
        for i, layers in enumerate(blocks, start=1):
            self.body.add_module(f"dense{i}", nn.Sequential(*(Dense(width + k * GROWTH) for k in range(layers))))
            width += layers * GROWTH
            if i < len(blocks):
                self.body.add_module(f"transition{i}", Transition(width))
                width //= 2
        self.bn = nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.body(self.conv1(x)))).mean((2, 3))


@MODELS.register("densenet121")
class DenseNet121:
    """FedLWS, FedAWA and FedLAW have it: blocks of 6, 12, 24 and 16 layers; 6,956,298 parameters for 10 classes."""

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        return DenseNetNet(image(self.name, shape, smallest=8), classes, (6, 12, 24, 16))
