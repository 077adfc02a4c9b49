"""status.json in a run's folder: the state of the run."""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from utils.errors import UserError
from utils.files import atomic_write, own_file, read_json

STATUS = "status.json"
UNFINISHED = ("running", "stopping")  # states of a run whose process exists
RUN_LOG, RANK_LOG = "ampvit.run", "ampvit.rank"  # the loggers of log.txt and log_N.txt

KEYS = (
    "state", "exit_status", "message", "signal", "stopped_early", "reason", "slow_rank",
    "checkpoint", "epoch", "step", "resume", "pid", "host", "world_size", "started", "updated",
)  # fmt: skip

_current: "RunStatus | None" = None  # the run of this process


class RunStatus:
    """Writes `status.json`, from which other programs read how a run ended: torchrun hides exit statuses.

    docs/operation.md describes the keys. All of them are always there; an unknown value is null.

    `on_end` is called when this process has written a final state. Its exceptions are suppressed: they would hide the
    reason of that state.
    """

    def __init__(self, folder: Path, world_size: int, resume_command: str | None = None, **facts: Any) -> None:
        """resume_command: of the run, from its first checkpoint on. facts: those that are known."""
        global _current
        self.path = folder / STATUS
        self.facts: dict[str, Any] = dict.fromkeys(KEYS) | {
            "state": "running", "stopped_early": False, "pid": os.getpid(), "host": socket.gethostname(),
            "world_size": world_size, "started": _now(), **facts,
        }  # fmt: skip
        self._resume_command = resume_command
        self._lock = threading.Lock()  # checkpoints are written in a thread
        self.on_end: Callable[[], None] = lambda: None
        _current = self

    def begin(self) -> None:
        """Sets the state to running. Only the main process calls it."""
        with self._lock:
            self._write()

    def update(self, **facts: Any) -> None:
        """Changes facts while the run has not ended, and no other process has resumed it.

        The first final state is kept: the first process to fail knows why.
        """
        if "checkpoint" in facts:
            facts["resume"] = self._resume_command
        with self._lock:
            written = read_json(self.path) or self.facts
            is_own = (written.get("pid"), written.get("host")) == (self.facts["pid"], self.facts["host"])
            if is_own and written.get("state", "running") in UNFINISHED:
                self.facts = written | facts
                self._write()
        if facts.get("state", "running") not in UNFINISHED:
            with suppress(Exception):
                self.on_end()

    def _write(self) -> None:
        """Ignores a full disk: saving a checkpoint reports it. The blocks of the old file hold the new text, too."""
        text = json.dumps(self.facts | {"updated": _now()}, indent=2) + "\n"
        try:
            atomic_write(self.path, text)
        except OSError:
            with suppress(OSError, UserError), open(self.path, "r+b", buffering=0, opener=own_file) as file:
                old = os.fstat(file.fileno())
                if len(text) <= 512 * old.st_blocks:
                    file.write(text.ljust(old.st_size).encode())


def newest_runs(folder: Path) -> dict[str, tuple[Path, str] | None]:
    """By the names of the runs in a folder, the newest one with a checkpoint, and its state; None: there is none."""
    runs: dict[str, tuple[Path, str] | None] = {}
    for path in sorted(folder.glob("*")):
        name, status = re.sub(r"-\d{8}-\d\d-\d\d(-\d+)?$", "", path.name), read_json(path / STATUS)
        if name != path.name or status.get("checkpoint"):
            runs[name] = (path, status.get("state", "")) if status.get("checkpoint") else runs.get(name)
    return runs


def record_run_end(state: str, exit_status: int = 1, **facts: Any) -> None:
    """Records how the run of this process ended, if there is a run."""
    if _current:
        _current.update(state=state, exit_status=exit_status, **facts)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S%z")
