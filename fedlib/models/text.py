"""Text classifiers on padded token numbers of shape (length,), and an MLP on bags of words."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.errors import FedlibError
from fedlib.models.base import MODELS, MappingNet, Net
from fedlib.models.mlp import MLPNet


def tokens(name: str, shape: tuple[int, ...], smallest: int = 1) -> None:
    if len(shape) != 1 or shape[0] < smallest:
        raise FedlibError(
            f"Model {name!r} takes texts as at least {smallest} token numbers, shape (length,); got {tuple(shape)}. "
            "Choose another model or data set."
        )


class TextCNNNet(Net):
    WINDOWS = (3, 4, 5)  # words

    def __init__(self, classes: int, vocabulary: int, dim: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.embedding = nn.Embedding(vocabulary, dim)
        for k in self.WINDOWS:
            self.add_module(f"conv{k}", nn.Conv1d(dim, 100, k))
        self.classifier = nn.Linear(100 * len(self.WINDOWS), classes)

    def features(self, x: Tensor) -> Tensor:
        x = self.embedding(x.long()).transpose(1, 2)
        found = [F.relu(self.get_submodule(f"conv{k}")(x)).amax(2) for k in self.WINDOWS]
        return F.dropout(torch.cat(found, 1), self.dropout, self.training)


@MODELS.register("textcnn")
class TextCNN:
    """100 filters for each window of 3, 4 and 5 words, the strongest response of each, dropout, classifier.

    FedLWS (AG News) cites Zhang and Wallace (2015) without sizes or code; vocabulary, width and dropout are PFLlib's,
    whose text data sets are the paper's. No published parameter count to compare with.
    """

    vocabulary: int = 32000
    dim: int = 32
    dropout: float = 0.8

    def __post_init__(self):
        if min(self.vocabulary, self.dim) < 1 or not 0 <= self.dropout < 1:
            raise FedlibError("textcnn(…) needs a vocabulary and a dim of at least 1 and a dropout in [0, 1).")

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        tokens(self.name, shape, smallest=max(TextCNNNet.WINDOWS))
        return TextCNNNet(classes, self.vocabulary, self.dim, self.dropout)


class BiLSTMNet(Net):
    def __init__(self, classes: int, vocabulary: int, bias: bool):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 128)
        self.lstm = nn.LSTM(128, 128, batch_first=True, bidirectional=True)
        self.fc1 = nn.Linear(256, 128)
        self.fc2 = nn.Linear(128, 128)
        self.classifier = nn.Linear(128, classes, bias=bias)

    def maps(self, x: Tensor) -> Tensor:
        x = F.dropout(self.embedding(x.long()), 0.2, self.training)
        x = F.dropout(self.lstm(x)[0], 0.2, self.training)
        return F.relu(self.fc1(x)).mean(1)  # fc1 at every word, then the mean over the text

    def features(self, x: Tensor) -> Tensor:
        return self.fc2(self.maps(x))


@MODELS.register("feddw_bilstm")
class BiLSTM:
    """Embedding, bidirectional LSTM and two mapping layers, all 128 wide: FedDW on IMDB; 1,593,858 parameters."""

    vocabulary: int = 10000
    bias: bool = True  # of the classifier; FedDW's equations have none, its code does

    def __post_init__(self):
        if self.vocabulary < 1:
            raise FedlibError(f"feddw_bilstm(vocabulary=…) is at least 1; got {self.vocabulary}.")

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        tokens(self.name, shape)
        return BiLSTMNet(classes, self.vocabulary, self.bias)


class MeanNet(MappingNet):
    def __init__(self, classes: int, vocabulary: int, dim: int, bias: bool):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.add_head(dim, classes, bias)

    def maps(self, x: Tensor) -> Tensor:
        return self.embedding(x.long()).mean(1)


@MODELS.register("feddw_mean")
class MeanOfWords:
    """The mean word vector through FedDW's two mapping layers: its network for texts without the LSTM.

    It knows which words a text has and not their order, and a step takes a hundredth of the time.
    """

    vocabulary: int = 10000
    dim: int = 32
    bias: bool = True  # of the classifier; FedDW's equations have none

    def __post_init__(self):
        if min(self.vocabulary, self.dim) < 1:
            raise FedlibError("feddw_mean(…) needs a vocabulary and a dim of at least 1.")

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        tokens(self.name, shape)
        return MeanNet(classes, self.vocabulary, self.dim, self.bias)


@MODELS.register("amazon_mlp")
class AmazonMLP:
    """1000-500-100 hidden units on bags of 5,000 words and word pairs, as PFLlib has it; FedLWS prints no sizes."""

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        tokens(self.name, shape)
        return MLPNet((shape[0], 1000, 500, 100), classes)
