"""The only door to torchvision, opened late because importing it takes seconds."""

import importlib
from types import ModuleType

import torch

_kept = []  # operator schemas live as long as the library object that declared them


def torchvision() -> ModuleType:
    """The torchvision package, also where its compiled operators cannot load."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    # A CUDA wheel beside CPU torch: the import stops where it attaches kernels to operators that were never
    # declared. Declaring these two is enough; no data set or model here ever calls them.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
    return importlib.import_module("torchvision")
