"""What can be told of every round while a run is made: ``fedlib.simulate(spec, callback=fedlib.CSVLog("rounds.csv"))``.

A callback is any ``f(round, metrics)``; metrics are what the round has logged, a dict of numbers.
"""

import json
from pathlib import Path

import pandas as pd

from fedlib.core.errors import FedlibError


class CSVLog:
    """Every round a row of a .csv file, which is whole after every round; columns come when they are first logged."""

    def __init__(self, path: str | Path):
        self.path, self.rows = Path(path), []
        self.path.write_text("")  # a folder that is not there fails before anything is trained

    def __call__(self, round: int, metrics: dict) -> None:
        listed = {name: json.dumps(v) if isinstance(v, list) else v for name, v in metrics.items()}
        self.rows.append({"round": round} | listed)
        pd.DataFrame(self.rows).to_csv(self.path, index=False)


class TensorBoardLog:
    """Every metric a scalar of TensorBoard, in a folder; needs the package tensorboard."""

    def __init__(self, folder: str | Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise FedlibError("TensorBoardLog needs tensorboard: pip install tensorboard.") from None
        self.writer = SummaryWriter(str(folder))

    def __call__(self, round: int, metrics: dict) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float) and name != "round":
                self.writer.add_scalar(name, value, round)
        self.writer.flush()
