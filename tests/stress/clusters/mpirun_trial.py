"""Open MPI's mpirun: ranks, exit statuses, and the signals that save. About 3 minutes."""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from clusters import cluster_runs
from clusters.cluster_runs import LIMIT_SECONDS, assert_unbroken, flags, wait_for_log
from conftest import ROOT
from rank_pool import environment

EPOCHS = 6
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none"]


missing_program = partial(cluster_runs.missing_program, "mpirun", needs_root=False)


def start(arguments: list[str]) -> subprocess.Popen:
    command = [*MPIRUN, sys.executable, "main_multi_gpu.py", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment() | AS_ROOT, stdout=pipe, stderr=pipe, text=True)


def errors_of(process: subprocess.Popen) -> list[str]:
    _, printed = process.communicate(timeout=LIMIT_SECONDS)
    return [line for line in printed.splitlines() if line.startswith("error: ")]


def _trains_as_ngpus(folder: Path) -> None:
    process = start(flags(folder / "out", EPOCHS))
    assert errors_of(process) == [] and process.returncode == 0
    assert_unbroken(folder / "out", EPOCHS)


def _signal_saves(number: int, folder: Path) -> None:
    process = start(flags(folder / "out", 1000))
    wait_for_log(folder / "out", "Epoch[002")
    process.send_signal(number)
    assert errors_of(process) == [] and process.returncode == 128 + number
    (status,) = (folder / "out").glob("*/status.json")
    assert json.loads(status.read_text())["state"] == "interrupted"


TRIALS = {
    "the weights of -ngpus": _trains_as_ngpus,
    "SIGUSR1 saves": partial(_signal_saves, signal.SIGUSR1),
    "SIGUSR2 saves": partial(_signal_saves, signal.SIGUSR2),
}
