"""Three fixed FedAvg workloads on one thread, reported as one line of JSON: ``python benchmarks/workload.py cnn 2``.

Generated data, initial weights and cohorts are defined below to the last bit, so any simulator can do the same work and
be measured beside this one; ``loss`` and ``update_norm`` prove that it did. Local training and aggregation are
fedlib's own. One warm-up round precedes the ROUNDS that are timed.

              clients x samples   cohort   batch   lr, momentum   input      parameters
    mlp            100 x 600         10      10      0.01, 0.9     784          199,210
    cnn           1000 x 50          50      10      0.1,  0       3x32x32    1,626,442
    resnet20        20 x 100         20      64      0.05, 0.9     3x32x32      269,722

Client k owns rows k*n to (k+1)*n - 1 and takes them in that order, one epoch, nothing shuffled. The cohort of round r
(the warm-up is 0) is ``RandomState(7000 + r).choice(clients, cohort, replace=False)``. mlp has two hidden layers of
200; cnn is conv 3x3 of 32 and of 64, both unpadded, max-pool 2, linear 128 and the classifier; resnet20 is He et al.'s
with shortcut A. ``loss`` is that of the final model on the first 2,000 rows, BatchNorm in training mode: 0.52887 after
``mlp 5``, 2.02542 after ``cnn 2``, 2.18189 after ``resnet20 1``, up to rounding. ``startup_s`` counts from the start of
the process, with what the warm-up took beyond a median round.
"""

import json
import math
import resource
import sys
import time

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.algorithms import Algorithm, Client, Round
from fedlib.core.device import one_thread
from fedlib.core.layout import FlatModel, gather, matrix
from fedlib.core.optimizers import OPTIMIZERS
from fedlib.core.random import stream
from fedlib.core.spec import RunSpec
from fedlib.federation.training import train
from fedlib.models import MODELS
from fedlib.models.base import Net

SHAPE = {"mlp": (784,), "cnn": (3, 32, 32), "resnet20": (3, 32, 32)}
SEPARATION = {"mlp": 0.1, "cnn": 0.5, "resnet20": 0.5}
SAMPLES = {"mlp": 600, "cnn": 50, "resnet20": 100}
RUN = {
    "mlp": dict(clients=100, participation=0.1, batch_size=10, lr=0.01, optimizer="sgd(momentum=0.9)"),
    "cnn": dict(clients=1000, participation=0.05, batch_size=10, lr=0.1, optimizer="sgd"),
    "resnet20": dict(clients=20, batch_size=64, lr=0.05, optimizer="sgd(momentum=0.9)"),
}


class CNN(Net):
    """The network of the cnn workload, which no paper here uses."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.classifier = nn.Linear(64 * 14 * 14, 128), nn.Linear(128, 10)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.relu(self.fc1(x.flatten(1)))


def data(name: str, clients: int) -> tuple[Tensor, Tensor]:
    """Ten Gaussian classes; the mean of an image has one value for every 4x4 patch."""
    rs, shape = np.random.RandomState(1234), SHAPE[name]
    if len(shape) == 1:
        mean = rs.standard_normal((10, *shape))
    else:
        mean = rs.standard_normal((10, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    y = rs.randint(0, 10, clients * SAMPLES[name]).astype(np.int64)
    # In the order in memory that training wants: a second copy would be the largest thing in memory.
    form = torch.channels_last if len(shape) == 3 else torch.contiguous_format
    x = torch.empty(len(y), *shape, memory_format=form)
    for first in range(0, len(y), 1000):
        label = y[first : first + 1000]
        rows = SEPARATION[name] * mean[label] + rs.standard_normal((len(label), *shape))
        x[first : first + 1000] = torch.from_numpy(rows)
    return x, torch.from_numpy(y)


@torch.no_grad()
def network(name: str) -> Net:
    """Uniform weights within 1/sqrt(fan-in), drawn in the order of the parameters; biases 0, BatchNorm scales 1."""
    text = {"mlp": "mlp", "resnet20": "resnet20(shortcut=A)"}
    net, rs = CNN() if name == "cnn" else MODELS.make(text[name]).build(SHAPE[name], 10), np.random.RandomState(4321)
    for tensor, p in net.named_parameters():
        if p.ndim > 1:
            p.copy_(torch.from_numpy(rs.uniform(-1, 1, tuple(p.shape)) / math.sqrt(p[0].numel())))
        else:
            p.fill_(float(tensor.endswith("weight")))
    return net


def in_order(spec: RunSpec, number: int, k: int, samples: int) -> Tensor:
    """Client k's rows arranged so that the shuffle of its (only) epoch puts them back in order."""
    shuffle = stream(spec.seed, "batches", number, k).permutation(samples)
    return torch.from_numpy(k * samples + np.argsort(shuffle))


def main(name: str, rounds: int) -> dict:
    # The run as its spec has it; data set and partition are those above, which are no part of the library.
    spec = RunSpec(dataset="digits", model="mlp", partition="iid", rounds=rounds + 1, **RUN[name])
    flat = FlatModel(network(name), channels_last=len(SHAPE[name]) == 3)
    x, y = data(name, spec.clients)
    algorithm, optimizer, samples = Algorithm("fedavg"), OPTIMIZERS.make(spec.optimizer), SAMPLES[name]
    theta, buffers, moments = flat.theta.clone(), flat.buffers.clone(), optimizer.state(flat.theta)
    thetas = matrix(spec.clients_per_round, len(theta))
    start, stamps = theta.clone(), [time.time()]
    for number in range(rounds + 1):
        ids = np.random.RandomState(7000 + number).choice(spec.clients, spec.clients_per_round, replace=False).tolist()
        client_buffers = matrix(len(ids), len(buffers))
        for row, k in enumerate(ids):
            flat.theta.copy_(theta)
            flat.buffers.copy_(buffers)
            for tensor in moments.values():
                tensor.zero_()
            mine = in_order(spec, number, k, samples)
            client = Client(k, number, flat.model, flat.layout, flat.theta, flat.grad, theta)
            train(flat, gather(x, mine), y[mine], client, algorithm.locals, spec, optimizer, moments, spec.local_epochs)
            thetas[row], client_buffers[row] = flat.theta, flat.buffers
        sizes = torch.full((len(ids),), float(samples))
        r = Round(flat.layout, theta, buffers, thetas, client_buffers, sizes, ids, number)
        theta, buffers = algorithm.aggregate(r, {})
        stamps.append(time.time())
    flat.theta.copy_(theta)
    with torch.no_grad():
        pieces = x[:2000].split(2000 if len(buffers) else 200)  # BatchNorm must see them together; less memory else
        loss = F.cross_entropy(torch.cat([flat.model.train()(piece) for piece in pieces]), y[:2000])
    seconds = np.diff(stamps)
    median = float(np.median(seconds[1:]))
    return {
        "peer": "fedlib",
        "workload": name,
        "rounds": rounds,
        "sec_per_round": round(median, 4),
        "startup_s": round(stamps[0] - psutil.Process().create_time() + max(0.0, seconds[0] - median), 2),
        "samples_per_s": round(spec.clients_per_round * samples / median, 1),
        "loss": round(float(loss), 6),
        "update_norm": round(float((theta - start).norm()), 5),
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "threads": str(torch.get_num_threads()),
        "round_s": [round(s, 4) for s in seconds.tolist()],
    }


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in RUN or not sys.argv[2].isdecimal() or int(sys.argv[2]) < 1:
        sys.exit(f"usage: python benchmarks/workload.py {'|'.join(RUN)} ROUNDS")
    with one_thread():
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
