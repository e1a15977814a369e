"""Small convolutional networks. ``maps`` is the convolutional part, flattened; pools are floor-mode 2x2."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.models.base import MODELS, Net, flat, image


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
    """Three 3x3 convolutions and two linear layers; 122,570 parameters on CIFAR-10."""

    about = "3 conv + 2 fc: the CNN of FedLWS, FedAWA and FedLAW, and FedLap's CIFAR-10 network"

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
    """Two 5x5 convolutions and the classifier, as FedLAW's code has it; 28,938 parameters on MNIST."""

    about = "2 conv + 1 fc: FedLAW's LeNet"

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
    """Three convolutions with batch norm and the classifier; 39,786 parameters on FashionMNIST."""

    about = "3 conv with BN + 1 fc: the FashionMNIST CNN of FedLWS and FedAWA"

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        image(self.name, shape, smallest=12)
        return CNNFmnistNet(shape, classes)
