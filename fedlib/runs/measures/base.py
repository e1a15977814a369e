"""Measurements that are not federated runs, such as the seconds of an aggregation step. They are records too.

A notebook's grid may hold ``Measure("aggregation_time(model=resnet20)")`` beside its ``RunSpec``s: planned, stored
and read back the same way, so that a page renders without measuring anything again.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

from fedlib.core.errors import FedlibError
from fedlib.core.registry import Registry
from fedlib.core.spec import MOST

MEASURES = Registry("measurement")
OnTurn = Callable[[int], object]  # is told how many turns are done


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What measurements have in common: their parameters are checked where they are written, not first in a worker."""

    def __post_init__(self):
        for f in fields(self):
            value, least = getattr(self, f.name), f.name != "seed"
            if type(value) is int and not least <= value <= MOST:
                raise FedlibError(f"{self.name}({f.name}=…) is from {least:d} to {MOST:,}; got {value}.")
            if value == ():
                raise FedlibError(f"{self.name}({f.name}=…) must not be empty.")
        self.check()

    def check(self) -> object:
        """Raise where something has no meaning, such as a method that does not exist."""
