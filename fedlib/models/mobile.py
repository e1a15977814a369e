"""ShuffleNet and MobileNetV2 for 32x32 images, with FedDW's head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.models.base import MODELS, MappingNet, Net, image
from fedlib.models.resnet import Shortcut


class ShuffleUnit(nn.Module):
    """Grouped 1x1, shuffle, depthwise 3x3, grouped 1x1; with stride 2 the input is pooled and appended."""

    def __init__(self, inputs: int, outputs: int, stride: int, first_groups: int):
        super().__init__()
        self.stride, self.groups = stride, first_groups
        middle = outputs // 4
        self.conv1 = nn.Conv2d(inputs, middle, 1, groups=first_groups, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, padding=1, groups=middle, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outputs, 1, groups=2, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = out.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)  # channel shuffle
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.stride == 1:
            return F.relu(out + x)
        return F.relu(torch.cat((out, F.avg_pool2d(x, 3, stride=2, padding=1)), 1))


class ShuffleNetNet(MappingNet):
    def __init__(self, channels: int, classes: int, bias: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 24, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(24)
        self.body, inputs = nn.Sequential(), 24
        for stage, (width, units) in enumerate([(200, 4), (400, 8), (800, 4)], start=1):
            # The first unit appends its input, so it computes only the channels that are still missing.
            layer = nn.Sequential(ShuffleUnit(inputs, width - inputs, 2, first_groups=1 if stage == 1 else 2))
            layer.extend(ShuffleUnit(width, width, 1, first_groups=2) for _ in range(units - 1))
            self.body.add_module(f"layer{stage}", layer)
            inputs = width
        self.add_head(inputs, classes, bias)

    def maps(self, x: Tensor) -> Tensor:
        return self.body(F.relu(self.bn1(self.conv1(x)))).mean((2, 3))


@MODELS.register("feddw_shufflenet")
class ShuffleNet:
    """ShuffleNet (v1) with two groups and FedDW's head: 200-400-800 channels; 1,130,424 parameters for 100 classes."""

    bias: bool = True  # of the classifier; FedDW's equations have none, its code does

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        return ShuffleNetNet(image(self.name, shape), classes, self.bias)


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise 3x3, linear 1x1; at stride 1 with a shortcut, a 1x1 convolution if widths differ."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int):
        super().__init__()
        middle = expansion * inputs
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, padding=1, groups=middle, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        widen = stride == 1 and inputs != outputs
        self.shortcut = Shortcut(inputs, outputs, stride, bias=False) if widen else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return out + self.shortcut(x) if self.stride == 1 else out


class MobileNetV2Net(MappingNet):
    # expansion, channels, blocks, stride of the first block
    STAGES = [(1, 8, 1, 1), (6, 12, 2, 1), (6, 16, 3, 2), (6, 32, 4, 2), (6, 48, 3, 1), (6, 80, 3, 2), (6, 160, 1, 1)]

    def __init__(self, channels: int, classes: int, bias: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.body, inputs = nn.Sequential(), 32
        for stage, (expansion, width, blocks, stride) in enumerate(self.STAGES, start=1):
            layer = nn.Sequential(InvertedResidual(inputs, width, expansion, stride))
            layer.extend(InvertedResidual(width, width, expansion, 1) for _ in range(blocks - 1))
            self.body.add_module(f"layer{stage}", layer)
            inputs = width
        self.conv2 = nn.Conv2d(inputs, 640, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(640)
        self.add_head(640, classes, bias)

    def maps(self, x: Tensor) -> Tensor:
        x = self.body(F.relu(self.bn1(self.conv1(x))))
        return F.relu(self.bn2(self.conv2(x))).mean((2, 3))


@MODELS.register("feddw_mobilenet")
class MobileNetV2:
    """MobileNetV2 at half width (but 32 channels in the stem) and FedDW's head; 807,660 parameters for 100 classes.

    FedDW cites MobileNet (v1) but its code has v2.
    """

    bias: bool = True  # of the classifier; FedDW's equations have none, its code does

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        return MobileNetV2Net(image(self.name, shape), classes, self.bias)
