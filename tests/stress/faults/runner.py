"""Provokes one fault through the entry scripts and checks the outcome."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import processes
from faults.processes import SINGLE, Running, start
from faults.scene import Provoke, Scene

from engine.checkpoint.files import load_checkpoint
from engine.checkpoint.run_folder import LAST, PREVIOUS
from utils.errors import REFUSED, UserError

GRACE_SECONDS = 60.0  # for helper processes to end after the main process


@dataclass(frozen=True)
class Fault:
    """A fault and the expected outcome.

    provoke: prepares a scene and returns the flags of `script`.
    line: a pattern for the one error line, or None if no error line is expected.
    status: the expected exit statuses.
    act: does something to the running processes.
    state: expected in the status.json of the newest run.
    shell: a shell command that starts the script; `{}` in it stands for the script's command.
    check: looks for further problems after the processes have ended.
    may_leave_temporary: files, until the next start.
    """

    name: str
    provoke: Provoke
    line: str | None
    status: tuple[int, ...] = (REFUSED,)
    script: str = SINGLE
    act: Callable[[Running], None] | None = None
    state: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    shell: str | None = None
    check: Callable[[Scene], list[str]] | None = None
    may_leave_temporary: bool = False


def finished(name: str, provoke: Provoke, **more: Any) -> Fault:
    """A fault that the run survives."""
    return Fault(name, provoke, None, (0,), state="finished", **more)


def run_fault(fault: Fault, scene: Scene) -> None:
    """Provokes the fault in an empty scene."""
    with scene.resources:
        problems, observed = _run(fault, scene)
    assert not problems, f"{', '.join(problems)} (observed: {observed})"


def _run(fault: Fault, scene: Scene) -> tuple[list[str], str]:
    """The problems, and the observed outcome."""
    running = start(scene, fault.script, fault.provoke(scene), environment=fault.environment, shell=fault.shell)
    problems = list[str]()
    grace_seconds = GRACE_SECONDS
    try:
        if fault.act:
            fault.act(running)
        running.process.wait(processes.HANG_SECONDS)
    except Exception as error:  # of `act`, or a time limit
        problems.append("hangs" if isinstance(error, subprocess.TimeoutExpired) else str(error))
        grace_seconds = 0.0
    if left := running.kill_leftovers(grace_seconds):
        problems.append(f"{len(left)} process(es) left: {left[0]}")
    status = running.process.wait()
    printed = (scene.folder / "printed").read_text(errors="replace")
    status = 128 - status if status < 0 else status
    errors = [re.sub(r"\n +", " / ", error) for error in re.findall(r"^error: (.*(?:\n  .*)*)", printed, re.MULTILINE)]
    state = _state(scene) if fault.state else None
    if status not in fault.status:
        problems.append(f"status {status}: {' '.join(printed.strip().splitlines()[-1:])[:200]}")
    if state != fault.state:
        problems.append(f"state {state}")
    problems += [*_problems_of_text(fault, printed, errors), *_problems_of_files(fault, scene)]
    if fault.check and not problems:
        try:
            problems += fault.check(scene)
        except (AssertionError, UserError) as error:
            problems.append(str(error))
    return problems, ", ".join([f"status {status}", *([f"state {state}"] if state else []), *errors[:1]])


def _problems_of_text(fault: Fault, printed: str, errors: list[str]) -> Iterator[str]:
    if fault.line is None and errors:
        yield "an unexpected error line"
    if fault.line is not None and len(errors) != 1:
        yield f"{len(errors)} error lines"
    if fault.line is not None and errors and not re.search(fault.line, errors[0]):
        yield "another error line"
    if "Traceback" in printed:
        yield "a traceback"
    if not all(line.isprintable() and len(line) <= 1200 for line in errors):
        yield "an error line that is too long or has control characters"


def _problems_of_files(fault: Fault, scene: Scene) -> Iterator[str]:
    for path in () if fault.may_leave_temporary else scene.folder.rglob("*.tmp"):
        yield f"a temporary file is left: {path.name}"
    for folder in {path.parent for path in scene.output.glob("*/*.pth")}:
        if not any(_is_good(folder / name) for name in (LAST, PREVIOUS)):
            yield f"no good checkpoint in {folder.name}"


def _is_good(checkpoint: Path) -> bool:
    try:
        return bool(load_checkpoint(checkpoint))
    except UserError:
        return False


def _state(scene: Scene) -> str | None:
    files = sorted(scene.output.glob("*/status.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(files[-1].read_text()).get("state") if files else None
