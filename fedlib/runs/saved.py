"""Trained global models as .safetensors files that say which run they are of."""

import json
from pathlib import Path

from torch import Tensor, nn

from fedlib.algorithms import Algorithm
from fedlib.core.errors import FedlibError
from fedlib.core.registry import registry_of
from fedlib.core.spec import RunSpec
from fedlib.models import made
from fedlib.runs.files import write_atomically
from fedlib.runs.record import Record


def check(spec: RunSpec, path: str | Path) -> None:
    """Raise before anything is trained if there will be nothing to save, or nowhere."""
    if Path(path).suffix != ".safetensors":
        raise FedlibError(f"A model is saved in a file that ends in .safetensors; got {str(path)!r}.")
    if not Path(path).absolute().parent.is_dir():
        raise FedlibError(f"There is no folder {str(Path(path).parent)!r} to save {Path(path).name} in.")
    if not Algorithm(spec.algorithm).whole:
        raise FedlibError(f"{spec.algorithm} has no complete global model to save: parts of it stay with the clients.")


def save_model(model: dict[str, Tensor], record: Record, path: str | Path) -> None:
    """The state_dict, with the run's id and spec as metadata."""
    from safetensors.torch import save

    data = registry_of("data set").make(record.spec.dataset)
    about = {"id": record.id, "spec": json.dumps(record.json["spec"]), "shape": json.dumps(list(data.shape))}
    about |= {"classes": str(len(data.class_names))}
    write_atomically(Path(path).absolute(), save({n: t.contiguous() for n, t in model.items()}, about))


def load_model(path: str | Path) -> nn.Module:
    """The model that ``save=`` or ``--save`` has written, in eval mode; ``model.run`` is the id of its run."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
        model = made(json.loads(about["spec"])["model"], tuple(json.loads(about["shape"])), int(about["classes"]))
        model.load_state_dict(load_file(path))
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        if isinstance(error, FedlibError):
            raise
        raise FedlibError(f"{path} is not a model that fedlib has saved: {' '.join(str(error).split())}.") from None
    model.run = about["id"]
    return model.eval()
