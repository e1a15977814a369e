"""FedRep: shared representation, own heads (Collins et al., ICML 2021)."""

from typing import Literal

from fedlib.algorithms.babu import body
from fedlib.algorithms.base import Client, Local, register
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Layout


@register("fedrep")
class FedRep(Local):
    """The head (the classifier) stays with the client; it is trained first, on the representation it was given, then
    the representation is, under that head, and averaged.

    Of a client's local epochs the last one is the representation's and all others the head's, as in the authors' code;
    ``released`` (FedDW's code): the first one is the head's and all others the representation's.
    """

    head_epochs: int | None = None
    variant: Literal["paper", "released"] = "paper"
    keeps = True

    def __post_init__(self):
        if self.head_epochs is not None and self.head_epochs < 1:
            raise FedlibError(f"fedrep(head_epochs=…) is at least 1; got {self.head_epochs}.")

    @property
    def least_epochs(self) -> int:
        return (self.head_epochs or 1) + 1

    def personal(self, layout: Layout) -> set[str]:
        return {layout.classifier.name}

    def epoch(self, c: Client) -> None:
        first = self.head_epochs or (1 if self.variant == "released" else c.epochs - 1)
        c.active = c.layout.classifier.slice if c.epoch < first else body(c)
