"""Data sets as tensors: what there is, where it was found, and the pieces of it that a run uses."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedlib.data.digits
import fedlib.data.images
import fedlib.data.text  # noqa: F401 these register their data sets
from fedlib.core.errors import FedlibError
from fedlib.core.layout import gather
from fedlib.core.registry import canonical
from fedlib.data import own, sources
from fedlib.data.base import DATASETS, Dataset
from fedlib.data.own import register_dataset
from fedlib.data.sources import data_dir

__all__ = [
    "DATASETS", "TRANSFORMS", "Dataset", "Stored", "about", "data_dir", "get", "inventory", "load", "register_dataset",
    "subset", "to_float",
]  # fmt: skip
DATASETS.complete = own.complete


def _of_pixels(scale: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Bytes are pixels and scaled; word numbers stay as they are, counts of words become float32."""

    def transform(x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            return scale(x.float())
        return x.float() if x.is_floating_point() else x

    return transform


@functools.cache
def imagenet(device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation of ImageNet's red, green and blue."""
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None].to(device)
    return mean, deviation


def _like_imagenet(x: Tensor) -> Tensor:
    mean, deviation = imagenet(x.device)
    return (x / 255 - mean) / deviation


TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "unit": _of_pixels(lambda x: x / 255),
    "half": _of_pixels(lambda x: (x / 255 - 0.5) / 0.5),
    "imagenet": _of_pixels(_like_imagenet),  # for weights trained that way
}


@dataclasses.dataclass
class Stored:
    """Samples that are scaled when they are asked for. A card, whose memory several runs share, holds images as bytes,
    a quarter of their floats; scaling them anew costs it little, and a CPU more."""

    x: Tensor
    transform: Callable[[Tensor], Tensor]
    ndim = 0  # no tensor: ``gather`` leaves it to us to keep the memory format

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.transform(gather(self.x, index))

    def split(self, size: int) -> Iterator[Tensor]:
        return map(self.transform, self.x.split(size))


def load(text: str) -> Dataset:
    """The data set that ``text`` names, fetched if need be and kept in memory."""
    return _load(canonical(DATASETS.make(text)), data_dir())


@functools.lru_cache(maxsize=4)
def _load(text: str, directory: Path) -> Dataset:
    return DATASETS.make(text).load()


def get(text: str, progress: bool = True) -> Dataset:
    """Find or fetch a data set now, verify it and keep it in the data directory; progress on stderr."""
    return DATASETS.make(text).load(progress)


def subset(dataset: Dataset, n_train: int | None, n_test: int | None, skip: int = 0) -> Dataset:
    """The first n/classes samples of every class, in file order, and as many of every domain; None keeps all.

    ``skip`` training samples, as many of every class, are passed over before them.
    """
    changes, notes = {}, [dataset.note] if dataset.note else []
    for part, n, past in (("train", n_train, skip), ("test", n_test, 0)):
        if n is None:
            continue
        group, domain = getattr(dataset, f"y_{part}"), getattr(dataset, f"domain_{part}")
        groups, kinds = dataset.classes, f"{dataset.classes} classes"
        if domain is not None:
            domains = int(domain.max()) + 1
            group, groups, kinds = group * domains + domain, groups * domains, f"{kinds} in {domains} domains"
        each, past, over = n // groups, past // groups, (n % groups, past % groups)
        fewest = int(torch.bincount(group, minlength=groups).min())
        if n <= 0 or any(over) or past + each > fewest:
            raise FedlibError(
                f"A {part} subset of {dataset.name}, and what is skipped before it, is a multiple of its {kinds} "
                f"and both together at most {fewest * groups}; got {n} after {past * groups + over[1]}."
            )
        keep = torch.cat([torch.nonzero(group == g)[past : past + each, 0] for g in range(groups)]).sort().values
        for field in (f"x_{part}", f"y_{part}", f"domain_{part}"):
            if (whole := getattr(dataset, field)) is not None:
                changes[field] = whole[keep]
        of = "class" if domain is None else "class and domain"
        after = f" after the first {past}" if past else ""
        notes.append(f"subset: the first {each} of each {of}{after} of the {part} set ({n} of {len(group)})")
    return dataclasses.replace(dataset, **changes, note="; ".join(notes))


def to_float(x: Tensor) -> Tensor:
    """Samples as models see them: pixels as float32 in [0, 1]."""
    return TRANSFORMS["unit"](x)


def inventory() -> list[dict]:
    """Every data set, and its parts, in one row each; reads headers only, so the checksum is the recorded one."""
    classes = [DATASETS.entries[name] for name in DATASETS.names()]
    return [_row(cls(**values)) for cls in classes for values in (cls.variants() if hasattr(cls, "variants") else [{}])]


def about(entry: Any) -> str:
    """What a data set is in a line; of a part, what it is rather than what it is a part of."""
    note = entry.source.note if hasattr(entry, "sources") else ""
    return f"{entry.about.partition(':')[0]}, {note}" if note.startswith("subset") else entry.about


def _row(entry: Any) -> dict:
    row = dict(name=canonical(entry), about=about(entry), present=True, train=entry.sizes[0], test=entry.sizes[1])
    row |= dict(source="scikit-learn", where="installed package", checksum="", note="", obtain="")
    if entry.revision != 1:  # somebody's own
        return row | dict(source=type(entry).__module__, where="", checksum=str(entry.revision))
    if hasattr(entry, "domains"):  # made of others
        absent = [domain.name for domain in entry.domains if not _row(domain)["present"]]
        return row | dict(source="", where="", present=not absent, obtain=absent and f"needs {', '.join(absent)}" or "")
    if not hasattr(entry, "sources"):
        return row
    source = entry.source
    row |= dict(note=source.note, source="", where="")
    if (header := sources.header(source)) is not None:
        return row | header | dict(where=str(source.cache))
    row |= dict(train=None, test=None)
    if layout := source.present:
        return row | dict(source="data directory", where=str(data_dir() / layout.folder))
    return row | dict(present=False, obtain=sources.obtain(source))
