"""The interface of a logger, the facts about a run that every logger receives, and the thread that calls it."""

from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from utils.atomic_file import atomic_write
from utils.errors import hide_passwords, to_single_line
from utils.threads import DaemonPool


@dataclass(frozen=True)
class LoggedRun:
    """A training run, new or resumed after `steps_done` steps.

    options: all of them, as YAML. hyperparameters: those that differ from their defaults, by dotted key.
    """

    folder: Path
    steps_done: int
    options: str
    hyperparameters: Mapping[str, str]

    def known_id(self, library: str) -> str | None:
        """The library's id of this run, which an earlier process has stored."""
        file = self._id_file(library)
        return file.read_text(encoding="utf-8").strip() if file.is_file() else None

    def store_id(self, library: str, run_id: str) -> None:
        atomic_write(self._id_file(library), f"{run_id}\n")

    def _id_file(self, library: str) -> Path:
        return self.folder / f"{library}_run_id.txt"


class MetricLogger(Protocol):
    """Receives the figures of a run; only the main process has loggers. All values are numbers of the host."""

    def start(self, run: LoggedRun) -> None:
        """Called once, before all others."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Values by name, such as train/loss. step: optimizer steps since the start of the run."""

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Returns when everything is written. result: the content of `result.json`; None: the run failed."""


class BackgroundLogger:
    """Calls a logger in a thread: training does not wait for a slow one, and does not end if one fails.

    A logger that cannot start is not called again. If a later call fails, its values are lost. One warning says so.

    Args:
        finish_seconds: `finish` waits this long for the calls that are left.
    """

    def __init__(
        self, name: str, logger: MetricLogger, warn: Callable[[str], None], finish_seconds: float = 30.0
    ) -> None:
        self.name, self.logger, self.finish_seconds = name, logger, finish_seconds
        self._record = warn
        self._thread = DaemonPool(1)
        self._has_warned = self._cannot_start = False

    def start(self, run: LoggedRun) -> None:
        self._thread.submit(self._call, partial(self.logger.start, run), True)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._thread.submit(self._call, partial(self.logger.scalars, values, step))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        end = self._thread.submit(self._call, partial(self.logger.finish, result))
        if wait([end], self.finish_seconds).not_done:
            self._warn(f"it did not take the last values within {self.finish_seconds:g} s")

    def _call(self, call: Callable[[], None], is_start: bool = False) -> None:
        if self._cannot_start:
            return
        try:
            call()
        except BaseException as error:  # a library may call sys.exit()
            self._cannot_start = is_start
            self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            problem = hide_passwords(to_single_line(problem))
            self._record(f"Warning: LOGGERS: {self.name}: {problem}; values are missing there")
