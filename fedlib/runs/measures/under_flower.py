"""Our methods under Flower's engine, beside this simulator."""

from typing import Any

from fedlib.core.series import rounded
from fedlib.core.spec import RunSpec
from fedlib.federation.simulation import run_rounds
from fedlib.runs.measures.base import MEASURES, Measurement, OnTurn


@MEASURES.register("under_flower")
class UnderFlower(Measurement):
    """Methods under Flower's simulation engine and in this simulator, with the same clients.

    Accuracy over the rounds (Flower's begins before any training), and by ``checked`` round the largest difference
    between any parameter of the two models.
    """

    dataset: str = "digits"
    model: str = "mlp"
    methods: tuple = ("fedavg", "lws")
    partition: str = "dirichlet(alpha=0.5)"
    clients: int = 4
    subset: int | None = None
    checked: tuple = (1, 3)  # the last of them ends the runs
    epochs: int = 1
    batch_size: int = 16
    lr: float = 0.1
    seed: int = 0
    seconds = 60.0

    def specs(self) -> dict[tuple[str, int], RunSpec]:
        return {
            (method, rounds): RunSpec(
                dataset=self.dataset, model=self.model, partition=self.partition, clients=self.clients, lr=self.lr,
                subset=self.subset, local_epochs=self.epochs, batch_size=self.batch_size, rounds=rounds,
                seed=self.seed, algorithm=method,
            )
            for method in self.methods
            for rounds in self.checked
        }  # fmt: skip

    check = specs

    def measure(self, on_turn: OnTurn) -> dict:
        from fedlib.runs import flower  # an optional extra

        specs = self.specs()
        found: dict[str, dict[str, Any]] = {method: {"apart": {}} for method in self.methods}
        for (method, rounds), theirs in zip(specs, flower.simulate(*specs.values()), strict=True):
            state, ours = run_rounds(specs[method, rounds])
            model = theirs["state"]
            apart = max((model[name].double() - tensor.double()).abs().max().item() for name, tensor in ours.items())
            found[method]["apart"][str(rounds)] = rounded(apart)
            found[method]["flower"] = rounded(theirs["accuracy"])
            found[method]["fedlib"] = state.series["accuracy"]
        return found
