"""scikit-learn's digits as images, texts and bags of words: real data that needs no download."""

import math
from importlib.metadata import distribution

import numpy as np
import torch
from torch import Tensor

from fedlib.core.errors import FedlibError, quoted
from fedlib.data.base import DATASETS, Dataset

DIGITS = tuple("0123456789")


@DATASETS.register("digits")
class Digits:
    """scikit-learn's 1,797 8x8 digits, enlarged to ``shape``: real data that needs no download."""

    shape: tuple = (1, 28, 28)
    about = "scikit-learn digits: 1,442 + 355 handwritten digits, 8x8 grey enlarged to the shape asked for"
    sizes, class_names = (1442, 355), DIGITS

    def __post_init__(self):
        numbers = len(self.shape) == 3 and all(type(n) is int and 0 < n <= 512 for n in self.shape)
        if not numbers or math.prod(self.shape) > 1_000_000:
            raise FedlibError(
                "digits(shape=…) is (channels, height, width), up to 512 each and a million pixels altogether; got "
                f"{quoted(self.shape)}."
            )

    def load(self, progress: bool = True) -> Dataset:
        raw, y, test = small_digits()
        channels, *size = self.shape
        x = enlarged(raw.reshape(-1, 1, 8, 8) * (255 / 16), channels, size)
        return Dataset(
            self.name, x[~test], y[~test], x[test], y[test], 10, DIGITS, "scikit-learn",
            note="8x8 images enlarged; every fifth of a class is a test image",
        )  # fmt: skip


def small_digits() -> tuple[Tensor, Tensor, Tensor]:
    """scikit-learn's digits: grey levels from 0 to 16 (n, 64), labels, and which are for the test."""
    # From scikit-learn's file: to import scikit-learn takes longer than all the rest of a small run.
    rows = np.loadtxt(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz"), delimiter=",")
    raw, labels = rows[:, :-1].copy(), rows[:, -1].astype(np.int64)
    return torch.from_numpy(raw), torch.from_numpy(labels), torch.from_numpy(every_fifth(labels))


def every_fifth(*labels: np.ndarray) -> np.ndarray:
    """Whether a sample is every fifth of its class (and domain): the test set where there is no official one."""
    rank = np.zeros(len(labels[0]), int)  # position within its class
    groups = np.unique(np.stack(labels), axis=1, return_inverse=True)[1].ravel()
    for g in range(groups.max() + 1):
        rank[groups == g] = np.arange((groups == g).sum())
    return rank % 5 == 4


def enlarged(x: Tensor, channels: int, size: list[int]) -> Tensor:
    """Grey or colour images with values from 0 to 255 as bytes of another size; grey becomes as many equal channels."""
    x = torch.nn.functional.interpolate(x, size=size, mode="bilinear")
    x = (x + 0.5 + 1e-6).floor().clamp(0, 255).byte()  # the nudge decides ties alike on every machine
    return x.expand(-1, channels, -1, -1).contiguous()


@DATASETS.register("digit_words")
class DigitWords:
    """scikit-learn's digits spelt out: a word for each of the 64 pixels, saying where it is and which of four shades.

    For quick runs of text models: no package ships a real text data set.
    """

    vocabulary = 2 + 64 * 4
    about = "scikit-learn digits as texts of 64 words, one for the place and shade of every pixel"
    shape, sizes, class_names = (64,), (1442, 355), DIGITS

    def load(self, progress: bool = True) -> Dataset:
        raw, y, test = small_digits()
        x = (2 + 4 * torch.arange(64) + raw.long() // 5).int()
        return Dataset(
            self.name, x[~test], y[~test], x[test], y[test], 10, DIGITS, "scikit-learn", note="images, not real texts"
        )


@DATASETS.register("digit_counts")
class DigitCounts:
    """scikit-learn's digits as bags of words: as many of word k as pixel k is dark. Even and odd samples are domains,
    in the second the image is turned by a quarter."""

    about = "scikit-learn digits as bags of 64 words in two domains"
    shape, sizes, class_names = (64,), (1442, 355), DIGITS

    def load(self, progress: bool = True) -> Dataset:
        raw, y, test = small_digits()
        domain = torch.arange(len(y)) % 2
        x = raw.reshape(-1, 8, 8)
        x = torch.where(domain[:, None, None] == 1, x.rot90(dims=(1, 2)), x).flatten(1).half()
        return Dataset(
            self.name, x[~test], y[~test], x[test], y[test], 10, DIGITS, "scikit-learn", "images, not real texts",
            domain[~test], domain[test],
        )  # fmt: skip
