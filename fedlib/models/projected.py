"""MOON's projection head, on top of any network."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.errors import FedlibError
from fedlib.models.base import MODELS, Net


class ProjectedNet(Net):
    def __init__(self, encoder: Net, size: int, classes: int):
        super().__init__()
        inputs = encoder.classifier.in_features
        del encoder.classifier
        self.encoder = encoder
        self.projection1 = nn.Linear(inputs, inputs)
        self.projection2 = nn.Linear(inputs, size)
        self.classifier = nn.Linear(size, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.projection2(F.relu(self.projection1(self.encoder.features(x))))


@MODELS.register("projected")
class Projected:
    """A network whose features pass two linear layers, a ReLU between them, before the classifier: MOON's projection
    head (Li et al., CVPR 2021), whose output is what its term compares and what the classifier reads."""

    model: str = "feddw_cnn_cifar10"
    size: int = 256  # MOON's

    def __post_init__(self):
        if self.size < 1:
            raise FedlibError(f"projected(size=…) is at least 1; got {self.size}.")

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        return ProjectedNet(MODELS.make(self.model).build(shape, classes), self.size, classes)
