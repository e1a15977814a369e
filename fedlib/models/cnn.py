"""Small convolutional networks. ``maps`` is the convolutional part, flattened; pools are floor-mode 2x2."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.models.base import MODELS, MappingNet, Net, flat, image


def pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2)


class SimpleCNNNet(Net):
    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.conv3 = nn.Conv2d(64, 64, 3)
        self.fc1 = nn.Linear(flat(self, shape), 64)
        self.classifier = nn.Linear(64, classes)

    def maps(self, x: Tensor) -> Tensor:
        x = pool(F.relu(self.conv1(x)))
        x = pool(F.relu(self.conv2(x)))
        return F.relu(self.conv3(x)).flatten(1)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.fc1(self.maps(x)))


@MODELS.register("simple_cnn")
class SimpleCNN:
    """Three 3x3 convolutions and two linear layers; 122,570 parameters on CIFAR-10. The CNN of FedLWS, FedAWA and
    FedLAW, and FedLap's network for CIFAR-10."""

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        image(self.name, shape, smallest=18)
        return SimpleCNNNet(shape, classes)


class LeNetNet(Net):
    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2)
        self.classifier = nn.Linear(flat(self, shape), classes)

    def maps(self, x: Tensor) -> Tensor:
        x = pool(F.relu(self.conv1(x)))
        return pool(F.relu(self.conv2(x))).flatten(1)

    features = maps


@MODELS.register("lenet")
class LeNet:
    """Two 5x5 convolutions and the classifier, as FedLAW's code has it for FashionMNIST; 28,938 parameters on MNIST."""

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        image(self.name, shape, smallest=4)
        return LeNetNet(shape, classes)


class CNNFmnistNet(Net):
    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 16, 5, padding=2)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.bn2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 64, 3)
        self.bn3 = nn.BatchNorm2d(64)
        self.classifier = nn.Linear(flat(self, shape), classes)

    def maps(self, x: Tensor) -> Tensor:
        x = pool(F.relu(self.bn1(self.conv1(x))))
        x = F.relu(self.bn2(self.conv2(x)))
        return pool(F.relu(self.bn3(self.conv3(x)))).flatten(1)

    features = maps


@MODELS.register("cnn_fmnist")
class CNNFmnist:
    """Three convolutions with batch norm and the classifier; 39,786 parameters on FashionMNIST, for which the code of
    FedLWS and FedAWA has it, not their texts."""

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        image(self.name, shape, smallest=12)
        return CNNFmnistNet(shape, classes)


class FedDWMnistNet(MappingNet):
    def __init__(self, shape: tuple[int, ...], classes: int, bias: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.add_head(flat(self, shape), classes, bias)

    def maps(self, x: Tensor) -> Tensor:
        x = F.relu(pool(self.conv1(x)))
        return F.relu(pool(F.dropout(self.conv2(x), 0.5, self.training))).flatten(1)


@MODELS.register("feddw_cnn_mnist")
class FedDWMnist:
    """Two 5x5 convolutions, the second with dropout, and FedDW's head; 121,642 parameters on MNIST."""

    bias: bool = True  # of the classifier; FedDW's equations have none, its code does

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        image(self.name, shape, smallest=16)
        return FedDWMnistNet(shape, classes, self.bias)


class FedDWCifarNet(MappingNet):
    def __init__(self, shape: tuple[int, ...], classes: int, bias: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.add_head(flat(self, shape), classes, bias)

    def maps(self, x: Tensor) -> Tensor:
        x = pool(F.relu(self.conv1(x)))
        return pool(F.relu(self.conv2(x))).flatten(1)


@MODELS.register("feddw_cnn_cifar10")
class FedDWCifar:
    """Two 5x5 convolutions and FedDW's head; 139,714 parameters on CIFAR-10."""

    bias: bool = True  # of the classifier; FedDW's equations have none, its code does

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        image(self.name, shape, smallest=16)
        return FedDWCifarNet(shape, classes, self.bias)


class AlexNetNet(Net):
    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 64, 11, stride=4, padding=5)
        self.conv2 = nn.Conv2d(64, 192, 5, padding=2)
        self.conv3 = nn.Conv2d(192, 384, 3, padding=1)
        self.conv4 = nn.Conv2d(384, 256, 3, padding=1)
        self.conv5 = nn.Conv2d(256, 256, 3, padding=1)
        self.classifier = nn.Linear(flat(self, shape), classes)

    def maps(self, x: Tensor) -> Tensor:
        x = pool(F.relu(self.conv1(x)))
        x = pool(F.relu(self.conv2(x)))
        x = F.relu(self.conv3(x))
        x = F.relu(self.conv4(x))
        return pool(F.relu(self.conv5(x))).flatten(1)

    features = maps


@MODELS.register("alexnet")
class AlexNet:
    """AlexNet's five convolutions for 32x32 images and one linear layer; 2,472,266 parameters on CIFAR-10.

    FedLAW names AlexNet without a definition or code: this common CIFAR form is our choice.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        image(self.name, shape, smallest=29)
        return AlexNetNet(shape, classes)
