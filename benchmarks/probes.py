"""What each probe costs beside a round of training: ``python benchmarks/probes.py [--model resnet20] [--turns 3]``.

Three clients share the digits, enlarged to the shape of CIFAR-10. Every turn trains one round and then measures it
with every probe, in one process on one thread, in CPU seconds (user); the best turn counts. The last column is what
the probe's own schedule adds to a run of 100 rounds.
"""

import argparse
import resource

from fedlib.algorithms import Algorithm
from fedlib.core.device import one_thread
from fedlib.core.spec import RunSpec
from fedlib.federation.federation import Federation
from fedlib.probes import PROBES
from fedlib.probes.base import untouched

ROUNDS = 100


def cpu(work):
    """(what it returns, user seconds)."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    found = work()
    return found, resource.getrusage(resource.RUSAGE_SELF).ru_utime - before


def main(model: str, turns: int) -> None:
    spec = RunSpec(dataset="digits(shape=(3, 32, 32))", model=model, partition="dirichlet(alpha=0.5)", clients=3)
    fed, algorithm = Federation(spec), Algorithm(spec.algorithm)
    state = fed.start()
    rounds, taken = [], {name: [] for name in PROBES.names()}

    def one_round(number: int):
        r = fed.train_cohort(number, algorithm, state, {})
        state.theta, state.buffers = algorithm.aggregate(r, {})
        fed.evaluate(state.theta, state.buffers, algorithm, {})
        return r

    for number in range(1, turns + 1):
        r, seconds = cpu(lambda number=number: one_round(number))
        rounds.append(seconds)
        for name, times in taken.items():
            r.__dict__.pop("products", None)  # every probe pays for its own
            r.__dict__.pop("updates", None)
            with untouched(fed.flat):
                times.append(cpu(lambda name=name, r=r: PROBES.make(name).measure(fed, r))[1])
    once = min(rounds)
    print(f"{model}: {fed.flat.layout.size:,} parameters, a round of {len(fed.y):,} samples takes {once:.2f} s")
    print(f"  {'':15s}{'seconds':>9s}{'of a round':>12s}{'times in 100':>14s}{'of a run':>10s}")
    for name, times in sorted(taken.items(), key=lambda item: min(item[1])):
        due = sum(PROBES.make(name).due(n, ROUNDS) for n in range(1, ROUNDS + 1))
        ratio = min(times) / once
        print(f"  {name:15s}{min(times):9.3f}{ratio:12.1%}{due:14d}{ratio * due / ROUNDS:10.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="simple_cnn")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    with one_thread():
        main(options.model, options.turns)
