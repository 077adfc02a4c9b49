"""Open MPI's mpirun: ranks, exit statuses, one error line, and the signals that save. About 3 minutes."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from clusters.cluster_runs import (
    LIMIT_SECONDS,
    ROOT,
    assert_same_weights,
    environment,
    flags,
    new_folder,
    only_log,
    train_unbroken,
    wait_for_log,
)
from results import Result, measure

EPOCHS = 6
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none"]
_ERRORS = {
    "a missing folder": (["-data_path=/nowhere", "-dataset=folder"], "main_multi_gpu.py", "/nowhere"),
    "-ngpus": (["-ngpus=3"], "main_multi_gpu.py", "-ngpus 3: a launcher started 2 process"),
    "the single-device script": ([], "main_single_gpu.py", "a launcher started several processes"),
}


def missing_program() -> str | None:
    return None if shutil.which("mpirun") else "needs mpirun"


def run(root: Path) -> list[Result]:
    results = [measure("mpirun: the weights of -ngpus", _trains_as_ngpus, new_folder(root, "ngpus"))]
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        results.append(measure(f"mpirun: {number.name} saves", _signal_saves, new_folder(root, number.name), number))
    for name, case in _ERRORS.items():
        results.append(measure(f"mpirun: one error line, {name}", _one_error_line, new_folder(root, name), *case))
    return results


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


def _trains_as_ngpus(folder: Path) -> None:
    process = start(flags(folder / "out", EPOCHS))
    assert errors_of(process) == [] and process.returncode == 0
    assert "send SIGUSR1 to mpirun" in only_log(folder / "out")
    train_unbroken(flags(folder / "unbroken", EPOCHS))
    assert_same_weights(folder / "out", folder / "unbroken")


def _signal_saves(folder: Path, number: int) -> None:
    process = start(flags(folder / "out", 1000))
    wait_for_log(folder / "out", "Epoch[002")
    process.send_signal(number)
    assert errors_of(process) == [] and process.returncode == 128 + number
    assert status(folder / "out")["state"] == "interrupted"


def _one_error_line(folder: Path, arguments: list[str], script: str, error: str) -> None:
    process = start([*arguments, *flags(folder, 1)], script=script)
    errors = errors_of(process)
    expected = 2 if script == "main_single_gpu.py" else 1  # its two processes do not know of each other
    assert process.returncode == 1 and len(errors) == expected and error in errors[0], errors
