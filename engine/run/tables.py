"""The tables of a run, `metrics.csv` and `steps.csv`, and the values that its loggers get."""

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.run.step_report import StepReport
from utils.atomic_file import open_atomically
from utils.metric_table import METRICS
from utils.metrics import Metrics
from utils.tables import read_rows, to_float

# New columns go to the end: scripts may read columns by their position.
EPOCH_COLUMNS = [
    "epoch", "step", "lr", "train_loss", "train_top1", "val_loss", "val_top1", "val_top5",
    "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "loss_scale",
    "skipped_steps", "skipped_images", "peak_memory_bytes", "train_seconds", "grad_norm", "images_in_skipped_steps",
    "raw_val_loss", "raw_val_top1", "raw_val_top5", "val_mean_ap", "raw_val_mean_ap",
    "launch_bound_share",
]  # fmt: skip
EPOCH_COLUMNS += [
    column for prefix in ("val_", "raw_val_") for name in METRICS if (column := prefix + name) not in EPOCH_COLUMNS
]
STEP_COLUMNS = ["step", "lr", "loss_scale", "skipped_steps", "grad_norm", "loss", "top1", "top5"]
_SCALARS = (
    "lr", "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "loss_scale",
    "skipped_steps", "grad_norm", "peak_memory_bytes", "launch_bound_share",
)  # fmt: skip


class CsvFile:
    """A CSV file to which rows are appended. Its first column is a position in the run: an epoch or a step.

    An existing file is continued: rows up to position `last` are kept. Rows whose position cannot be read are left out;
    `warn` then gets a line, and a copy keeps the file as it was.
    """

    def __init__(self, path: Path, columns: list[str], last: int, warn: Callable[[str], None]) -> None:
        self.path, self.columns = path, columns
        rows = _readable_rows(path, columns[0], warn) if path.exists() else []
        with open_atomically(path) as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(row for place, row in rows if place <= last)

    def append(self, row: dict[str, Any]) -> None:
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def sync(self) -> None:
        """Returns when the rows are on the disk."""
        with open(self.path) as file:
            os.fsync(file.fileno())


def _readable_rows(path: Path, position: str, warn: Callable[[str], None]) -> list[tuple[float, dict[str, str]]]:
    """The rows with a number in the column `position`, each with this number."""
    try:
        rows, problem = read_rows(path, errors="replace"), ""
    except csv.Error as error:
        rows, problem = [], f"it is no table ({error})"
    readable = [(place, row) for row in rows if (place := to_float(row.get(position))) is not None]
    if number := len(rows) - len(readable):
        problem = f"{number} row{'s have' if number > 1 else ' has'} no number in the column {position}"
    if problem:
        copy = path.with_suffix(f".damaged{path.suffix}")
        shutil.copyfile(path, copy)
        warn(f"Warning: {path}: {problem}; the run continues without them, and {copy.name} is the file as it was")
    return readable


def training_scalars(report: StepReport) -> dict[str, float]:
    """The curves of training: train/loss and so on."""
    values = {f"train/{name}": value for name in _SCALARS if (value := getattr(report, name)) is not None}
    return values | (metric_figures("train/", report.latest) if report.latest.samples else {})


def step_row(report: StepReport) -> dict[str, Any]:
    """A row of `steps.csv`. Loss and accuracy are those since the previous row; empty if all its steps were skipped."""
    row = {name: getattr(report, name) for name in ("step", "lr", "loss_scale", "skipped_steps")}
    figures = metric_figures("", report.latest) if report.latest.samples else {}
    return row | {"grad_norm": cell(report.grad_norm, ".6g")} | {name: f"{x:.6g}" for name, x in figures.items()}


def metric_figures(prefix: str, metrics: Metrics) -> dict[str, float]:
    """The metrics by name, with a prefix: 'val/' and so on for loggers, 'val_' for `metrics.csv`."""
    return {f"{prefix}{name}": value for name, value in metrics.values.items()}


def cell(value: float | None, spec: str = "") -> str:
    """A cell of a table; empty for None."""
    return "" if value is None else format(value, spec)
