"""The rounds of a run, on one screen."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.algorithms import Algorithm
from fedlib.core.device import describe_machine, device, one_thread, prepare_device
from fedlib.core.errors import Diverged
from fedlib.core.series import append_round, numbers
from fedlib.core.spec import RunSpec
from fedlib.federation.federation import Federation
from fedlib.federation.state import RunState
from fedlib.probes import observe


@one_thread()
def run_rounds(
    spec: RunSpec, checkpoint: Any = None, on_round: Callable[[int], Any] | None = None,
    callback: Callable[[int, dict], Any] | None = None,
) -> tuple[RunState, dict[str, Tensor]]:  # fmt: skip
    """Train ``spec`` to its end, or to where the checkpoint says that the time is up.

    Returns what it has come to and its global model as a state_dict. ``checkpoint`` (see runs.store) makes it
    resumable; ``on_round(done)`` is told after every round, ``callback(round, metrics)`` also what it has logged.
    """
    began, on_round = time.perf_counter(), on_round or (lambda done: None)
    prepare_device(spec.precision)
    fed, algorithm = Federation(spec), Algorithm(spec.algorithm)
    state = fed.start()
    if checkpoint and (saved := RunState.loaded(checkpoint.load(device()), spec, state)):
        state = saved
        on_round(state.round)
    here = describe_machine()
    state.environments = [other for other in state.environments if other != here] + [here]
    before, begun = state.seconds, state.round
    try:
        while state.round < spec.rounds and not (checkpoint and checkpoint.over()):
            number = state.round = state.round + 1
            logs: dict = {}
            if r := fed.train_cohort(number, algorithm, state, logs):
                state.theta, state.buffers = algorithm.aggregate(r, state.server)
                logs.update(r.logs)
                if not all(bool(torch.isfinite(vector.sum())) for vector in (state.theta, state.buffers)):
                    raise Diverged(f"The aggregate of round {number} is not finite.", number, None)
                for found in observe(fed, r, state.probes):
                    append_round(*found)
            if number % spec.eval_every == 0 or number == spec.rounds:
                theta = algorithm.evaluated(state.theta, fed.flat.layout, state.server)
                logs.update(round=number, **fed.evaluate(theta, state.buffers, algorithm, state.clients))
                if not np.isfinite(logs["loss"]):
                    raise Diverged(f"The test loss of round {number} is not finite.", number, None)
                append_round(state.series, logs)
            state.seconds = before + time.perf_counter() - began
            on_round(number)
            if callback:
                callback(number, numbers(logs))
            if checkpoint and checkpoint.due() and number < spec.rounds:
                checkpoint.save(**state.saved())
    except Diverged as stop:
        state.error = {"round": stop.round, "client": stop.client, "message": str(stop)}
    if begun < state.round < spec.rounds and not state.error:  # the time is up
        checkpoint.save(**state.saved())
    return state, fed.flat.layout.unpack(state.theta.cpu(), state.buffers.cpu())
