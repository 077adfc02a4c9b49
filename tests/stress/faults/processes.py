"""Starts entry scripts, sends signals to their processes, and finds the processes that are left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from faults.scene import Scene
from rank_pool import environment as environment_of_user

from utils.errors import UserError

ROOT = Path(__file__).parents[3]
SINGLE = "main_single_gpu.py"
MULTI = "main_multi_gpu.py"
HANG_SECONDS = 300.0  # a process that does not end within this time hangs, also on a slow machine
_MARKER = "AMPVIT_FAULT"  # environment variable of all processes of a fault


class Running:
    """The processes of a started script: `process` and its descendants."""

    def __init__(self, process: subprocess.Popen, scene: Scene, marker: str) -> None:
        self.process = process
        self.scene = scene
        self._variable = f"{_MARKER}={marker}".encode()

    def wait_for(self, text: str) -> None:
        """Waits until a run's log contains the text.

        Raises:
            TimeoutError: the log does not contain it in time.
        """
        logs = self.scene.output
        self.wait_until(
            lambda: any(text in log.read_text() for log in logs.glob("*/log.txt")), f"the log has no {text}"
        )

    def wait_until(self, condition: Callable[[], bool], problem: str) -> None:
        """Raises TimeoutError with the problem: the condition has not become true in time."""
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if condition():
                return
            time.sleep(0.05)
        raise TimeoutError(problem)

    def send(self, number: int, *processes: int) -> None:
        """Sends a signal to the given processes, or to the main process."""
        for process in processes or (self.process.pid,):
            _kill(process, number)

    def send_to_all(self, number: int) -> None:
        """Sends a signal to the process group, as a terminal does for Ctrl-C."""
        os.killpg(self.process.pid, number)

    def living(self) -> list[int]:
        """Process ids of the processes that have not ended."""
        processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [process for process in processes if self._owns(process) and _stat(process)[0] not in (b"Z", b"X")]

    def _owns(self, process: int) -> bool:
        """Whether a process is in the session of the script, or has inherited its environment."""
        session = int(_stat(process)[3])
        return session == self.process.pid or self._variable in _read(process, "environ")

    def ranks(self) -> list[int]:
        """Process ids of the ranks, in order of rank."""
        launchers = [process for process in self.living() if MULTI.encode() in _read(process, "cmdline")]
        # Ranks lead sessions of their own. Their fork servers and workers have their command lines.
        ranks = [process for process in launchers if int(_stat(process)[1]) in launchers and _leads(process)]
        return sorted(ranks)

    def workers(self) -> list[int]:
        """Process ids of the loading workers, by the name that torch gives them."""
        return sorted(process for process in self.living() if _read(process, "comm") == b"pt_data_worker\n")

    def kill_leftovers(self, grace_seconds: float) -> list[str]:
        """Kills the processes that are alive after the grace time. Returns the start of their command lines."""
        deadline = time.monotonic() + grace_seconds
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.05)
        names = [_read(process, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:80] for process in left]
        for process in left:
            _kill(process, signal.SIGKILL)
        return names


def _kill(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.kill(process, number)


def _read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


def _stat(process: int) -> list[bytes]:
    """The fields after the process name: state, parent, process group, session, ..."""
    return _read(process, "stat").rpartition(b")")[2].split() or [b"X", b"0", b"0", b"0"]


def _leads(process: int) -> bool:
    return int(_stat(process)[3]) == process


def start(
    scene: Scene,
    script: str,
    argv: Sequence[str],
    printed: str = "printed",
    environment: dict[str, str] | None = None,
    shell: str | None = None,
) -> Running:
    """Starts an entry script in a new session. printed: the file in the scene's folder for the output."""
    marker = uuid.uuid4().hex
    command = [sys.executable, str(ROOT / script), *argv]
    if shell:
        command = ["sh", "-c", shell.replace("{}", 'exec "$@"'), "sh", *command]
    with open(scene.folder / printed, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=scene.folder,
            env=environment_of_user() | {_MARKER: marker} | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(process, scene, marker)


def finish(scene: Scene, script: str, argv: Sequence[str], printed: str = "printed") -> None:
    """Runs an entry script to its end; raises UserError if it fails."""
    if start(scene, script, argv, printed).process.wait():
        text = (scene.folder / printed).read_text().strip()
        raise UserError(f"a run that should succeed failed: {text[-300:]}")
