import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from warm import forked

FEDLIB = Path(sys.executable).with_name("fedlib")


@pytest.fixture
def environment(tmp_path):
    """The user's environment with a store of its own."""
    kept = {name: value for name, value in os.environ.items() if name == "FEDLIB_DATA" or "FEDLIB" not in name}
    return kept | {"FEDLIB_STORE": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def fresh_shell(tmp_path, environment):
    """Call the fedlib command as a user would; returns the finished process."""

    def call(*arguments, **variables):
        return subprocess.run(
            [FEDLIB, *map(str, arguments)], cwd=tmp_path, env=environment | variables, capture_output=True, text=True
        )

    return call


@pytest.fixture
def shell(tmp_path, environment, fresh_shell):
    """The same in a process that is forked from one which has imported torch and the rest, some seconds faster."""
    if sys.platform != "linux":
        return fresh_shell

    def call(*arguments, **variables):
        return forked([str(argument) for argument in arguments], str(tmp_path), environment | variables)

    return call


@pytest.fixture
def start(tmp_path, environment):
    """Start the fedlib command in a session of its own, so that a signal can reach all its processes."""
    processes = []

    def call(*arguments, **variables):
        process = subprocess.Popen(
            [FEDLIB, *map(str, arguments)], cwd=tmp_path, env=environment | variables, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            # A shell starts background jobs with Ctrl-C ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        processes.append(process)
        return process

    yield call
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def local_ray():
    """Tests that need Ray are skipped where it does not start, as on a very busy machine."""
    pytest.importorskip("ray")
    from fedlib.runs.worker import call

    code, why = call("fedlib.runs.ray", "init", "local", seconds=60)
    if code != 0:
        pytest.skip(f"Ray does not start here: {why}")


class Stop(Exception):
    pass


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A function of a spec: run it up to a round, its last but one if none is given; returns where it can go on."""
    from fedlib import simulate
    from fedlib.runs.store import Store

    monkeypatch.setenv("FEDLIB_CHECKPOINT_SECONDS", "0")

    def call(spec, limit: int | None = None):
        def stop(number):
            if number == (limit or spec.rounds - 1):
                raise Stop

        checkpoint = Store(tmp_path).checkpoint(spec.id)
        with pytest.raises(Stop):
            simulate(spec, checkpoint, stop)
        return checkpoint

    return call


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory):
    """A data directory with two CLIPs, one block a side, of random weights: tiny16 and tiny64 by their features."""
    import torch
    from safetensors.torch import save_file

    from fedlib.core.torchvision_import import torchvision

    torchvision()
    import open_clip

    data = tmp_path_factory.mktemp("data")
    vision = {"image_size": 16, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8}
    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    for features in (16, 64):
        folder = data / "clip" / f"tiny{features}"
        folder.mkdir(parents=True)
        config = {"model_cfg": {"embed_dim": features, "vision_cfg": vision, "text_cfg": text}}
        (folder / "open_clip_config.json").write_text(json.dumps(config))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = open_clip.create_model(f"local-dir:{folder}")
        weights = {name: t.contiguous() for name, t in model.state_dict().items()}
        save_file(weights, folder / "open_clip_model.safetensors")
    return data


@pytest.fixture
def notebook(tmp_path):
    """A small notebook of the workbook's form, ``mine/table01_tiny``: three runs on digits, one claim."""
    return write_notebook(tmp_path / "notebooks" / "mine" / "table01_tiny.ipynb")


def write_notebook(path: Path, last="print(len(records))") -> Path:
    code = nbformat.v4.new_code_cell
    cells = [
        nbformat.v4.new_markdown_cell("# Three runs\n\nOn digits."),
        code(
            'scale: str = "smoke"  # smoke, laptop or paper\n'
            "seeds: list = [1, 2, 3]  # one run each\n"
            "lr: float = 0.05\n"
            "rounds: int = 2",
            metadata={"tags": ["parameters"]},
        ),
        code(
            "from fedlib import RunSpec\n\n"
            'base = RunSpec(dataset="digits", model="mlp(hidden=16)", partition="shards", rounds=rounds, lr=lr)\n'
            "grid = {seed: base.replace(seed=seed) for seed in seeds}",
            metadata={"tags": ["grid"]},
        ),
        code("import fedlib\n\nrecords = fedlib.run(grid)", metadata={"tags": ["nbval-ignore-output"]}),
        code(
            "from dataclasses import asdict\n\n"
            "from fedlib.workbook.claims import Claim, decide\n"
            "from fedlib.workbook.tables import show_claims\n\n"
            "found = asdict(decide([record.accuracy[-1] for record in records.values()]))\n"
            'text = "FedAvg learns something.", "Table 1", "paper", "effect", "points"\n'
            'claim = Claim("mine.table1.C1", *text, grade="own", seeds=list(records), **found)\n'
            'show_claims([claim], scale, "three seeds")'
        ),
        code("print('first', flush=True)\nprint('second', flush=True)\nseeds"),
        code(last),
    ]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path
