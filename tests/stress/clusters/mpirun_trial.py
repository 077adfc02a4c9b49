"""Open MPI's mpirun: ranks, exit statuses, and the signals that save. About 3 minutes."""

import json
import signal
import subprocess
import sys

from cluster_runs import LIMIT_SECONDS, assert_unbroken, flags, require, wait_for_log
from conftest import ROOT
from pytest import fixture, mark
from rank_pool import environment

EPOCHS = 6
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none"]


@fixture(autouse=True)
def has_programs() -> None:
    require("mpirun", needs_root=False)


def start(arguments: list[str]) -> subprocess.Popen:
    command = [*MPIRUN, sys.executable, "main_multi_gpu.py", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment() | AS_ROOT, stdout=pipe, stderr=pipe, text=True)


def errors_of(process: subprocess.Popen) -> list[str]:
    _, printed = process.communicate(timeout=LIMIT_SECONDS)
    return [line for line in printed.splitlines() if line.startswith("error: ")]


def test_the_weights_are_those_of_ngpus(tmp_path):
    process = start(flags(tmp_path / "out", EPOCHS))
    assert errors_of(process) == []
    assert process.returncode == 0
    assert_unbroken(tmp_path / "out", EPOCHS)


@mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_saves(number, tmp_path):
    process = start(flags(tmp_path / "out", 1000))
    wait_for_log(tmp_path / "out", "Epoch[002")
    process.send_signal(number)
    assert errors_of(process) == []
    assert process.returncode == 128 + number
    (status,) = (tmp_path / "out").glob("*/status.json")
    assert json.loads(status.read_text())["state"] == "interrupted"
