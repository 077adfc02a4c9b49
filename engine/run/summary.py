"""Reads the folder of a run: its options, its epochs, its result and its state."""

import csv
import json
import math
import os
import socket
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.reading.compare import with_defaults
from configs.reading.option_layers import RUN_OPTIONS
from configs.reading.yaml_io import read_yaml, shorten
from engine.run.result import RESULT
from utils.errors import UserError
from utils.status import STATUS
from utils.tables import read_rows, to_float

_IGNORED_OPTIONS = ("SAVE", "MODEL.RESUME")  # paths of the run itself
_MAX_NAME_CHARS, _MAX_STATUS_CHARS = 60, 50
_SCORES = ("val_mean_ap", "val_top1")  # the best epoch has the highest value of the first one with values

Rows = list[dict[str, str]]


@dataclass(frozen=True)
class RunSummary:
    """A run that trained or evaluated.

    Attributes:
        epochs: rows of `metrics.csv`; empty for an evaluation. options: all options by dotted key.
        best: epoch (from 1) and the metric of the best epoch, in percent; None without an evaluation.
        state: running, finished, stopped, interrupted, failed, killed or unknown.
        status, result: the content of `status.json` and `result.json`; the latter is empty while the run is running.
    """

    folder: Path
    name: str
    epochs: list[dict[str, str]]
    options: dict[str, Any]
    best: tuple[int, float] | None
    train_seconds: float | None
    images_per_second: float | None
    peak_memory_bytes: float | None
    state: str
    status: dict[str, Any]
    result: dict[str, Any]

    @property
    def score_column(self) -> str:
        """The column of `metrics.csv` whose highest value is in `best`: val_top1 or val_mean_ap."""
        return score_column(self.epochs)

    @property
    def num_epochs(self) -> int:
        return self.options["TRAIN.NUM_EPOCHS"]

    @property
    def is_multi_label(self) -> bool:
        """Whether the metric is mean AP, else top-1."""
        return self.options["DATA.MULTI_LABEL"] is True or self.score_column == "val_mean_ap"

    @property
    def is_evaluation(self) -> bool:
        return evaluates(self.options)

    @property
    def short_status(self) -> str:
        """The state, and the reason of a failure; at most 50 characters."""
        text = f"failed: {self.status.get('message')}" if self.state == "failed" else self.state
        return textwrap.shorten(text, _MAX_STATUS_CHARS, placeholder="...")


def read_run(folder: Path) -> RunSummary:
    """Reads config.yaml, status.json, metrics.csv and result.json; a run that failed early lacks the last two.

    Raises:
        UserError: it is not the folder of a run that trained or evaluated, or a file is damaged.
    """
    if not (folder / RUN_OPTIONS).is_file():
        raise UserError(f"{folder}: is not the folder of a run (no {RUN_OPTIONS})")
    options = with_defaults(read_yaml(folder / RUN_OPTIONS)[0])
    if evaluates(options) and _is_prediction(folder):
        raise UserError(f"{folder}: is the folder of a prediction; its result is the table predictions.csv")
    if not (evaluates(options) or (folder / STATUS).is_file()):
        raise UserError(f"{folder}: is not the folder of a run (no {STATUS})")
    try:
        epochs = read_rows(folder / "metrics.csv") if (folder / "metrics.csv").exists() else []
    except (ValueError, OSError, csv.Error) as error:
        raise UserError(f"{folder / 'metrics.csv'}: cannot be read ({shorten(str(error))})") from None
    status = read_json(folder / STATUS)
    # The file of a run that is running is from before the run was resumed.
    result = {} if status.get("state") == "running" else read_json(folder / RESULT)
    measured = _measured(epochs)
    measured |= {name: result[name] for name in measured if isinstance(result.get(name), int | float)}
    name = folder.resolve().name
    return RunSummary(
        folder=folder,
        name=name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 3]}...",
        epochs=epochs,
        options=options,
        best=best_epoch(epochs),
        state=_state(status, result),
        status=status,
        result=result,
        **measured,
    )


def _measured(epochs: list[dict[str, str]]) -> dict[str, float | None]:
    """Up to the last complete epoch, whose images/s stand for the run."""
    last = epochs[-1] if epochs else {}
    names = ("train_seconds", "images_per_second", "peak_memory_bytes")
    return {name: to_float(last.get(name)) for name in names}


def points(rows: Rows, x_column: str, y_column: str) -> list[tuple[float, float]]:
    """(x, y) of the rows that have both as finite numbers."""
    cells = ((to_float(row.get(x_column)), to_float(row.get(y_column))) for row in rows)
    return [(x, y) for x, y in cells if x is not None and y is not None]


def best_epoch(rows: Rows) -> tuple[int, float] | None:
    """(epoch, score) of `best.pth`: the highest top-1 or mAP, then the lowest loss; None without evaluation."""
    losses = dict(points(rows, "epoch", "val_loss"))
    scores = points(rows, "epoch", score_column(rows))
    if not scores:
        return None
    epoch, score = max(scores, key=lambda point: (point[1], -losses.get(point[0], math.inf), -point[0]))
    return int(epoch), score


def score_column(rows: Rows) -> str:
    """The column of `metrics.csv` that decides which epoch is the best; of a multi-label run the mAP."""
    return next((column for column in _SCORES if points(rows, "epoch", column)), _SCORES[-1])


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def evaluates(options: dict[str, Any]) -> bool:
    """Returns whether the run evaluates (-eval). options: by dotted key."""
    return options["EVAL.ENABLED"] is True


def _is_prediction(folder: Path) -> bool:
    """Returns whether `-predict` made the folder, which has the options of an evaluation, and no table if it failed."""
    has_result = (folder / RESULT).exists() or (folder / STATUS).exists()
    return not has_result and (folder.resolve().name.startswith("predict-") or (folder / "predictions.csv").exists())


def _state(status: dict[str, Any], result: dict[str, Any]) -> str:
    state = status.get("state")
    if not isinstance(state, str):
        return "finished" if result else "unknown"  # an evaluation may have no status.json
    return "killed" if state == "running" and _has_ended(status) else state


def _has_ended(status: dict[str, Any]) -> bool:
    """Returns whether the process of a run on this machine does not exist any more."""
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


def differing_options(runs: list[RunSummary]) -> dict[str, list[Any]]:
    """The values of each run by dotted key, for the options whose values are not the same in all runs."""
    keys = sorted({key for run in runs for key in run.options}.difference(_IGNORED_OPTIONS))
    differing = [key for key in keys if any(run.options.get(key) != runs[0].options.get(key) for run in runs)]
    return {key: [run.options.get(key) for run in runs] for key in differing}
