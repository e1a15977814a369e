"""Residual networks: the CIFAR family of He et al. (6n+2 layers), and ResNet18.

The CIFAR family follows the loss-landscape networks of Li et al. (2018), which FedLWS, FedAWA and FedLAW cite:
where a block changes shape, its shortcut is a 1x1 convolution with batch norm (``shortcut="B"``). ``"A"``
subsamples and pads with zero channels instead, as the widely used pretrained ResNet20 does; no parameters.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.errors import FedlibError
from fedlib.models.base import MODELS, MappingNet, Net, image


class Pad(nn.Module):
    """Shortcut A: every second pixel, the new channels zero on both sides."""

    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.channels // 2, self.channels // 2))


class Shortcut(nn.Module):
    """Shortcut B: a 1x1 convolution with batch norm."""

    def __init__(self, inputs: int, outputs: int, stride: int, bias: bool):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, stride, bias=bias)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, and the shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: str, bias: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=bias)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias)
        self.bn2 = nn.BatchNorm2d(outputs)
        if stride == 1 and inputs == outputs:
            self.shortcut = nn.Identity()
        elif shortcut == "A":
            self.shortcut = Pad(outputs - inputs, stride)
        else:
            self.shortcut = Shortcut(inputs, outputs, stride, bias)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


def add_body(
    net: nn.Module, channels: int, widths: tuple[int, ...], blocks: int, shortcut: str = "B", bias: bool = False
) -> None:
    """The 3x3 stem and ``layer1``, ``layer2``, ...: every stage but the first halves the image."""
    net.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=bias)
    net.bn1 = nn.BatchNorm2d(widths[0])
    inputs = widths[0]
    for stage, width in enumerate(widths, start=1):
        layer = nn.Sequential()
        for i in range(blocks):
            layer.append(Block(inputs, width, 2 if i == 0 and stage > 1 else 1, shortcut, bias))
            inputs = width
        net.add_module(f"layer{stage}", layer)
    net.stages = len(widths)


def pooled(net: nn.Module, x: Tensor) -> Tensor:
    """The stages, then the mean over the image (whose backward, unlike an adaptive pool's, is deterministic)."""
    for stage in range(1, net.stages + 1):
        x = net.get_submodule(f"layer{stage}")(x)
    return x.mean((2, 3))


class CifarResNetNet(Net):
    def __init__(self, channels: int, classes: int, depth: int, width: int, shortcut: str):
        super().__init__()
        add_body(self, channels, (16 * width, 32 * width, 64 * width), (depth - 2) // 6, shortcut)
        self.classifier = nn.Linear(64 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        return pooled(self, F.relu(self.bn1(self.conv1(x))))


@dataclass(frozen=True, kw_only=True)
class CifarResNet:
    """Three stages of 16, 32 and 64 channels times ``width``."""

    width: int = 1
    shortcut: Literal["A", "B"] = "B"

    def __post_init__(self):
        if self.width < 1:
            raise FedlibError(f"{self.name}(width=…) multiplies the channels and is at least 1; got {self.width}.")

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        return CifarResNetNet(image(self.name, shape), classes, self.depth, self.width, self.shortcut)


@MODELS.register("resnet8")
class ResNet8(CifarResNet):
    """8 layers; 78,042 parameters, and 1,227,594 with width=4, as CReFF and CLIP2FL have it. FedLAW prints no
    definition: the family's n=1 is a guess."""

    depth = 8


@MODELS.register("resnet20")
class ResNet20(CifarResNet):
    """20 layers, as in FedLWS, FedAWA and FedLAW; 272,474 parameters for 10 classes, or 269,722 with
    shortcut="A", the form of the pretrained weights."""

    depth = 20


@MODELS.register("resnet56")
class ResNet56(CifarResNet):
    """56 layers, as in FedLAW; 855,770 parameters for 10 classes."""

    depth = 56


@MODELS.register("resnet110")
class ResNet110(CifarResNet):
    """110 layers, as in FedLAW; 1,730,714 parameters for 10 classes."""

    depth = 110


@MODELS.register("wrn56_4")
class WRN56x4(CifarResNet):
    """ResNet56 four times as wide, as in FedLWS, FedAWA and FedLAW; 13,628,234 parameters for 10 classes."""

    depth = 56
    width: int = 4


class ResNet18Net(Net):
    def __init__(self, channels: int, classes: int):
        super().__init__()
        add_body(self, channels, (64, 128, 256, 512), blocks=2)
        self.classifier = nn.Linear(512, classes)

    def features(self, x: Tensor) -> Tensor:
        return pooled(self, F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1))


@MODELS.register("resnet18")
class ResNet18:
    """ResNet18 with a 3x3 stem and a max-pool, for Tiny-ImageNet in FedLWS and FedAWA; 11,271,432 for 200 classes."""

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        return ResNet18Net(image(self.name, shape), classes)


class FedDWResNet18Net(MappingNet):
    def __init__(self, channels: int, classes: int, bias: bool):
        super().__init__()
        add_body(self, channels, (64, 128, 256, 512), blocks=2, bias=True)
        self.add_head(512, classes, bias)

    def maps(self, x: Tensor) -> Tensor:
        return pooled(self, F.relu(self.bn1(self.conv1(x))))


@MODELS.register("feddw_resnet18")
class FedDWResNet18:
    """ResNet18 whose convolutions have biases, without max-pool, and FedDW's head; 11,350,756 for 100 classes."""

    bias: bool = True  # of the classifier; FedDW's equations have none, its code does

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        return FedDWResNet18Net(image(self.name, shape), classes, self.bias)
