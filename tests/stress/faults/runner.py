"""Provokes one fault through the entry scripts and checks the outcome."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from faults import processes
from faults.processes import SINGLE, Running, start
from faults.saved import has_good_checkpoint
from faults.scene import Scene, Skipped

from engine.checkpoint.run_folder import remove_temporary
from utils.errors import REFUSED

Provoke = Callable[[Scene], Sequence[str]]
GRACE_SECONDS = 60.0  # for helper processes to end after the main process


@dataclass(frozen=True)
class Fault:
    """A fault and the expected outcome.

    provoke: prepares a scene and returns the flags of `script`.
    line: a pattern for the one error line, or None if no error line is expected.
    status: the expected exit statuses; the catalogue names the faults that a retry may cure.
    act: does something to the running processes.
    state: expected in the status.json of the newest run.
    prints: a pattern for something else that must be printed.
    shell: a shell command that starts the script; `{}` in it stands for the script's command.
    check: looks for further problems after the processes have ended.
    waits: whether the script spends most of its time in waiting, so that other faults can be provoked meanwhile.
    may_cut_save: whether `act` may end a rank while it saves; the next start then removes the temporary folder.
    """

    name: str
    provoke: Provoke
    line: str | None
    status: tuple[int, ...] = (REFUSED,)
    script: str = SINGLE
    act: Callable[[Running], None] | None = None
    state: str | None = None
    prints: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    shell: str | None = None
    check: Callable[[Scene], list[str]] | None = None
    waits: bool = False
    may_cut_save: bool = False


def finished(name: str, provoke: Provoke, **more: Any) -> Fault:
    """A fault that the run survives."""
    return Fault(name, provoke, None, (0,), state="finished", **more)


@dataclass
class Outcome:
    """The observed outcome. A fault passes if it is not skipped and has no problems."""

    name: str
    observed: str = ""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    skipped: str | None = None


def run_fault(fault: Fault, scene: Scene) -> Outcome:
    """Provokes the fault in an empty scene."""
    outcome, started = Outcome(fault.name), time.monotonic()
    try:
        with scene.resources:
            _run(fault, fault.provoke(scene), scene, outcome)
    except Skipped as reason:
        outcome.skipped = str(reason)
    except Exception as error:  # a failure of one fault must not end the others
        outcome.problems.append(f"{type(error).__name__}: {error}")
    outcome.seconds = time.monotonic() - started
    return outcome


def _run(fault: Fault, argv: Sequence[str], scene: Scene, outcome: Outcome) -> None:
    running = start(scene, fault.script, argv, environment=fault.environment, shell=fault.shell)
    grace_seconds = GRACE_SECONDS
    try:
        if fault.act:
            fault.act(running)
        running.process.wait(processes.HANG_SECONDS)
    except Exception as error:  # of `act`, or a time limit
        outcome.problems.append("hangs" if isinstance(error, subprocess.TimeoutExpired) else str(error))
        grace_seconds = 0.0
    if left := running.kill_leftovers(grace_seconds):
        outcome.problems.append(f"{len(left)} process(es) left: {left[0]}")
    running.process.wait()
    _check(fault, outcome, scene, running.process.returncode)
    if fault.check:
        outcome.problems += fault.check(scene)


def _check(fault: Fault, outcome: Outcome, scene: Scene, status: int) -> None:
    printed = (scene.folder / "printed").read_text(errors="replace")
    status = 128 - status if status < 0 else status
    errors = [re.sub(r"\n +", " / ", error) for error in re.findall(r"^error: (.*(?:\n  .*)*)", printed, re.MULTILINE)]
    state = _state(scene)
    outcome.observed = ", ".join([f"status {status}", *([f"state {state}"] if fault.state else []), *errors[:1]])
    problems = outcome.problems
    if status not in fault.status:
        problems.append(f"status {status}: {' '.join(printed.strip().splitlines()[-1:])[:200]}")
    if fault.line is None and errors:
        problems.append("an unexpected error line")
    if fault.line is not None and len(errors) != 1:
        problems.append(f"{len(errors)} error lines")
    if fault.line is not None and errors and not re.search(fault.line, errors[0]):
        problems.append("another error line")
    if fault.prints and not re.search(fault.prints, printed):
        problems.append(f"does not print {fault.prints}")
    if "Traceback" in printed:
        problems.append("a traceback")
    if not all(line.isprintable() and len(line) <= 1200 for line in errors):
        problems.append("an error line that is too long or has control characters")
    if fault.state and state != fault.state:
        problems.append(f"state {state}")
    if fault.may_cut_save:
        for folder in scene.output.iterdir():
            remove_temporary(folder)
    problems += [f"a temporary file is left: {path.name}" for path in scene.folder.rglob("*.tmp")]
    saved = {path.parent for form in ("pth", "shards") for path in scene.output.glob(f"*/*.{form}")}
    problems += [f"no good checkpoint in {folder.name}" for folder in saved if not has_good_checkpoint(folder)]


def _state(scene: Scene) -> str | None:
    files = sorted(scene.output.glob("*/status.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(files[-1].read_text()).get("state") if files else None
