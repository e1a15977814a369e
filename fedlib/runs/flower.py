"""Weightings and server parts of the workbook as strategies of Flower (the extra ``flower``).

``Strategy("awa+lws")`` goes where Flower's own ``FedAvg`` would: in a simulation, or in front of real machines.
"""

import json
import logging
import os
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # both would report their use elsewhere
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from fedlib.algorithms import Algorithm  # noqa: E402
from fedlib.core.device import device, one_thread  # noqa: E402
from fedlib.core.errors import FedlibError  # noqa: E402
from fedlib.core.layout import matrix  # noqa: E402
from fedlib.core.registry import canonical  # noqa: E402
from fedlib.core.spec import RunSpec  # noqa: E402
from fedlib.federation.aggregation import aggregate, refuse_local  # noqa: E402
from fedlib.federation.federation import Federation  # noqa: E402
from fedlib.federation.state import RunState  # noqa: E402
from fedlib.runs.estimate import estimate  # noqa: E402
from fedlib.runs.worker import call  # noqa: E402


class Strategy(FedAvg):
    """Flower chooses the nodes and carries the messages, ``algorithm`` makes the new model of the replies.

    Clients reply as to ``FedAvg``: arrays, and metrics with "num-examples". Where a method weighs by classes, they also
    send the list "class-counts". ``context`` is what ``fedlib.aggregate`` takes besides (``model=``, ``proxy=``,
    ``server_lr=`` …), ``options`` are those of ``FedAvg``. Weights and factors of a round join its metrics.
    """

    def __init__(self, algorithm: str, context: dict | None = None, **options: Any):
        super().__init__(**options)
        refuse_local(
            Algorithm(algorithm), "which under Flower is the ClientApp's part: train that way there, and name only "
            "weightings and server parts here",
        )  # fmt: skip
        self.algorithm, self.context, self.memory = algorithm, context or {}, {}
        self.sent: dict[str, torch.Tensor] = {}
        learning = [part.name for part in Algorithm(algorithm).servers if part.needs_proxy]
        if learning and not {"model", "proxy"} <= set(self.context):
            raise FedlibError(
                f"{learning[0]!r} learns from data on the server: pass context=dict(model=…, proxy=(x, y)) to Strategy."
            )
        self.lost = []  # why clients did not answer

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.sent = arrays.to_torch_state_dict()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies, lost = self._check_and_log_replies(replies, is_train=True)
        self.lost += [reply.error.reason for reply in lost]
        if not replies:
            return None, None
        replies = sorted(replies, key=lambda reply: reply.metadata.src_node_id)  # one sum, whatever came first
        contents = [reply.content for reply in replies]
        numbers: list[Any] = [next(iter(content.metric_records.values())) for content in contents]
        context = dict(self.context)
        if "class-counts" in numbers[0]:
            context["counts"] = torch.tensor([n["class-counts"] for n in numbers])
        found = aggregate(
            self.algorithm,
            self.sent,
            [next(iter(content.array_records.values())).to_torch_state_dict() for content in contents],
            [int(n[self.weighted_by_key]) for n in numbers],
            state=self.memory,
            ids=[reply.metadata.src_node_id for reply in replies],
            round=server_round,
            **context,
        )
        self.memory = found.state
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        metrics.pop("class-counts", None)
        metrics["weights"] = found.weights.flatten().tolist()
        for name, value in found.factors.items():
            metrics[name] = list(value.values()) if isinstance(value, dict) else value
        return ArrayRecord(found.state_dict), metrics


