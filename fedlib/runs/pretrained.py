"""Trains the checkpoints that runs can start from."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.federation.simulation import run_rounds
from fedlib.models import starts
from fedlib.runs.execute import recorded
from fedlib.runs.files import write_atomically
from fedlib.runs.store import default_store


def pretrain(name: str, spec: RunSpec, on_epoch: Callable[[int], Any] | None = None) -> dict:
    """Train a federation of one client, which is ordinary training, and return the card of its checkpoint.

    An interrupted one goes on from its last epoch. The weights and the card are written if there is no ``name`` yet.
    """
    from safetensors.torch import save

    store = default_store()
    with store.lock(spec.id):
        checkpoint = store.checkpoint(spec.id)
        state, model = run_rounds(spec, checkpoint, on_epoch)
        record = recorded(spec, state)
        if record.error:
            raise FedlibError(f"{record.error['message']} Nothing was kept: choose a smaller --lr.")
        content, accuracy = save(model), record.summary["last"]
        card = {
            "about": f"{spec.model} trained on {spec.dataset}, {100 * accuracy:.1f}% of the test images right",
            "model": spec.model,
            "sha256": hashlib.sha256(content).hexdigest(),
            "accuracy": accuracy,
            "recipe": spec.to_json(),
            "environment": record.json["environment"],
        }
        path = starts.FOLDER / f"{name}.json"
        if not path.exists():
            write_atomically(path.with_suffix(".safetensors"), content)
            write_atomically(path, (json.dumps(card, indent=2) + "\n").encode())
        checkpoint.clear()
    return card
