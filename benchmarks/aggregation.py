"""What the server's step costs beside FedAvg's: ``python benchmarks/aggregation.py [--models wrn56_4 resnet20]``.

Twenty clients' state_dicts become one, packing included, on one thread, in CPU seconds. Methods take turns in shuffled
order. User and system time are kept apart: the system's share is new memory (a gigabyte for WRN56_4), the same for
every method, and on a busy machine it varies tenfold between turns. A ratio is given for user time alone, which
overstates it, and for the sum of the best of each. Every method does FedAvg's work and more, so a run in which one
comes out cheaper measured the machine and not the method; it is marked and ends with 1.
"""

import argparse
import random
import resource
import sys

import torch
import torch.nn.functional as F

import fedlib
from fedlib.algorithms import ALGORITHMS
from fedlib.core.layout import Layout
from fedlib.models import build

CLIENTS, PROXY = 20, 200
METHODS = {  # the most it may cost, in FedAvgs, on a model the size of WRN56_4
    "fedavg": 1,
    "lws": 2,
    "ldawa": 2,
    "awa": 3,
    "awa(granularity=layer)": 4,
    "awa(rule=cosine)": 3,
}


def cpu(work) -> tuple[float, float]:
    """(user, system) seconds."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def noisy(state: dict, scale: float = 0.01) -> dict:
    return {n: t + scale * torch.randn_like(t) if t.is_floating_point() else t.clone() for n, t in state.items()}


def compare(name: str, turns: int) -> bool:
    model = build(name, (3, 32, 32), 10, seed=0)
    start = noisy(model.state_dict(), 0.0)
    clients, sizes = [noisy(start) for _ in range(CLIENTS)], list(range(100, 100 + CLIENTS))
    thetas, _ = Layout.of_state(start).pack_all(clients)
    weights = torch.full((CLIENTS,), 1 / CLIENTS)
    work = {"weights @ matrix": lambda: weights @ thetas}
    for text in METHODS:
        if text.partition("(")[0] in ALGORITHMS.names():
            work[text] = lambda text=text: fedlib.aggregate(text, start, clients, sizes)
    taken, order = {text: [] for text in work}, list(work)
    for _ in range(turns):
        random.shuffle(order)
        for text in order:
            taken[text].append(cpu(work[text]))
    best = {text: [min(column) for column in zip(*times, strict=True)] for text, times in taken.items()}
    slowest = {text: max(system for _, system in times) for text, times in taken.items()}
    print(f"{name}: {thetas.shape[1]:,} parameters, {CLIENTS} clients, {turns} turns")
    print(f"  {'':26s}{'user':>8s}{'system (worst)':>18s}{'user ratio':>12s}{'ratio':>8s}{'goal on WRN56_4':>17s}")
    user, both = best["fedavg"][0], sum(best["fedavg"])
    for text, (u, s) in best.items():
        line = (
            f"{u:8.3f}{s:9.3f} ({slowest[text]:6.3f}){u / user:12.2f}{(u + s) / both:8.2f}{METHODS.get(text, ''):>17}"
        )
        print(f"  {text:26s}{line}")
    cheaper = [text for text in METHODS if text in best and (best[text][0] < user or sum(best[text]) < both)]
    if cheaper:
        print(f"  Not a measurement: {', '.join(cheaper)} came out below FedAvg. Repeat on a quieter machine.")
    return not cheaper


def law(name: str, turns: int) -> None:
    """A server epoch of FedLAW against one forward and backward pass over the same proxy set."""
    model = build(name, (3, 32, 32), 10, seed=0)
    start = noisy(model.state_dict(), 0.0)
    clients = [noisy(start) for _ in range(CLIENTS)]
    x, y = torch.randn(PROXY, 3, 32, 32), torch.randint(0, 10, (PROXY,))

    def epochs(n):
        fedlib.aggregate(f"law(epochs={n})", start, clients, [1] * CLIENTS, model=model, proxy=(x, y))

    def one_pass():  # in FedLAW's batches
        for xb, yb in zip(x.split(128), y.split(128), strict=True):
            F.cross_entropy(model.eval()(xb), yb).backward()

    # User time: the difference of two runs leaves out what FedLAW does once, packing included.
    three, one = (min(cpu(lambda n=n: epochs(n))[0] for _ in range(turns)) for n in (3, 1))
    epoch = (three - one) / 2
    once = min(cpu(one_pass)[0] for _ in range(turns))
    print(f"{name}: FedLAW {epoch:.3f} s per server epoch, {epoch / once:.2f} x a pass over its proxy ({once:.3f} s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["wrn56_4", "resnet20"])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    sound = [compare(one, options.turns) for one in options.models]
    if "law" in ALGORITHMS.names():
        law("resnet20", turns=2)
    sys.exit(not all(sound))