def client_app(*specs: RunSpec) -> ClientApp:
    """The clients of runs: node ``partition-id`` holds that client's samples and trains as it does in the simulator.

    The train message's config says which of the specs is meant, as "run" (0 where it is missing).
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config: Any = message.content["config"]
        node: Any = context.node_config["partition-id"]
        spec, arrays = specs[int(config.get("run", 0))], message.content.array_records["arrays"]
        with one_thread():
            arrays, metrics = answer(spec, int(node), int(config["server-round"]), arrays)
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def answer(spec: RunSpec, k: int, number: int, arrays: ArrayRecord) -> tuple[ArrayRecord, MetricRecord]:
    """What client ``k`` sends back in round ``number``."""
    fed = federation(spec)
    layout = fed.flat.layout
    theta, buffers = layout.pack(arrays.to_torch_state_dict(), device())
    thetas, statistics = matrix(1, layout.size, device()), matrix(1, layout.buffer_size, device())
    state = RunState(theta, buffers)
    chosen = [(k, spec.local_epochs)]
    logs, uploads = fed.train_sequentially(chosen, thetas, statistics, number, Algorithm(spec.algorithm), state)
    if state.clients or uploads:
        raise FedlibError(
            f"{spec.algorithm!r} has clients that remember something or send more than a model; this adapter carries "
            "models only. Run it in the simulator, or write its ClientApp."
        )
    metrics = {"num-examples": len(fed.partition.indices[k]), "class-counts": fed.partition.counts[k].tolist()}
    metrics |= {name: float(np.mean(values)) for name, values in logs.items()}
    return ArrayRecord(layout.unpack(thetas[0].cpu(), statistics[0].cpu())), MetricRecord(metrics)


federation = cache(Federation)  # data and model once per process, not once per message


def on_server(algorithm: str) -> str:
    """A written form without what its clients do."""
    whole = Algorithm(algorithm)
    names = [canonical(part) for part in whole.weightings + whole.servers]
    return "+".join(names if any(p.fresh for p in whole.weightings) else [f"fedavg(weights={whole.start})", *names])


def simulate(*specs: RunSpec) -> list[dict]:
    """Runs under Flower's own simulation engine, one after the other, with the clients and the test set of ours.

    Of each the model it ended at, ``state``, and its ``accuracy`` per round, that of the start too. Flower has a
    process of its own and two tries: Ray may not start on a busy machine, and then threads are left that nothing ends.
    """
    seconds = 300 + 20 * sum(map(estimate, specs))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "specs.json").write_text(json.dumps([spec.to_json() for spec in specs]))
        for _ in range(2):
            code, why = call("fedlib.runs.flower", "simulate_here", folder, seconds=seconds)
            if code == 0:
                return torch.load(Path(folder, "results.pt"), weights_only=True)
            if code == 2:
                raise FedlibError(why)
    raise FedlibError(f"Flower's simulation failed twice: {why.rstrip('.')}. It needs Ray to start on this machine.")


def simulate_here(folder: str) -> None:
    """What ``simulate`` does in the other process: specs and results are files in ``folder``."""
    specs = [RunSpec.from_json(fields) for fields in json.loads(Path(folder, "specs.json").read_text())]
    results = []
    logging.getLogger("flwr").setLevel(logging.WARNING)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for i, spec in enumerate(specs):
            fed = federation(spec)
            strategy = Strategy(
                on_server(spec.algorithm), {"server_lr": spec.server_lr, "seed": spec.seed},
                fraction_evaluate=0.0, min_available_nodes=spec.clients,
            )  # fmt: skip
            start = ArrayRecord(fed.flat.layout.unpack(fed.flat.theta.cpu(), fed.flat.buffers.cpu()))

            def score(number: int, arrays: ArrayRecord, fed: Federation = fed) -> MetricRecord:
                accuracy, loss = fed.score({"model": fed.flat.layout.pack(arrays.to_torch_state_dict(), device())})
                return MetricRecord({"accuracy": accuracy, "loss": loss})

            config = ConfigRecord({"run": i})
            ended = strategy.start(grid, start, spec.rounds, train_config=config, evaluate_fn=score)
            if lost := strategy.lost:
                why = lost[0].splitlines()[-1]
                raise FedlibError(f"{len(lost)} times a client of {spec.algorithm!r} did not answer: {why}")
            scores = [ended.evaluate_metrics_serverapp[n]["accuracy"] for n in range(spec.rounds + 1)]
            results.append({"state": ended.arrays.to_torch_state_dict(), "accuracy": scores})

    one: dict[str, Any] = {
        "init_args": {"num_cpus": 1, "include_dashboard": False},
        "client_resources": {"num_cpus": 1},
    }
    run_simulation(server, client_app(*specs), specs[0].clients, backend_config=one)
    torch.save(results, Path(folder, "results.pt"))
