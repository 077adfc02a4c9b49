"""The parts of benchmark_gpu.py: commands with a time limit."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from scripts.benchmarks.programs import failure_reason

TERMINATION_SECONDS = 10.0  # between the stop signal and SIGKILL


class Part(NamedTuple):
    """A command, its time limit, and the signal at this limit."""

    command: list[str]
    limit_seconds: float
    stop_signal: signal.Signals = signal.SIGTERM


def run_part(name: str, part: Part, folder: Path) -> dict[str, Any]:
    """Runs the part; its output is in `<name>.txt`.

    Returns:
        outcome: begins with "done" if nothing failed. seconds. result: the content of `<name>.json`, which the command
        may have written, also if it was stopped.
    """
    file, output = folder / f"{name}.json", folder / f"{name}.txt"
    file.unlink(missing_ok=True)
    started, is_late = time.monotonic(), False
    with open(output, "w") as stream:
        print("$", shlex.join(part.command), file=stream, flush=True)
        process = subprocess.Popen(part.command, stdout=stream, stderr=subprocess.STDOUT, process_group=0)
    try:
        process.wait(part.limit_seconds)
    except subprocess.TimeoutExpired:
        is_late = True
    finally:
        _end(process, part.stop_signal)
    seconds, result = time.monotonic() - started, json.loads(file.read_text()) if file.exists() else None
    lines = output.read_text(errors="replace").splitlines()[1:]
    if is_late:
        shown = [line for line in lines if line and not line.startswith(("|", "interrupted by SIG"))]
        outcome = f"stopped after {part.limit_seconds:.0f} s; last line: {''.join(shown[-1:])}"
    else:
        outcome = _outcome(process.returncode, lines, result)
    return {"outcome": outcome, "seconds": seconds, "result": result}


def _outcome(status: int, lines: list[str], result: dict[str, Any] | None) -> str:
    """A part with a program that failed has failed."""
    if status:
        return f"failed: {failure_reason(status, lines)}"
    for name, one in (result or {}).get("figures", {}).items():
        if "failed" in one:
            return f"failed: {name}: {one['failed']}"
    summary = re.fullmatch(r"=+ (.* in [\d.]+s.*?) =+", lines[-1]) if lines else None  # by pytest
    return f"done: {summary[1]}" if summary else "done"


def _end(process: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    """The signal first, so that the process can end its own programs; then SIGKILL to its process group."""
    if process.poll() is None:
        process.send_signal(stop_signal)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATION_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
