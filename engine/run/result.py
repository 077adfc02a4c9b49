"""The results of a run: result.json, the best epoch in its tables, and the names of its files. Without torch."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from utils.files import atomic_write
from utils.metric_table import METRICS, Metric
from utils.tables import to_float

EVALUATION, TEST_EVALUATION = "evaluation", "evaluation-test"  # in the folder of a run
SUMMARY, PER_CLASS, PER_IMAGE, CONFUSION, PAIRS, CALIBRATION, COVERAGE, MISTAKES, LOGITS = (
    "summary.json", "per_class.csv", "per_image.csv", "confusion.csv", "confused_pairs.csv", "calibration.csv",
    "coverage.csv", "mistakes.csv", "logits.npz",
)  # fmt: skip
PICTURES = "pictures"  # a folder in the evaluation's
# Lists of images, NAME/NAME.csv in the folder of a run, and their titles on the page.
FINDINGS = {
    "copies": "Evaluated images with a near copy in the training",
    "suspects": "Training images whose label may be wrong",
}


RESULT = "result.json"
BASELINES = ("pixel_baseline", "majority_class")
LARGEST = 1e150  # in a chart; the axes of larger numbers, and of numbers below its inverse, are no numbers

Rows = list[dict[str, str]]
_Metrics = Mapping[str, float | None]  # by name; missing ones are unknown


@dataclass(frozen=True)
class TestResult:
    """The entry `test` of a result. error: the reason why no image was evaluated."""

    metrics: _Metrics = field(default_factory=dict)
    samples: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Result:
    """The content of `result.json` (docs/operation.md) of a training run or an evaluation. None: not known.

    metrics: of the best epoch, or of the evaluation; the next figures, too.
    """

    metrics: _Metrics = field(default_factory=dict)
    samples: int | None = None
    split: str | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    ece: float | None = None
    epoch: int | None = None
    checkpoint: str | None = None
    average_score: float | None = None
    raw_score: float | None = None
    knn_top1: float | None = None
    probe_l2: float | None = None
    pixel_baseline: float | None = None
    majority_class: float | None = None
    test: TestResult | None = None
    finished: bool = False
    stopped_early: bool | None = None
    reason: str | None = None
    train_seconds: float | None = None
    total_seconds: float | None = None
    images_per_second: float | None = None
    peak_memory_bytes: int | None = None
    numeric_precision: str | None = None
    device: str | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None

    @property
    def entries(self) -> dict[str, Any]:
        """The entries of the file. JSON has no numbers that are not finite: they are None."""
        return _entries(self) | {"test": _entries(self.test) if self.test else None}


def _entries(result: Result | TestResult) -> dict[str, Any]:
    values = {name: result.metrics.get(name) for name in METRICS}
    values |= {one.name: getattr(result, one.name) for one in fields(result) if one.name != "metrics"}
    return {key: None if isinstance(x, float) and not math.isfinite(x) else x for key, x in values.items()}


def write_result(folder: Path, result: Result) -> None:
    """Raises OSError; an older file is then unchanged."""
    atomic_write(folder / RESULT, json.dumps(result.entries, indent=2) + "\n")


def points(rows: Rows, x_column: str, y_column: str) -> list[tuple[float, float]]:
    """(x, y) of the rows that have both as finite numbers of at most `LARGEST`."""
    cells = ((to_float(row.get(x_column)), to_float(row.get(y_column))) for row in rows)
    return [(x, y) for x, y in cells if x is not None and y is not None and max(abs(x), abs(y)) <= LARGEST]


def best_epoch(rows: Rows, metric: Metric) -> tuple[int, float] | None:
    """(epoch, value of the metric) of `best.pth`, the first of equal ones; None without a value."""
    losses = dict(points(rows, "epoch", "val_loss"))
    scores = points(rows, "epoch", f"val_{metric.name}")
    if not scores:
        return None
    epoch, score = max(scores, key=lambda p: (metric.rank({"loss": losses.get(p[0]), metric.name: p[1]}), -p[0]))
    return int(epoch), score
