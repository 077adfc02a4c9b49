"""The results of a run: the names of its files, result.json, the best epoch, curves.png. Without torch and numpy."""

import io
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from utils.files import atomic_write
from utils.metric_table import METRICS, Metric
from utils.system import is_installed
from utils.tables import read_rows, to_float

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
    """The entry `test` of a result. unreadable: images. error: the reason why no image was evaluated."""

    metrics: _Metrics = field(default_factory=dict)
    samples: int | None = None
    unreadable: int | None = None
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


PICTURE = "curves.png"


@dataclass(frozen=True)
class Curves:
    """A chart: its title, and the name of the curve of each column of `metrics.csv`.

    x_label: 'epoch', or 'step' for a column of `steps.csv`. factor: from the column's unit to `unit`. compared: the
    column that a chart of several runs shows. unused: a curve with this value only is left out. multi_label: the chart
    is for these runs only; None: for all runs.
    """

    title: str
    columns: dict[str, str]
    compared: str
    unit: str = ""
    x_label: str = "epoch"
    factor: float = 1.0
    log_base: int | None = None
    unused: float | None = None
    multi_label: bool | None = None

    def points(self, rows: Rows, column: str) -> list[tuple[float, float]]:
        """Returns (epoch or step, value) of the rows; empty if the column has no value, or the unused one only."""
        found = [(x, y * self.factor) for x, y in points(rows, self.x_label, column)]
        return found if {y for _, y in found} - {self.unused} else []


CURVES = (
    Curves("Loss", {"train_loss": "training", "val_loss": "validation", "raw_val_loss": "validation, raw weights"},
           "val_loss", log_base=10),
    Curves("Top-1", {"train_top1": "training", "val_top1": "validation", "val_top5": "validation top-5",
                     "raw_val_top1": "validation, raw weights"}, "val_top1", unit="%", multi_label=False),
    Curves("Training hit@1", {"train_top1": "training hit@1"}, "train_top1", unit="%", multi_label=True),
    Curves("Mean AP", {"val_mean_ap": "validation", "raw_val_mean_ap": "validation, raw weights"}, "val_mean_ap",
           unit="%"),
    Curves("Means over classes", {"val_macro_f1": "macro F1", "val_balanced_accuracy": "balanced accuracy",
                                  "val_min_recall": "minimum recall"}, "val_macro_f1", unit="%"),
    Curves("Learning rate", {"lr": "learning rate"}, "lr", x_label="step"),
    Curves("Gradient norm", {"grad_norm": "gradient norm"}, "grad_norm", x_label="step", log_base=10),
    Curves("Loss scale", {"loss_scale": "loss scale"}, "loss_scale", x_label="step", log_base=2, unused=1),
    Curves("Skipped steps", {"skipped_steps": "skipped steps, total"}, "skipped_steps", x_label="step", unused=0),
    Curves("Throughput", {"images_per_second": "images per second"}, "images_per_second", unit="images/s"),
    Curves("Data wait", {"data_wait_share": "share of the time"}, "data_wait_share", unit="% of the time", factor=100),
    Curves("Peak memory", {"peak_memory_bytes": "peak memory"}, "peak_memory_bytes", unit="GB", factor=1e-9),
)  # fmt: skip


def draw_curves(folder: Path, metric: Metric, num_classes: int) -> None:
    """Draws the charts with a validation curve, if matplotlib is installed: `curves.png`.

    metric: the one that decides, whose best epoch is marked. num_classes: of the model. Raises
    OSError; an older picture is then unchanged.
    """
    if not is_installed("matplotlib"):
        return
    from matplotlib.figure import Figure  # imported late: it takes about a second

    rows = read_rows(folder / "metrics.csv")
    charts = [one for one in CURVES if one.compared.startswith("val_") and one.points(rows, one.compared)] or CURVES[:1]
    figure = Figure(figsize=(6 * len(charts), 4), layout="constrained")
    figure.suptitle(folder.name.replace("$", r"\$"))  # matplotlib reads text between dollar signs as a formula
    for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        axes.set(xlabel="epoch", ylabel=f"{chart.title} ({chart.unit})" if chart.unit else chart.title)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        for column, name in chart.columns.items():
            is_shown = METRICS.get(column.removeprefix("val_"), metric).min_classes <= num_classes
            if is_shown and (curve := chart.points(rows, column)):
                axes.plot(*zip(*curve, strict=True), label=name, marker=".", markersize=4)
        if f"val_{metric.name}" in chart.columns and (best := best_epoch(rows, metric)):
            text = f"best: {metric.text(best[1])}, epoch {best[0]}"
            axes.plot(*best, "*", color="black", markersize=10, label=text)
        if axes.lines:
            axes.legend()
    atomic_write(folder / PICTURE, png_bytes(figure))


def png_bytes(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # its font lacks a character of a name
        warnings.filterwarnings("ignore", message="Creating legend")  # on a busy machine: it is slow
        FigureCanvasAgg(figure).print_png(picture)
    return picture.getvalue()
