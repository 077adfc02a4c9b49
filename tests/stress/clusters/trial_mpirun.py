"""Open MPI's mpirun: ranks, exit statuses, one error line, and the signals that save. About 3 minutes.

python -m pytest -q tests/stress/clusters/trial_mpirun.py
"""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_runs import ROOT, assert_same_weights, environment, flags, only_log, train_unbroken, wait_for_log

LIMIT_SECONDS = 300
EPOCHS = 6
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none"]
pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")


def start(arguments: list[str], *options: str, script: str = "main_multi_gpu.py") -> subprocess.Popen:
    command = [*MPIRUN, *options, sys.executable, script, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment(**AS_ROOT), stdout=pipe, stderr=pipe, text=True)


def errors_of(process: subprocess.Popen) -> list[str]:
    _, printed = process.communicate(timeout=LIMIT_SECONDS)
    return [line for line in printed.splitlines() if line.startswith("error: ")]


def status(output: Path) -> dict:
    (path,) = output.glob("*/status.json")
    return json.loads(path.read_text())


def test_mpirun_trains_as_ngpus(tmp_path):
    process = start(flags(tmp_path / "out", EPOCHS))
    assert errors_of(process) == [] and process.returncode == 0
    assert "send SIGUSR1 to mpirun" in only_log(tmp_path / "out")
    train_unbroken(flags(tmp_path / "unbroken", EPOCHS))
    assert_same_weights(tmp_path / "out", tmp_path / "unbroken")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_to_mpirun_saves(tmp_path, number):
    process = start(flags(tmp_path / "out", 1000))
    wait_for_log(tmp_path / "out", "Epoch[002", LIMIT_SECONDS)
    process.send_signal(number)
    assert errors_of(process) == [] and process.returncode == 128 + number
    assert status(tmp_path / "out")["state"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "script", "error"),
    [
        (["-data_path=/nowhere", "-dataset=folder"], "main_multi_gpu.py", "/nowhere"),
        (["-ngpus=3"], "main_multi_gpu.py", "-ngpus 3: a launcher started 2 process"),
        ([], "main_single_gpu.py", "a launcher started several processes"),
    ],
)
def test_one_error_line(tmp_path, arguments, script, error):
    process = start([*arguments, *flags(tmp_path, 1)], script=script)
    errors = errors_of(process)
    print(errors)
    assert process.returncode == 1 and len(errors) == (2 if "single" in script else 1) and error in errors[0]
