"""status.json in a run's folder: what became of the run."""

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

STATUS = "status.json"

_current: "RunStatus | None" = None  # of the run this process is in


class RunStatus:
    """`status.json`: what became of a run, for whoever did not see it end (torchrun hides exit statuses).

    `state` is running, finished, stopped (by TRAIN.MAX_STEPS), interrupted (by `signal`) or failed (`message` says
    why). One that says running after its process has gone was killed.
    """

    def __init__(self, folder: Path, world_size: int) -> None:
        global _current
        self.path = folder / STATUS
        self.facts: dict[str, Any] = {
            "state": "running", "pid": os.getpid(), "host": socket.gethostname(), "world_size": world_size,
            "started": _now(),
        }  # fmt: skip
        self._lock = threading.Lock()  # checkpoints are written in a thread
        _current = self

    def begin(self) -> None:
        """The main process says that the run goes on, whatever became of it before."""
        with self._lock:
            self._write()

    def update(self, **facts: Any) -> None:
        """Adds to what is known of a run that has not ended: the first process to say how it did knows best."""
        with self._lock:
            written = read_status(self.path.parent)
            if written.get("state", "running") == "running":
                self.facts = (written or self.facts) | facts
                self._write()

    def _write(self) -> None:
        """Of a disk that is full others speak."""
        temporary = self.path.with_name(f".{STATUS}.{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps(self.facts | {"updated": _now()}, indent=2) + "\n")
            os.replace(temporary, self.path)
        except OSError:
            temporary.unlink(missing_ok=True)


def read_status(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / STATUS).read_text())
    except (OSError, ValueError):
        return {}


def record_run_end(state: str, **facts: Any) -> None:
    """For whoever ends the process, and knows of no run: what became of the run it is in, if any."""
    if _current:
        _current.update(state=state, **facts)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S%z")
