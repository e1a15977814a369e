"""Data sets as tensors: what there is, where it was found, and the pieces of it that a run uses."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedlib.data import sources
from fedlib.data.sources import data_dir
from fedlib.errors import FedlibError
from fedlib.registry import Registry, written

__all__ = ["DATASETS", "TRANSFORMS", "Dataset", "data_dir", "get", "inventory", "load", "subset", "to_float"]

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "unit": lambda x: x.float() / 255,
    "half": lambda x: (x.float() / 255 - 0.5) / 0.5,
}


@dataclass(frozen=True)
class Dataset:
    """Images as bytes (n, channels, height, width) with their labels; shared, so never written to."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    class_names: tuple[str, ...]
    source: str  # where the files came from
    note: str = ""  # says so if this is only a part of the data set
    domain_train: Tensor | None = None
    domain_test: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x_train.shape[1:])


DATASETS = Registry("data set")


class _Files:
    """A data set that lives in files of the data directory."""

    def load(self, progress: bool = True) -> Dataset:
        arrays, where = sources.read(sources.SOURCES[self.name], progress)
        x_train, y_train, x_test, y_test = (torch.from_numpy(arrays[k]) for k in sources.KEYS)
        return Dataset(
            self.name, x_train, y_train.long(), x_test, y_test.long(), len(self.class_names), self.class_names, where
        )


@DATASETS.register("mnist")
class Mnist(_Files):
    """Handwritten digits."""

    about = "MNIST: 60,000 + 10,000 handwritten digits, 28x28 grey"
    shape, sizes = (1, 28, 28), (60_000, 10_000)
    class_names = tuple("0123456789")


@DATASETS.register("fashion_mnist")
class FashionMnist(_Files):
    """Zalando's articles of clothing."""

    about = "FashionMNIST: 60,000 + 10,000 articles of clothing, 28x28 grey"
    shape, sizes = (1, 28, 28), (60_000, 10_000)
    class_names = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip


@DATASETS.register("cifar10")
class Cifar10(_Files):
    """Small colour photographs."""

    about = "CIFAR-10: 50,000 + 10,000 photographs, 32x32 colour"
    shape, sizes = (3, 32, 32), (50_000, 10_000)
    class_names = (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    )  # fmt: skip


@DATASETS.register("digits")
class Digits:
    """scikit-learn's 1,797 8x8 digits, enlarged to ``shape``: real data that needs no download."""

    shape: tuple = (1, 28, 28)
    about = "scikit-learn digits: 1,442 + 355 handwritten digits, 8x8 grey enlarged to the shape asked for"
    sizes, class_names = (1439, 358), tuple("0123456789")

    def __post_init__(self):
        if len(self.shape) != 3 or not all(type(n) is int and 0 < n <= 512 for n in self.shape):
            raise FedlibError(f"digits(shape=…) is (channels, height, width) up to 512 each; got {self.shape!r}.")

    def load(self, progress: bool = True) -> Dataset:
        from sklearn.datasets import load_digits

        raw, labels = load_digits(return_X_y=True)
        channels, *size = self.shape
        x = torch.from_numpy(raw).reshape(-1, 1, 8, 8) * (255 / 16)
        x = torch.nn.functional.interpolate(x, size=size, mode="bilinear")
        x = (x + 0.5 + 1e-6).floor().clamp(0, 255).byte()  # the nudge decides ties alike on every machine
        x = x.expand(-1, channels, -1, -1).contiguous()
        y = torch.from_numpy(labels).long()
        rank = torch.zeros_like(y)  # position of a sample within its class
        for c in range(10):
            rank[y == c] = torch.arange(int((y == c).sum()))
        test = rank % 5 == 4
        return Dataset(
            self.name, x[~test], y[~test], x[test], y[test], 10, tuple("0123456789"), "scikit-learn",
            note="8x8 images enlarged; every fifth of a class is a test image",
        )  # fmt: skip


def load(text: str) -> Dataset:
    """The data set that ``text`` names, fetched if need be and kept in memory."""
    return _load(written(DATASETS.make(text)), data_dir())


@functools.lru_cache(maxsize=4)
def _load(text: str, directory: Path) -> Dataset:
    return DATASETS.make(text).load()


def get(text: str, progress: bool = True) -> Dataset:
    """Find or fetch a data set now, verify it and keep it in the data directory; progress on stderr."""
    return DATASETS.make(text).load(progress)


def subset(dataset: Dataset, n_train: int | None, n_test: int | None) -> Dataset:
    """The first n/classes samples of every class, in file order; None keeps all."""
    changes, notes = {}, [dataset.note] if dataset.note else []
    for part, n in (("train", n_train), ("test", n_test)):
        if n is None:
            continue
        y = getattr(dataset, f"y_{part}")
        each, fewest = n // dataset.classes, int(torch.bincount(y, minlength=dataset.classes).min())
        if n <= 0 or n % dataset.classes or each > fewest:
            raise FedlibError(
                f"A {part} subset of {dataset.name} is a multiple of its {dataset.classes} classes "
                f"and at most {fewest * dataset.classes}; got {n}."
            )
        keep = torch.cat([torch.nonzero(y == c)[:each, 0] for c in range(dataset.classes)]).sort().values
        for field in (f"x_{part}", f"y_{part}", f"domain_{part}"):
            if (whole := getattr(dataset, field)) is not None:
                changes[field] = whole[keep]
        notes.append(f"subset: the first {each} of each class of the {part} set ({n} of {len(y)})")
    return dataclasses.replace(dataset, **changes, note="; ".join(notes))


def to_float(x: Tensor, transform: str = "unit") -> Tensor:
    """Bytes to the float32 that models see."""
    if transform not in TRANSFORMS:
        raise FedlibError(f"Unknown transform {transform!r}; the known ones are: {', '.join(TRANSFORMS)}.")
    return TRANSFORMS[transform](x)


def inventory() -> list[dict]:
    """Every data set in one row each; reads headers only, so the checksum is the recorded one."""
    return [_row(name) for name in DATASETS.names()]


def _row(name: str) -> dict:
    row = dict(name=name, about=DATASETS.entries[name].about, present=True)
    if name not in sources.SOURCES:
        return row | dict(source="scikit-learn", where="installed package", train=1442, test=355, checksum="")
    source = sources.SOURCES[name]
    if (header := sources.header(source)) is not None:
        return row | header | dict(where=str(source.cache))
    row |= dict(source="", where="", train=None, test=None, checksum="")
    if sources.found(data_dir() / source.folder, source.files):
        return row | dict(source="data directory", where=str(data_dir() / source.folder))
    return row | dict(present=False)
