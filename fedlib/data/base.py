"""What a data set is, and what those that live in files have in common."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedlib.core.errors import FedlibError
from fedlib.core.registry import Registry
from fedlib.data import sources

DATASETS = Registry("data set")
Part = Literal["whole", "subset"]  # of a data set: the second where only some of it can be had


@dataclass(frozen=True)
class Dataset:
    """Samples with their labels; shared, so never written to.

    A sample is an image of bytes (channels, height, width), a text of word numbers (length,) as int32, or a bag of
    words as float16 counts.
    """

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


class Files:
    """A data set in files: ``sources`` has one for every value of its parameter ``part``, or just the whole.

    A part is named in the spec because it decides the numbers: ``cifar100`` never means less than all of it.
    """

    @property
    def source(self) -> sources.Source:
        return self.sources[getattr(self, "part", "whole")]

    @classmethod
    def variants(cls) -> list[dict]:
        """The parameters of its parts, for the list of data sets."""
        return [{} if part == "whole" else {"part": part} for part in cls.sources]

    @property
    def sizes(self) -> tuple[int, int]:
        return self.source.sizes

    def load(self, progress: bool = True) -> Dataset:
        arrays, where = self.arrays(progress)
        for part in ("train", "test"):  # not all that users may have is pinned by a checksum
            if (most := int(arrays[f"y_{part}"].max())) >= len(self.class_names):
                wrong = f"{self.name} from {where} has the label {most}, but {len(self.class_names)} classes"
                raise FedlibError(f"{wrong}: delete {self.source.cache} and fetch its files again.")
        tensors = {k: torch.from_numpy(a).long() if k[0] != "x" else self.samples(a) for k, a in arrays.items()}
        return Dataset(
            name=self.name, classes=len(self.class_names), class_names=self.class_names, source=where,
            note=self.source.note, **tensors,
        )  # fmt: skip

    def arrays(self, progress: bool) -> tuple[sources.Arrays, str]:
        try:
            return sources.read(self.source, progress)
        except FedlibError as error:
            here = [part for part, source in self.sources.items() if part != "whole" and source.present]
            if here and self.source is self.sources.get("whole"):
                raise FedlibError(f"{error} Only a part of it is here: write {self.name}(part={here[0]}).") from None
            raise

    def samples(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x)
