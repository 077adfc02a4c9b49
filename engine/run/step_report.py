"""The state of training at a step: log lines, the tables `metrics.csv` and `steps.csv`, and the loggers' values."""

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.run.log import RunLogger
from utils.files import link_or_copy, open_atomically, own_file
from utils.metric_table import METRICS
from utils.metrics import Metrics
from utils.tables import format_duration, read_rows, three_digits, to_float, wrap_parts

_MIN_DATA_WAIT_SHARE = 0.05
_MIN_LAUNCH_BOUND_SHARE = 0.5
_GRAD_NORM_SPIKE = 2.0  # times the mean of the epoch


@dataclass(frozen=True)
class StepReport:
    """Throughput (all devices) and `latest` cover the time since the previous report.

    epoch counts from 1, step from the start of the run, epoch_step from the start of the epoch. average: the metrics
    since the start of the epoch. is_scaled: whether the loss scale can be anything but 1. seconds_left: to the end of
    the run; None if it is unknown. data_wait_share, launch_bound_share: see `TimerTotals`.
    """

    epoch: int
    num_epochs: int
    epoch_step: int
    steps_per_epoch: int
    step: int
    lr: float | None
    latest: Metrics
    average: Metrics
    images_per_second: float
    data_wait_share: float
    tflops_per_second: float | None
    model_flops_utilization: float | None
    is_scaled: bool
    loss_scale: float
    skipped_steps: int
    peak_memory_bytes: int
    seconds_left: float | None = None
    launch_bound_share: float | None = None

    @property
    def grad_norm(self) -> float | None:
        return self.latest.grad_norm

    def log_lines(self, previous: "StepReport | None" = None) -> list[str]:
        """PaddleViT's line, continued with images/s, memory and the time left; '-' means that all steps were skipped.

        Other values appear if they are unusual, the loss scale if it differs from the `previous` report's. Values that
        do not fit into 120 columns form a second line.
        """
        parts = [self._paddlevit_part(), format_speed(self.images_per_second)]
        parts.append(f"{three_digits(self.peak_memory_bytes / 1e9)}G")
        if self.data_wait_share >= _MIN_DATA_WAIT_SHARE:
            parts.append(f"wait {self.data_wait_share:.0%}")
        if (self.launch_bound_share or 0) > _MIN_LAUNCH_BOUND_SHARE:
            parts.append(f"launch-bound {self.launch_bound_share:.0%}")
        if self.seconds_left:
            parts.append(f"left {format_duration(self.seconds_left)}")
        norm, mean_norm = self.grad_norm, self.average.grad_norm
        if norm is not None and mean_norm is not None and norm > _GRAD_NORM_SPIKE * mean_norm:
            parts.append(f"grad norm {three_digits(norm)} (mean {three_digits(mean_norm)})")
        if self.is_scaled and not (previous and previous.loss_scale == self.loss_scale):
            parts.append(f"loss scale {self.loss_scale:g}")
        if self.latest.skipped_samples:
            parts.append(f"skipped steps {self.skipped_steps}")
        return wrap_parts(parts)

    def _paddlevit_part(self) -> str:
        average, lr = self.average, "" if self.lr is None else f"Lr: {self.lr:.6f}, "
        latest_loss, loss = (f"{one.loss:.4f}" if one.samples else "-" for one in (self.latest, average))
        accuracy = METRICS["top1"].text(average.values["top1"]) if average.samples else "-"
        return (
            f"Epoch[{self.epoch:03d}/{self.num_epochs:03d}], "
            f"Step[{self.epoch_step - 1:04d}/{self.steps_per_epoch:04d}], {lr}"
            f"Loss: {latest_loss} ({loss}), Avg Acc: {accuracy}"
        )

    def scalars(self) -> dict[str, float]:
        """The curves of training for the loggers: train/loss and so on."""
        values = {f"train/{name}": value for name in _SCALARS if (value := getattr(self, name)) is not None}
        return values | (metric_figures("train/", self.latest) if self.latest.samples else {})

    def row(self) -> dict[str, Any]:
        """A row of `steps.csv`; loss and accuracy are empty if all steps since the last row were skipped."""
        row = {name: getattr(self, name) for name in ("step", "lr", "loss_scale", "skipped_steps")}
        figures = metric_figures("", self.latest) if self.latest.samples else {}
        return row | {"grad_norm": cell(self.grad_norm, ".6g")} | {name: f"{x:.6g}" for name, x in figures.items()}


def format_speed(images_per_second: float) -> str:
    """'64.5 img/s' or '2850 img/s'."""
    return f"{images_per_second:.{0 if images_per_second >= 999.95 else 1}f} img/s"


def log_validation(
    logger: RunLogger,
    title: str,
    metrics: Metrics,
    num_classes: int,
    num_samples: int,
    seconds: float,
    split: str = "Validation",
    precision: str = "",
) -> None:
    """Logs PaddleViT's line, continued with the `precision`, and a warning if images were unreadable."""
    shown = [(metric, value) for metric, value in metrics.logged().items() if num_classes >= metric.min_classes]
    figures = ", ".join(f"{split} {metric.log_name or metric.title}: {metric.text(value)}" for metric, value in shown)
    logger.info(f"----- {title}{figures}, time: {seconds:.2f} s{precision and f', {precision}'}")
    if unreadable := num_samples - metrics.samples:
        logger.warn(f"Data: {unreadable} of {num_samples} images skipped: see bad_images_*.csv")


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
        with open(self.path, "a", newline="", encoding="utf-8", opener=own_file) as file:
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
        link_or_copy(path, copy)
        warn(f"Warning: {path}: {problem}; the run continues without them, and {copy.name} is the file as it was")
    return readable


def metric_figures(prefix: str, metrics: Metrics) -> dict[str, float]:
    """The metrics by name, with a prefix: 'val/' and so on for loggers, 'val_' for `metrics.csv`."""
    return {f"{prefix}{name}": value for name, value in metrics.values.items()}


def cell(value: float | None, spec: str = "") -> str:
    """A cell of a table; empty for None."""
    return "" if value is None else format(value, spec)
