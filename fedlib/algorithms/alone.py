"""Training alone: the baseline of every collaboration."""

from fedlib.algorithms.base import Local, register


@register("local")
class Alone(Local):
    """Every client trains its own model whenever it takes part; nothing is averaged.

    The global model is the common start and stays it. What is scored are the clients' models.
    """

    keeps = True
    shares = False
