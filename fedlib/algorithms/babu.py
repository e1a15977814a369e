"""FedBABU: body aggregation and body update (Oh, Kim and Yun, ICLR 2022)."""

from torch import Tensor

from fedlib.algorithms.base import Client, Local, Round, Server, register
from fedlib.algorithms.composition import Algorithm
from fedlib.core.errors import FedlibError


@register("fedbabu")
class FedBABU(Local, Server):
    """The classifier keeps its random start for ever, at the clients and on the server; only the body is trained.

    The global model is scored as it is, as FedDW does. The authors also let clients fine-tune it before they score it.
    """

    def check(self, algorithm: Algorithm) -> None:
        if others := [p.name for p in algorithm.parts if p.name in ("dw", "fedper", "fedrep", "fedala")]:
            raise FedlibError(f"{others[0]!r} works on the classifier, which 'fedbabu' never trains; leave one out.")

    def epoch(self, c: Client) -> None:
        c.active = body(c)

    def step(self, r: Round) -> Tensor:
        head = r.layout.classifier.slice  # an average of equal numbers is equal up to rounding only
        r.aggregate[head] = r.theta[head]
        return r.aggregate


def body(c: Client) -> slice:
    """Everything before the classifier, which is the last layer of every model."""
    return slice(0, c.layout.classifier.slice.start)
