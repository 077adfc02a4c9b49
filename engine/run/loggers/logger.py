"""The interface of a logger, and the facts about a run that every logger receives."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from utils.atomic_file import atomic_write


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
