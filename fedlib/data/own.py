"""A data set of one's own, from tensors, arrays, a torch Dataset, an .npz file or a folder of images."""

import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.core.errors import FedlibError, cause, quoted
from fedlib.core.registry import canonical, code_revision
from fedlib.core.torchvision_import import torchvision
from fedlib.data.base import DATASETS, Dataset

FORMS = "a pair (x, y), an .npz file with x and y, a torch Dataset of pairs or a folder of images by class"


def register_dataset(
    name: str, train: Any, test: Any, class_names: Sequence[str] | None = None, about: str = "a data set of one's own"
) -> None:
    """Make ``train`` and ``test`` a data set that runs can name; the checksum of its samples is part of their ids.

    Either is a pair (x, y) of tensors or arrays, an .npz file with x and y, a torch ``Dataset`` of pairs, or a folder
    with one folder of images for every class. Bytes are taken as pixels and scaled by the run's transform, other
    numbers as they are.
    """
    x, y, found = _samples(name, "train", train)
    x_test, y_test, _ = _samples(name, "test", test)
    classes = int(max(y.max(), y_test.max())) + 1
    labels = tuple(map(str, class_names or found or range(classes)))
    dataset = Dataset(name, x, y, x_test, y_test, len(labels), labels, "registered")
    check_dataset(name, dataset)

    class Own:
        def load(self, progress: bool = True) -> Dataset:
            return dataset

    Own.about, Own.shape, Own.class_names, Own.sizes = about, dataset.shape, labels, (len(y), len(y_test))
    Own.__doc__, Own.revision = about, fingerprint(dataset)
    Own.__module__ = sys._getframe(1).f_globals.get("__name__", "__main__")  # whose it is: see whether workers know it
    DATASETS.register(name)(Own)


def check_dataset(name: str, dataset: Any) -> None:
    """A sentence on what no run could use."""
    if not isinstance(dataset, Dataset):
        raise FedlibError(f"load() of the data set {name} returns a fedlib.data.Dataset; got {quoted(dataset)}.")
    for part, x, y in (("train", dataset.x_train, dataset.y_train), ("test", dataset.x_test, dataset.y_test)):
        if len(x) != len(y) or not len(y):
            raise FedlibError(f"The {part} set of {name} has {len(x)} samples and {len(y)} labels: one each.")
        if x.shape[1:] != dataset.x_train.shape[1:]:
            raise FedlibError(f"The {part} samples of {name} have the shape {tuple(x.shape[1:])}, others another one.")
        if y.dtype != torch.int64 or y.ndim != 1 or not 0 <= int(y.min()) <= int(y.max()) < dataset.classes:
            raise FedlibError(f"The {part} labels of {name} are int64 from 0 to {dataset.classes - 1}.")


def fingerprint(dataset: Dataset) -> str:
    """A checksum of all samples and labels."""
    digest = hashlib.sha256()
    for tensor in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test):
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()[:16]


def complete(cls: type) -> None:
    """What a data set's class of somebody else's leaves out is read from the samples; its revision holds them too."""
    # Not a checksum of the code alone: the file that load() reads may change, and old numbers would come back.
    code = code_revision(cls)
    cls.revision = property(lambda self: _revision(code, self))
    about = " ".join((cls.__doc__ or "a data set of one's own").partition("\n\n")[0].split())
    derived: dict[str, Callable] = {
        "sizes": lambda self: (len(_loaded(self).y_train), len(_loaded(self).y_test)),
        "shape": lambda self: _loaded(self).shape,
        "class_names": lambda self: _loaded(self).class_names,
        "about": lambda self: about,
    }
    for name, read in derived.items():
        if not hasattr(cls, name):
            setattr(cls, name, property(read))


@functools.lru_cache(maxsize=16)
def _revision(code: int | str, entry: Any) -> str:
    return hashlib.sha256(f"{code} {fingerprint(_loaded(entry))}".encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=4)
def _loaded(entry: Any) -> Dataset:
    try:
        dataset = entry.load()
    except FedlibError:
        raise
    except Exception as error:  # in somebody else's code
        raise FedlibError(f"The data set {canonical(entry)} cannot be loaded: {cause(error)}.") from error
    check_dataset(canonical(entry), dataset)
    return dataset


def _samples(name: str, part: str, given: Any) -> tuple[Tensor, Tensor, tuple[str, ...] | None]:
    """(samples, labels, names of the classes where a folder tells them)."""
    names = None
    try:
        if isinstance(given, str | Path) and Path(given).is_dir():
            given = _folder(Path(given))
            names = tuple(given.classes)
        if isinstance(given, str | Path):
            with np.load(given, allow_pickle=False) as arrays:
                x, y = arrays["x"], arrays["y"]
        elif isinstance(given, tuple | list) and len(given) == 2:
            x, y = given
        else:
            pairs = [given[k] for k in range(len(given))]
            x, y = torch.stack([torch.as_tensor(np.asarray(x)) for x, _ in pairs]), [int(y) for _, y in pairs]
        # Copies: what the caller does to theirs later must not change the data set.
        return torch.as_tensor(x).clone(), torch.as_tensor(y).to(torch.int64, copy=True), names
    except FedlibError:
        raise
    except (TypeError, ValueError, KeyError, RuntimeError, IndexError, OSError) as error:
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise FedlibError(f"The {part} set of {name} cannot be read ({why}): give {FORMS}.") from None


def _folder(path: Path):
    """Images as bytes (channels, height, width), colour; all of one size."""
    torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms.functional import pil_to_tensor

    return ImageFolder(str(path), transform=pil_to_tensor)
