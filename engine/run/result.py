"""The results of a run: result.json, the best epoch in its tables, and the names of its files. Without torch."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from utils.atomic_file import atomic_write
from utils.metric_table import METRICS, Metric
from utils.tables import to_float

EVALUATION, TEST_EVALUATION = "evaluation", "evaluation-test"  # in the folder of a run
SUMMARY, PER_CLASS, PER_IMAGE, CONFUSION, PAIRS, CALIBRATION, COVERAGE, MISTAKES, LOGITS = (
    "summary.json", "per_class.csv", "per_image.csv", "confusion.csv", "confused_pairs.csv", "calibration.csv",
    "coverage.csv", "mistakes.csv", "logits.npz",
)  # fmt: skip
PICTURES = "pictures"  # a folder in the evaluation's


RESULT = "result.json"
_OF_SPLIT = (*METRICS, "samples")
TEST_KEYS = (*_OF_SPLIT, "error")  # of the entry `test`
BASELINES = ("pixel_baseline", "majority_class")
RESULT_KEYS = (
    *_OF_SPLIT, "split", "precision", "recall", "f1", "ece", "epoch", "checkpoint", "average_score", "raw_score",
    "knn_top1", "probe_l2", *BASELINES,
    "test", "finished", "stopped_early", "reason", "train_seconds", "total_seconds", "images_per_second",
    "peak_memory_bytes", "numeric_precision", "device", "parameters", "trainable_parameters",
)  # fmt: skip
LARGEST = 1e150  # in a chart; the axes of larger numbers, and of numbers below its inverse, are no numbers

Rows = list[dict[str, str]]


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


def with_all_keys(values: Mapping[str, Any], keys: Sequence[str] = RESULT_KEYS) -> dict[str, Any]:
    """The values, and None for the other keys; also for a number that is not finite, which JSON does not have."""
    known = {key: value for key, value in values.items() if not isinstance(value, float) or math.isfinite(value)}
    return dict.fromkeys(keys) | known


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Writes the result with all keys. Raises OSError; an older file is then unchanged."""
    test = with_all_keys(result["test"], TEST_KEYS) if result.get("test") else None
    atomic_write(folder / RESULT, json.dumps(with_all_keys(result | {"test": test}), indent=2) + "\n")
