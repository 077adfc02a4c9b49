"""The parts of benchmark_gpu.py: commands with a time limit."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import last_error

ROOT = Path(__file__).parents[3]
TERMINATION_SECONDS = 10.0  # between SIGTERM and SIGKILL
NOT_RUN = "not run"  # an outcome, or its beginning


@dataclass
class Part:
    """A command, its time limit and its outcome.

    images: a folder that the command reads. result: the content of `<name>.json`, if the command wrote it.
    """

    name: str
    command: list[str]
    limit_seconds: float
    settings: dict[str, Any] = field(default_factory=dict)
    images: Path | None = None
    outcome: str = NOT_RUN
    seconds: float = 0.0
    result: dict[str, Any] | None = None
    stop_signal: signal.Signals = signal.SIGTERM  # at the time limit

    @property
    def is_done(self) -> bool:
        return self.outcome.startswith("done")

    @property
    def programs(self) -> dict[str, Any]:
        """The figures of benchmark_train.py by program."""
        return (self.result or {}).get("programs", {})


def part_environment(compile_cache: Path) -> dict[str, str]:
    """All parts share one compile cache, also if an import of torch has already set the variables.

    The parts run in another folder, so relative paths in PYTHONPATH become absolute.
    """
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(compile_cache), "TRITON_CACHE_DIR": str(compile_cache / "triton")}
    environment = os.environ | caches
    if paths := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths.split(os.pathsep)))
    return environment


def run_part(part: Part, folder: Path, environment: dict[str, str]) -> None:
    """Runs the part, writes its output to `<name>.txt`, and reads its result from `<name>.json`."""
    file, output = folder / f"{part.name}.json", folder / f"{part.name}.txt"
    file.unlink(missing_ok=True)
    part.outcome, started, is_late = "interrupted", time.monotonic(), False
    process = _start(part, output, environment)
    try:
        process.wait(part.limit_seconds)
    except subprocess.TimeoutExpired:
        is_late = True
    finally:
        _end(process, part.stop_signal)
        part.seconds = time.monotonic() - started
        part.result = json.loads(file.read_text()) if file.exists() else None
    text = output.read_text(errors="replace").partition("\n")[2].strip()
    part.outcome = _outcome(part, process.returncode, is_late, text)


def _outcome(part: Part, status: int, is_late: bool, text: str) -> str:
    """A part with a program that failed has failed."""
    failures = [f"failed: {name}: {one['failed']}" for name, one in part.programs.items() if "failed" in one]
    if is_late:
        lines = [line for line in text.splitlines() if line and not line.startswith(("|", "interrupted by SIG"))]
        return f"stopped after {part.limit_seconds:.0f} s; last line: {''.join(lines[-1:])}"
    if status:
        return f"failed: {last_error(subprocess.CompletedProcess(part.command, status, stderr=text))}"
    if failures:
        return failures[0]
    if summary := re.search(r"^=+ (.* in [\d.]+s.*?) =+\Z", text, re.MULTILINE):  # by pytest
        return f"done: {summary[1]}" if " passed" in summary[1] else f"failed: no test passed: {summary[1]}"
    return "done"


def _start(part: Part, output: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Ctrl-C in a terminal does not reach the process group of the part: `_end` ends it."""
    with open(output, "w") as file:
        print("$", shlex.join(part.command), file=file, flush=True)
        return subprocess.Popen(
            part.command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, process_group=0
        )


def _end(process: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    """The signal first, so that the process can end its own programs; then SIGKILL to its process group."""
    if process.poll() is None:
        process.send_signal(stop_signal)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATION_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
