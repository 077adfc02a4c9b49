"""Provokes one fault as a user would meet it, through the entry scripts, and looks at what is left."""

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

from engine.checkpoint.checkpoint import load_checkpoint
from utils.errors import UserError

ROOT = Path(__file__).parents[3]
SINGLE, MULTI = "main_single_gpu.py", "main_multi_gpu.py"
Provoke = Callable[[Scene], Sequence[str]]
_MARKER = "AMPVIT_FAULT"  # in the environment of all processes of a fault
_START_SECONDS = 90.0


@dataclass(frozen=True)
class Fault:
    """`provoke` prepares a scene and gives the flags; `act` does something to the processes once they run.

    `line` is what the one error line must match, None where there is to be none. The processes run `script` under
    `environment`, in a shell where one is given: `{}` in it stands for their command.
    """

    name: str
    provoke: Provoke
    line: str | None
    status: tuple[int, ...] = (1,)
    script: str = SINGLE
    act: Callable[["Running"], None] | None = None
    state: str | None = None  # of the newest run's status.json
    says: str | None = None  # something that must be among what is printed
    environment: dict[str, str] = field(default_factory=dict)
    shell: str | None = None
    grace_seconds: float = 3.0  # for helpers of a process that has ended

    @property
    def expected(self) -> str:
        parts = [f"status {' or '.join(map(str, self.status))}"]
        parts += [f"state {self.state}"] if self.state else []
        parts += [f"`{self.line}`"] if self.line else []
        return ", ".join(parts).replace("|", "\\|")


@dataclass
class Outcome:
    """What was seen. A fault passed if it was not skipped and has no problems; `seconds` count from the fault."""

    name: str
    expected: str
    seen: str = ""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    skipped: str | None = None


class Running:
    """The processes of a fault, and ways to hurt them."""

    def __init__(self, process: subprocess.Popen, scene: Scene, marker: str) -> None:
        self.process, self.scene, self.marker = process, scene, marker
        self.fault_time = time.monotonic()

    def wait_for(self, text: str) -> None:
        """Until a run's log says so.

        Raises:
            TimeoutError: it never did.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if any(text in log.read_text() for log in self.scene.output.glob("*/log.txt")):
                return
            time.sleep(0.02)
        raise TimeoutError(f"the run never said {text}")

    def send(self, number: int, *processes: int) -> None:
        """To these processes, or to the one that was started."""
        self.fault_time = time.monotonic()
        for process in processes or (self.process.pid,):
            os.kill(process, number)

    def send_to_all(self, number: int) -> None:
        """What a terminal's Ctrl-C does."""
        self.fault_time = time.monotonic()
        os.killpg(self.process.pid, number)

    def ranks(self) -> list[int]:
        """The processes of the ranks, by rank."""
        found = {}
        for process in marked_processes(self.marker):
            rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", _read(process, "environ"))
            if rank and MULTI.encode() in _read(process, "cmdline"):
                found[int(rank[1])] = process
        return [found[rank] for rank in sorted(found)]

    def workers(self) -> list[int]:
        """The processes that load data: children of a server that forks them."""
        servers = {p for p in marked_processes(self.marker) if b"forkserver" in _read(p, "cmdline")}
        return sorted(p for p in servers if _parent(p) in servers)


def marked_processes(marker: str) -> list[int]:
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    wanted = f"{_MARKER}={marker}".encode()
    return [process for process in found if wanted in _read(process, "environ") and not _is_dead(process)]


def _read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


def _stat(process: int) -> list[bytes]:
    """State, parent, ... of a process: what follows its name."""
    return _read(process, "stat").rpartition(b")")[2].split() or [b"Z", b"0"]


def _is_dead(process: int) -> bool:
    return _stat(process)[0] in (b"Z", b"X")


def _parent(process: int) -> int:
    return int(_stat(process)[1])


