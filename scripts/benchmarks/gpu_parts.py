"""The parts of benchmark_gpu.py: commands with a time limit."""

import json
import shlex
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import last_error

ROOT = Path(__file__).parents[2]
MIN_SECONDS = 15.0  # a part that has less time does not start
TERMINATION_SECONDS = 10.0  # between SIGTERM and SIGKILL


@dataclass
class Part:
    """A command, its time limit and its outcome. `result` is the content of `<name>.json`, if the command wrote it."""

    name: str
    command: list[str]
    limit_seconds: float
    settings: dict[str, Any] = field(default_factory=dict)
    outcome: str = "not run: no time was left"
    seconds: float = 0.0
    result: dict[str, Any] | None = None


def run_part(part: Part, folder: Path, seconds_left: float) -> None:
    """Runs the part within its limit and the time left, and writes its output to `<name>.txt`."""
    limit = min(part.limit_seconds, seconds_left - TERMINATION_SECONDS)
    if limit < MIN_SECONDS:
        return
    file = folder / f"{part.name}.json"
    file.unlink(missing_ok=True)
    started = time.monotonic()
    process = subprocess.Popen(part.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    (stdout, stderr), is_late = _communicate(process, limit)
    part.seconds = time.monotonic() - started
    (folder / f"{part.name}.txt").write_text(f"$ {shlex.join(part.command)}\n\n{stdout}\n{stderr}")
    part.result = json.loads(file.read_text()) if file.exists() else None
    if is_late:
        part.outcome = f"stopped after {limit:.0f} s"
    elif process.returncode:
        completed = subprocess.CompletedProcess(part.command, process.returncode, stdout, stderr)
        part.outcome = f"failed: {last_error(completed)}"
    else:
        part.outcome = "done"


def _communicate(process: subprocess.Popen[str], limit_seconds: float) -> tuple[tuple[str, str], bool]:
    """(standard output, standard error), and whether the process took too long and was ended."""
    try:
        return process.communicate(timeout=limit_seconds), False
    except subprocess.TimeoutExpired:
        return _terminate(process), True
    except BaseException:
        _terminate(process)
        raise


def _terminate(process: subprocess.Popen[str]) -> tuple[str, str]:
    """SIGTERM first, so that the process can end its own child processes; then SIGKILL."""
    process.terminate()
    try:
        return process.communicate(timeout=TERMINATION_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()
