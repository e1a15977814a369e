"""What a run may cost: a guide for plans, for the order of a batch and for how long a round may take at most."""

import functools

from fedlib.algorithms import Algorithm
from fedlib.algorithms.proxy import OnProxy
from fedlib.core.spec import Measure, RunSpec
from fedlib.data import DATASETS
from fedlib.data.proxy import PROXIES
from fedlib.models import made
from fedlib.probes import parts

# Seconds for every parameter tensor of a step, and operations a second. Those of a core are fitted to
# benchmarks/training.py; those of a GPU are a rule of thumb (kernels to launch, a tenth of what a recent card can do).
SPEEDS = {"cpu": (5e-5, 4e10), "cuda": (1.5e-4, 5e12)}
START = 0.1  # seconds before the first round and after the last: data, partition, record


def estimate(spec: RunSpec | Measure, device: str = "cpu") -> float:
    """Seconds a run may take on one core, or on a GPU: its samples at the speed of its model. A guide, no promise."""
    if isinstance(spec, Measure):
        return spec.estimate()
    train_size, test_size = DATASETS.make(spec.dataset).sizes
    samples = (spec.subset or train_size) * spec.clients_per_round / spec.clients * spec.local_epochs
    samples *= 1 - spec.stragglers * (spec.local_epochs - 1) / (2 * spec.local_epochs)
    samples += server_work(spec)
    tests = (spec.test_subset or test_size) / spec.eval_every / 3  # a forward pass is a third of a step
    tests *= spec.scored_models
    tensors, operations = model_cost(spec.model, spec.dataset)
    step, sample = tensors * SPEEDS[device][0], operations / SPEEDS[device][1]
    seconds = START + spec.rounds * (samples * (sample + step / spec.batch_size) + tests * sample)
    return seconds + probes_work(spec, spec.subset or train_size, spec.test_subset or test_size) * sample


def longest_round(spec: RunSpec | Measure) -> float:
    """Seconds that one round may take on one core if it is scored and every probe measures in it."""
    if isinstance(spec, Measure):
        return spec.estimate()
    train_size, test_size = DATASETS.make(spec.dataset).sizes
    sizes = spec.subset or train_size, spec.test_subset or test_size
    work = sum(probe.work(spec, *sizes) for probe in parts(spec.probes))
    sample = model_cost(spec.model, spec.dataset)[1] / SPEEDS["cpu"][1]
    return estimate(spec.replace(rounds=1, eval_every=1, probes=None)) + work * sample


def server_work(spec: RunSpec) -> float:
    """What the server's passes over its proxy set take in a round, in training samples."""
    passes = sum(p.resolved.epochs for p in Algorithm(spec.algorithm).servers if isinstance(p, OnProxy))
    return passes * PROXIES.make(spec.proxy).size if spec.proxy else 0.0


def probes_work(spec: RunSpec, train_size: int, test_size: int) -> float:
    """What all measurements of a run's probes take, in training samples."""
    times = {p: sum(p.due(n, spec.rounds) for n in range(1, spec.rounds + 1)) for p in parts(spec.probes)}
    return sum(count * p.work(spec, train_size, test_size) for p, count in times.items())


@functools.cache
def model_cost(model: str, dataset: str) -> tuple[int, float]:
    """(parameter tensors, floating-point operations to train on one sample)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    entry = DATASETS.make(dataset)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        net = made(model, entry.shape, len(entry.class_names))
        net(torch.empty(2, *entry.shape))
    layers = sum(1 for _ in net.parameters())
    return layers, 3 * counter.get_total_flops() / 2