def start(
    script: str, argv: Sequence[str], output: Path, environment: dict[str, str], shell: str | None = None
) -> tuple[subprocess.Popen, str]:
    """Starts an entry script in a session of its own; returns the process and the mark that its descendants carry."""
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
            preexec_fn=_heed_ctrl_c,
        )
    return process, marker


def _heed_ctrl_c() -> None:
    """A shell starts what runs in its background deaf to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_fault(fault: Fault, folder: Path, trained: Path, limit_seconds: float) -> Outcome:
    """Provokes the fault in an empty folder; `trained` is the folder of a finished run."""
    scene = Scene(folder, trained)
    outcome = Outcome(fault.name, fault.expected)
    try:
        argv = fault.provoke(scene)
    except Skipped as why:
        outcome.skipped = str(why)
        return outcome
    process, marker = start(fault.script, argv, folder / "printed", fault.environment, fault.shell)
    running = Running(process, scene, marker)
    try:
        if fault.act:
            fault.act(running)
        process.wait(timeout=running.fault_time + 4 * limit_seconds - time.monotonic())
    except TimeoutError as error:
        outcome.problems.append(str(error))
    except subprocess.TimeoutExpired:
        outcome.problems.append("it hung")
    outcome.seconds = time.monotonic() - running.fault_time
    outcome.problems += _leftovers(marker, fault.grace_seconds)
    process.wait()
    _judge(fault, outcome, scene, process.returncode, (folder / "printed").read_text(errors="replace"))
    if outcome.seconds > limit_seconds:
        outcome.problems.append(f"took {outcome.seconds:.1f} s")
    return outcome


def _leftovers(marker: str, grace_seconds: float) -> list[str]:
    """Ends what is left of the processes, and says so."""
    deadline = time.monotonic() + grace_seconds
    while (left := marked_processes(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    names = [_read(process, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:80] for process in left]
    for process in left:
        os.kill(process, signal.SIGKILL)
    return [f"{len(left)} process(es) left: {names[0]}"] if left else []


def _judge(fault: Fault, outcome: Outcome, scene: Scene, status: int, printed: str) -> None:
    status = 128 - status if status < 0 else status
    errors = [re.sub(r"\n +", " / ", found) for found in re.findall(r"^error: (.*(?:\n  .*)*)", printed, re.MULTILINE)]
    state = _state(scene)
    outcome.seen = ", ".join([f"status {status}", *([f"state {state}"] if fault.state else []), *errors[:1]])
    problems = outcome.problems
    if status not in fault.status:
        problems.append(f"status {status}: {' '.join(printed.strip().splitlines()[-1:])[:200]}")
    if fault.line is None and errors:
        problems.append("an error line that should not be")
    if fault.line is not None and len(errors) != 1:
        problems.append(f"{len(errors)} error lines")
    if fault.line is not None and errors and not re.search(fault.line, errors[0]):
        problems.append("another line")
    if fault.says and not re.search(fault.says, printed):
        problems.append(f"does not say {fault.says}")
    if "Traceback" in printed:
        problems.append("a traceback")
    if not all(line.isprintable() and len(line) <= 1200 for line in errors):
        problems.append("a line that a terminal should not get")
    if fault.state and state != fault.state:
        problems.append(f"state {state}")
    problems += [f"a torso is left: {path.name}" for path in scene.folder.rglob("*.tmp")]
    problems += [f"no good checkpoint in {folder.name}" for folder in _runs(scene) if not has_good_checkpoint(folder)]


def _runs(scene: Scene) -> list[Path]:
    """The newest last, and only those that have saved something."""
    return sorted({path.parent for path in scene.output.glob("*/*.pth")}, key=lambda path: path.stat().st_mtime)


def _state(scene: Scene) -> str | None:
    files = sorted(scene.output.glob("*/status.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(files[-1].read_text()).get("state") if files else None


def has_good_checkpoint(folder: Path) -> bool:
    return any(is_good(folder / name) for name in ("last.pth", "previous.pth"))


def is_good(checkpoint: Path) -> bool:
    try:
        load_checkpoint(checkpoint)
    except UserError:
        return False
    return True
