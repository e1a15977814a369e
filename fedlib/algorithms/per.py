"""FedPer: personalisation layers (Arivazhagan et al., 2019)."""

from fedlib.algorithms.base import Local, last_layers, register
from fedlib.core.errors import FedlibError
from fedlib.core.layout import Layout


@register("fedper")
class FedPer(Local):
    """The last ``layers`` layers stay with the client; those before them, the base, are averaged.

    Both are trained together. 0 layers are FedAvg, scored by the clients' models. What FedDW's code does is the same.
    """

    layers: int = 1
    keeps = True

    def __post_init__(self):
        if self.layers < 0:
            raise FedlibError(f"fedper(layers=…) must not be negative; got {self.layers}.")

    def personal(self, layout: Layout) -> set[str]:
        return {layer.name for layer in last_layers(layout, self.layers, "fedper")}
