"""Messages of the parts of a program about the run of this process: notes, its loggers, and how it ended."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

STATUS = "status.json"
LAUNCH_FOLDER = "AMPVIT_LAUNCH_FOLDER"  # environment variable of ranks: their main process names the run there
OWN_IMPORTS = "AMPVIT_OWN_IMPORTS"  # environment variable of ranks that are no forks of their launcher: why
SWEEP = "sweep.json"  # in the folder of a sweep: of each run with TRAIN.MINUTES, the options that may change its speed
UNFINISHED = ("running", "stopping")  # states of a run whose process exists
# the loggers of log.txt and log_N.txt
RUN_LOG = "ampvit.run"
RANK_LOG = "ampvit.rank"


@dataclass(frozen=True)
class Note:
    """A line about the data, the model or the run. No code decides by its text.

    kind: screen: one of the few lines that a newcomer needs on the terminal; log: a fact for log.txt; warning: printed
    with the word Warning, and recorded in run.json. misleads: a warning that the figures of the run are wrong without
    it; it comes before the others.
    """

    kind: Literal["screen", "log", "warning"]
    text: str
    misleads: bool = False

    def __str__(self) -> str:
        return f"Warning: {self.text}" if self.kind == "warning" else self.text

    def on(self, subject: str) -> "Note":
        """The note with its subject, such as 'Data', before the text."""
        return replace(self, text=f"{subject}: {self.text}")


def texts_of(*rows: tuple[object, str]) -> list[str]:
    """The text of each row (applies, text) that applies."""
    return [text for applies, text in rows if applies]


class Reason(NamedTuple):
    """Why images are not used as they may be meant to be. text: follows their number."""

    text: str
    fix: str = ""
    kind: Literal["screen", "log", "warning"] = "warning"


class Counts:
    """{reason: number and example} of images and files; the readers of files fill it, and each reason is a line."""

    def __init__(self) -> None:
        self.found: dict[Reason, tuple[int, str]] = {}

    def add(self, reason: Reason, example: str = "", number: int = 1) -> None:
        before, first = self.found.get(reason, (0, example))
        self.found[reason] = before + number, first

    def notes(self, place: object = "", images: float = math.inf) -> list[Note]:
        """A line for each reason; warnings, if the files are more than a hundredth of the images."""
        are_many = 100 * sum(number for number, _ in self.found.values()) > images
        notes = []
        for reason, (number, example) in self.found.items():
            parts = [(place, f" in {place}"), (example, f", such as {example}"), (reason.fix, f"; {reason.fix}")]
            details = "".join(text for value, text in parts if value)
            kind = "warning" if are_many else reason.kind
            notes.append(Note(kind, f"{number:,} {reason.text}{details}"))
        return notes


def without_run(**values: Any) -> str | None:
    """Stands for the record of a run, if there is none."""
    return None


on_run_end: Callable[..., str | None] = without_run  # takes the keys of `status.json`; set by the record of the run


def record_run_end(state: str, exit_status: int = 1, **values: Any) -> str | None:
    """Records how the run of this process ended, if there is a run.

    Returns the command that resumes it, in the first of its processes; None without a checkpoint.
    """
    return on_run_end(state=state, exit_status=exit_status, **values)


def run_name(folder: Path) -> str:
    """The name of the folder of a run, without date, time and number."""
    return re.sub(r"-\d{8}-\d\d-\d\d(-\d+)?$", "", folder.name)
