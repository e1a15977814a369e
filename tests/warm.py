"""The fedlib command in processes forked from a warm one: a hundred calls import torch and pandas once."""

import multiprocessing
import os
import subprocess
import sys
import tempfile

from fedlib.workbook.kernels import PATH, WARM, Process, Stream

COMMANDS = [f"fedlib.cli.{group}" for group in ("audit", "compare", "listings", "pages", "records", "regenerate")]


def forked(arguments: list[str], cwd: str, environment: dict[str, str]) -> subprocess.CompletedProcess:
    """What ``fedlib ARGUMENTS`` says and ends with, called in a folder and with these environment variables."""
    multiprocessing.set_forkserver_preload([*WARM, *COMMANDS, "fedlib.cli.simulate"])
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        streams = {1: Stream(out), 2: Stream(error)}
        process = Process(target=command, args=(arguments, cwd, environment, streams))
        process.start()
        code, said = process.wait(), []
        for file in (out, error):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(["fedlib", *arguments], code, *said)


def command(arguments: list[str], cwd: str, environment: dict[str, str], streams: dict[int, int]) -> None:
    """In the forked process: be the console script."""
    from fedlib.cli import main

    for number, file in (streams | {0: os.open(os.devnull, os.O_RDONLY)}).items():
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv, sys.path = ["fedlib", *arguments], PATH
    main()
