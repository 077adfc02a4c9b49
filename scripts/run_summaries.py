"""Reads the folder of a training run: its options, its epochs, and its state."""

import json
import os
import socket
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.compare import with_defaults
from configs.yaml_io import format_value, read_yaml, shorten
from engine.telemetry.plots import best_epoch
from utils.errors import UserError
from utils.status import STATUS, read_status
from utils.tables import read_rows

_IGNORED_OPTIONS = ("SAVE", "MODEL.RESUME")  # paths of the run itself
_MAX_NAME_CHARS, _MAX_STATUS_CHARS = 60, 50


@dataclass(frozen=True)
class RunSummary:
    """A training run.

    Attributes:
        epochs: rows of `metrics.csv`. options: all options by dotted key.
        best: epoch (from 1) and validation top-1 in percent of the best epoch; None without an evaluation.
        status: running, finished, stopped, interrupted, failed (with the reason) or killed.
    """

    folder: Path
    name: str
    epochs: list[dict[str, str]]
    options: dict[str, Any]
    best: tuple[int, float] | None
    train_seconds: float | None
    images_per_second: float | None
    peak_memory_bytes: float | None
    status: str

    @property
    def num_epochs(self) -> int:
        return self.options["TRAIN.NUM_EPOCHS"]


def read_run(folder: Path) -> RunSummary:
    """Reads config.yaml, status.json, metrics.csv and result.json; a run that failed early lacks the last two.

    Raises:
        UserError: the folder is not that of a training run, or a file is damaged.
    """
    for name in ("config.yaml", STATUS):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: is not the folder of a training run (no {name})")
    options = with_defaults(read_yaml(folder / "config.yaml")[0])
    try:
        epochs = read_rows(folder / "metrics.csv") if (folder / "metrics.csv").exists() else []
        best = best_epoch(epochs)
        measured = _measured(epochs)
    except (KeyError, ValueError, OSError) as error:
        raise UserError(f"{folder / 'metrics.csv'}: cannot be read ({shorten(str(error))})") from None
    status = read_status(folder)
    if status.get("state") != "running":  # else the file is from before the run was resumed
        measured |= _read_result(folder / "result.json", measured.keys())
    name = folder.resolve().name
    return RunSummary(
        folder=folder,
        name=name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 3]}...",
        epochs=epochs,
        options=options,
        best=best,
        status=_describe(status),
        **measured,
    )


def _measured(epochs: list[dict[str, str]]) -> dict[str, float | None]:
    """Up to the last complete epoch, whose images/s stand for the run."""
    last = epochs[-1] if epochs else {}
    names = ("train_seconds", "images_per_second", "peak_memory_bytes")
    return {name: float(last[name]) if last.get(name) else None for name in names}


def _read_result(path: Path, names: Any) -> dict[str, float]:
    """The figures of the whole run, which include an incomplete epoch; nothing if the file is missing or damaged."""
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(result, dict):
        return {}
    return {name: result[name] for name in names if isinstance(result.get(name), int | float)}


def _describe(status: dict[str, Any]) -> str:
    state = status.get("state")
    if not isinstance(state, str):
        return "unknown"
    if state == "running" and _has_ended(status):
        return "killed"
    text = f"failed: {status.get('message')}" if state == "failed" else state
    return textwrap.shorten(text, _MAX_STATUS_CHARS, placeholder="...")


def _has_ended(status: dict[str, Any]) -> bool:
    """Whether the process of a run on this machine does not exist any more."""
    pid = status.get("pid")
    if status.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False


def differing_options(runs: list[RunSummary]) -> list[list[str]]:
    """For each run 'KEY=value' of the options whose values are not the same in all runs."""
    keys = sorted({key for run in runs for key in run.options}.difference(_IGNORED_OPTIONS))
    differing = [key for key in keys if any(run.options.get(key) != runs[0].options.get(key) for run in runs)]
    return [[f"{key}={format_value(run.options.get(key))}" for key in differing] for run in runs]
