"""Provokes one fault through the entry scripts and checks the outcome."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.scene import Scene, Skipped

from engine.checkpoint.paths import FILE, LAST, PREVIOUS
from engine.checkpoint.reader import load_checkpoint
from utils.errors import UserError
from utils.shard_folder import SHARDS

ROOT = Path(__file__).parents[3]
SINGLE, MULTI = "main_single_gpu.py", "main_multi_gpu.py"
Provoke = Callable[[Scene], Sequence[str]]
_MARKER = "AMPVIT_FAULT"  # environment variable of all processes of a fault
_START_SECONDS = 90.0


@dataclass(frozen=True)
class Fault:
    """A fault and the expected outcome.

    provoke: prepares a scene and returns the flags of `script`.
    line: a pattern for the one error line, or None if no error line is expected.
    act: does something to the running processes.
    state: expected in the status.json of the newest run.
    prints: a pattern for something else that must be printed.
    shell: a shell command that starts the script; `{}` in it stands for the script's command.
    wait_seconds: for which the script may wait for something that does not come.
    check: looks for further problems after the processes have ended.
    grace_seconds: for helper processes to end after the main process.
    """

    name: str
    provoke: Provoke
    line: str | None
    status: tuple[int, ...] = (1,)
    script: str = SINGLE
    act: Callable[["Running"], None] | None = None
    state: str | None = None
    prints: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    shell: str | None = None
    wait_seconds: float = 0.0
    check: Callable[[Scene], list[str]] | None = None
    grace_seconds: float = 3.0

    @property
    def expected(self) -> str:
        parts = [f"status {' or '.join(map(str, self.status))}"]
        parts += [f"state {self.state}"] if self.state else []
        parts += [f"`{self.line}`"] if self.line else []
        return ", ".join(parts).replace("|", "\\|")


@dataclass
class Outcome:
    """The observed outcome. A fault passes if it is not skipped and has no problems. `seconds` are since the fault."""

    name: str
    expected: str
    observed: str = ""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    skipped: str | None = None


class Running:
    """The processes of a fault; sends signals to them."""

    def __init__(self, process: subprocess.Popen, scene: Scene, marker: str) -> None:
        self.process, self.scene, self.marker = process, scene, marker
        self.fault_time = time.monotonic()

    def wait_for(self, text: str) -> None:
        """Waits until a run's log contains the text.

        Raises:
            TimeoutError: the log does not contain it in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if any(text in log.read_text() for log in self.scene.output.glob("*/log.txt")):
                return
            time.sleep(0.02)
        raise TimeoutError(f"the log never contained {text}")

    def send(self, number: int, *processes: int) -> None:
        """Sends a signal to the given processes, or to the main process."""
        self.fault_time = time.monotonic()
        for process in processes or (self.process.pid,):
            os.kill(process, number)

    def send_to_all(self, number: int) -> None:
        """Sends a signal to the process group, as a terminal does for Ctrl-C."""
        self.fault_time = time.monotonic()
        os.killpg(self.process.pid, number)

    def ranks(self) -> list[int]:
        """Process ids of the ranks, in order of rank."""
        process_of = {}
        for process in marked_processes(self.marker):
            rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", _read(process, "environ"))
            if rank and MULTI.encode() in _read(process, "cmdline"):
                process_of[int(rank[1])] = process
        return [process_of[rank] for rank in sorted(process_of)]

    def workers(self) -> list[int]:
        """Process ids of the loading workers: children of the fork server."""
        servers = {p for p in marked_processes(self.marker) if b"forkserver" in _read(p, "cmdline")}
        return sorted(p for p in servers if _parent(p) in servers)


def marked_processes(marker: str) -> list[int]:
    """Ids of the living processes with this marker in their environment."""
    processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    variable = f"{_MARKER}={marker}".encode()
    return [process for process in processes if variable in _read(process, "environ") and not _is_dead(process)]


def _read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


def _stat(process: int) -> list[bytes]:
    """The fields after the process name: state, parent id, ..."""
    return _read(process, "stat").rpartition(b")")[2].split() or [b"Z", b"0"]


