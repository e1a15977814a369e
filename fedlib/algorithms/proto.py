"""FedProto: prototypes instead of models (Tan et al., AAAI 2022)."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.algorithms.base import Batch, Client, Local, Round, Server, register
from fedlib.core.errors import FedlibError


@register("fedproto")
class FedProto(Local, Server):
    """Local loss + strength * mean_i ||z_i - C_{y_i}||^2 / dim: features come to the global prototype of their class.

    A client's prototype of a class is the mean feature z of its samples; the global one C is the mean over all samples
    of the round. A class that nobody holds keeps its prototype; one without has no term. Models are never averaged,
    unless ``average``: so FPL's authors score it, whose comparison FedAWA's Table 7 takes up.
    ``released`` (FedDW's code): z is what enters the first mapping layer fc1, prototypes are means over all rounds
    so far, and a class without one is drawn to zero from the second round on.
    """

    uses_features = True
    strength: float = 1.0
    average: bool = False  # the models too, as FedAvg does
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self):
        if self.strength < 0:
            raise FedlibError(f"fedproto(strength=…) must not be negative; got {self.strength}.")

    @property
    def shares(self) -> bool:
        return self.average

    @property
    def keeps(self) -> bool:
        return not self.average

    def begin(self, c: Client) -> None:
        if self.variant == "released":
            if not hasattr(c.model, "fc1"):
                raise FedlibError("fedproto(variant=released) needs a model with mapping layers: try feddw_cnn_mnist.")
            c.memo["hook"] = c.model.fc1.register_forward_pre_hook(lambda _, x: c.memo.update(z=x[0]))

    def features(self, c: Client, z: Tensor) -> Tensor:
        if self.variant == "released":
            z = c.memo["z"]
        return z.mean(1) if z.ndim > 2 else z  # over a text's words

    def loss(self, c: Client, batch: Batch) -> Tensor | None:
        if "fedproto" not in c.received:
            return None
        z, (prototypes, known) = self.features(c, batch.features), c.received["fedproto"]
        apart = F.mse_loss(z, prototypes[batch.y], reduction="none").mean(1)
        return self.strength * (apart if self.variant == "released" else apart * known[batch.y]).mean()

    def end(self, c: Client) -> None:
        x, y = c.data
        c.model.eval()
        with torch.no_grad():
            z = torch.cat([self.features(c, c.model.features(xb)) for xb in x.split(1000)])
        c.model.train()
        c.uploads["prototype_sums"] = z.new_zeros(c.classes, z.shape[1]).index_add_(0, y, z)
        c.uploads["prototype_counts"] = torch.bincount(y, minlength=c.classes).to(z)
        if "hook" in c.memo:
            c.memo["hook"].remove()

    def step(self, r: Round) -> Tensor:
        sums, counts = sum(r.sent("prototype_sums")), sum(r.sent("prototype_counts"))
        if self.variant == "released":
            sums = r.state["sums"] = r.state.get("sums", 0.0) + sums
            counts = r.state["counts"] = r.state.get("counts", 0.0) + counts
        before, known = r.state.get("prototypes", (torch.zeros_like(sums), torch.zeros_like(counts)))
        here = counts > 0
        prototypes = torch.where(here[:, None], sums / counts.clamp(min=1)[:, None], before)
        r.state["prototypes"] = r.broadcast["fedproto"] = prototypes, torch.maximum(known, here.to(known))
        return r.aggregate