def _is_dead(process: int) -> bool:
    return _stat(process)[0] in (b"Z", b"X")


def _parent(process: int) -> int:
    return int(_stat(process)[1])


def start(
    script: str, argv: Sequence[str], output: Path, environment: dict[str, str], shell: str | None = None
) -> tuple[subprocess.Popen, str]:
    """Starts an entry script in a new session. Returns the process, and the marker of it and its descendants."""
    marker = uuid.uuid4().hex
    command = [sys.executable, str(ROOT / script), *argv]
    if shell:
        command = ["sh", "-c", shell.replace("{}", 'exec "$@"'), "sh", *command]
    inherited = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    own = {_MARKER: marker, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=output.parent,
            env=inherited | own | environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_handle_ctrl_c,
        )
    return process, marker


def _handle_ctrl_c() -> None:
    """A shell starts background processes with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(script: str, argv: Sequence[str], printed: Path) -> None:
    """Runs an entry script to its end; raises UserError if it fails."""
    process, _ = start(script, argv, printed, {})
    if process.wait():
        raise UserError(f"a run that should succeed failed: {printed.read_text().strip()[-300:]}")


def run_fault(fault: Fault, folder: Path, trained: Path, limit_seconds: float) -> Outcome:
    """Provokes the fault in an empty folder; `trained` is the folder of a finished run."""
    scene = Scene(folder, trained)
    outcome = Outcome(fault.name, fault.expected)
    with scene.resources:
        try:
            argv = fault.provoke(scene)
        except Skipped as reason:
            outcome.skipped = str(reason)
        else:
            _run(fault, argv, scene, outcome, limit_seconds)
    return outcome


def _run(fault: Fault, argv: Sequence[str], scene: Scene, outcome: Outcome, limit_seconds: float) -> None:
    folder = scene.folder
    process, marker = start(fault.script, argv, folder / "printed", fault.environment, fault.shell)
    running = Running(process, scene, marker)
    limit_seconds += fault.wait_seconds
    try:
        if fault.act:
            fault.act(running)
        process.wait(timeout=running.fault_time + 4 * limit_seconds - time.monotonic())
    except TimeoutError as error:
        outcome.problems.append(str(error))
    except subprocess.TimeoutExpired:
        outcome.problems.append("timeout")
    outcome.seconds = time.monotonic() - running.fault_time
    outcome.problems += _kill_leftovers(marker, fault.grace_seconds)
    process.wait()
    _check(fault, outcome, scene, process.returncode, (folder / "printed").read_text(errors="replace"))
    if outcome.seconds > limit_seconds:
        outcome.problems.append(f"took {outcome.seconds:.1f} s")
    if fault.check:
        outcome.problems += fault.check(scene)


def _kill_leftovers(marker: str, grace_seconds: float) -> list[str]:
    """Kills processes that are still alive after the grace time. Returns the problem, if there were any."""
    deadline = time.monotonic() + grace_seconds
    while (left := marked_processes(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    names = [_read(process, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:80] for process in left]
    for process in left:
        os.kill(process, signal.SIGKILL)
    return [f"{len(left)} process(es) left: {names[0]}"] if left else []


def _check(fault: Fault, outcome: Outcome, scene: Scene, status: int, printed: str) -> None:
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
    problems += [f"a temporary file is left: {path.name}" for path in scene.folder.rglob("*.tmp")]
    problems += [f"no good checkpoint in {folder.name}" for folder in _runs(scene) if not has_good_checkpoint(folder)]


def _runs(scene: Scene) -> list[Path]:
    """Folders of runs that have saved a checkpoint, the newest last."""
    found = {path.parent for form in ("pth", "shards") for path in scene.output.glob(f"*/*.{form}")}
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _state(scene: Scene) -> str | None:
    files = sorted(scene.output.glob("*/status.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(files[-1].read_text()).get("state") if files else None


def has_good_checkpoint(folder: Path) -> bool:
    return any(is_good((folder / name).with_suffix(form)) for name in (LAST, PREVIOUS) for form in (FILE, SHARDS))


def is_good(checkpoint: Path) -> bool:
    try:
        load_checkpoint(checkpoint)
    except UserError:
        return False
    return True
