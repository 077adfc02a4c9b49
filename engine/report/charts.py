"""Numbers as the page shows them, and its charts, which `templates/macros.html` draws as SVG.

A value that is missing is ''.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from configs.yaml_io import format_value
from engine.report.contents import LARGEST, RunContents, points
from engine.run.record import Row
from utils.files import without_none
from utils.metric_table import METRICS, Metric

MAX_NAME_CHARS = 60


def number_text(value: float | None) -> str:
    """Four significant digits, thousands separated: '0.09312', '12.5', '12,500'; exponents below 0.0001."""
    if value is None or not math.isfinite(value):
        return ""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e-0", "e-")


percent = METRICS["top1"].text  # '99.17%' of 99.17


def option_text(value: Any) -> str:
    """The value of an option, numbers with six significant digits; of a section without nulls."""
    if isinstance(value, list):
        return f"[{', '.join(map(option_text, value))}]"
    if isinstance(value, dict):
        value = without_none(value)
    return f"{value:.6g}" if isinstance(value, float) else format_value(value)


Point = tuple[float, float]

MAX_POINTS = 400  # of a curve: the page is a pixel or two per point wide
_LOG_RANGE = 100.0  # curves of positive values that vary more than this are drawn on a logarithmic axis


@dataclass(frozen=True)
class Axis:
    """Maps the values low to high to a position from 0 to 1; a logarithmic axis, their decimal logarithms."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def position(self, value: float) -> float:
        return ((math.log10(value) if self.is_log else value) - self.low) / (self.high - self.low)


def axis_of(values: Sequence[float], max_ticks: int, integers: bool = False, log: bool = False) -> Axis:
    """An axis whose limits are round numbers around the values.

    integers: all ticks are whole numbers, and the limits are the lowest and the highest value.
    log: logarithmic, if all values are positive and vary by more than a factor of 100.
    """
    low = min(values)
    high = max(values)
    if log and low > 1 / LARGEST and high / low > _LOG_RANGE:
        powers = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
        axis = axis_of(powers, max_ticks, integers=True)
        return replace(axis, ticks=tuple(10.0**power for power in axis.ticks), is_log=True)
    if high - low < 1e-12 * max(abs(low), abs(high), 1e-300):
        margin = abs(low) / 2 or 1.0
        low = low - margin
        high = high + margin
    at_least = (high - low) / max_ticks
    power = 10.0 ** math.floor(math.log10(at_least))  # the step is the next of 1, 2, 5, 10, 20, 50 and so on
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= at_least * (1 - 1e-9))
    if integers:
        step = max(step, 1)
        inside = range(math.ceil(low / step), math.floor(high / step) + 1)
        return Axis(low, high, tuple(step * number for number in inside))
    around = range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    ticks = tuple(step * number for number in around)
    return Axis(ticks[0], ticks[-1], ticks)


def tick_label(value: float) -> str:
    """Four significant digits in few characters: '0.05', '1200', '2e4', '1e-5'."""
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def downsample(points: Sequence[Point]) -> list[Point]:
    """Keeps at most `MAX_POINTS` points, in order: the first, the last, and the extremes of each part between."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil(len(points) / (MAX_POINTS // 2 - 1))
    kept = {points[0], points[-1]}
    for start in range(0, len(points), size):
        part = points[start : start + size]
        kept |= {min(part, key=itemgetter(1)), max(part, key=itemgetter(1))}
    return sorted(kept)


NUM_COLOURS = 8  # then the curves are dashed


@dataclass(frozen=True)
class Series:
    """A curve. points: (x, y) by ascending x, all finite. index: of its colour."""

    name: str
    points: list[Point]
    index: int = 0


@dataclass(frozen=True)
class Chart:
    """Curves in one frame, which the page draws.

    unit: of the values, '' if they have none. log: whether the y axis is logarithmic if the values vary by more than a
    factor of 100. best: a marked point.
    """

    title: str
    x_label: str
    series: list[Series]
    unit: str = ""
    log: bool = False
    best: Point | None = None

    @property
    def axes(self) -> tuple[Axis, Axis]:
        points = [point for series in self.series for point in series.points]
        x_axis = axis_of([x for x, _ in points], 6, integers=True)
        return x_axis, axis_of([y for _, y in points], 5, log=self.log)


@dataclass(frozen=True)
class Curves:
    """The curves of a chart: their names by column. Runs are compared by the first column.

    metric: of all columns. x_label: 'epoch', or 'step' for a column of the reports.
    """

    title: str
    columns: dict[str, str]
    unit: str = ""
    x_label: str = "epoch"
    log: bool = False
    metric: Metric | None = None

    def points(self, run: RunContents, column: str) -> list[Point]:
        """(epoch or step, value) of the run; empty if the column has no value for it."""
        rows = run.reports if self.x_label == "step" else run.epochs
        return points(rows, self.x_label, column) if self.metric is None or run.shows(self.metric) else []


_CURVES = (
    Curves("Learning rate", {"lr": "learning rate"}, x_label="step"),
    Curves("Gradient norm", {"grad_norm": "gradient norm"}, x_label="step", log=True),
    Curves("Throughput", {"images_per_second": "images per second"}, "images/s"),
    Curves("Data wait", {"data_wait_share": "share of the time"}, "share of the time"),
)


def unit_of(metric: Metric) -> str:
    return "%" if metric.is_percent else ""


def _curves_of_metric(metric: Metric) -> Curves:
    splits = {"val": "validation", "train": "training", "raw_val": "validation, raw weights"}
    columns = {f"{split}_{metric.name}": name for split, name in splits.items()}
    return Curves(metric.title, columns, unit_of(metric), log=not metric.is_percent, metric=metric)


def curves_of(runs: Sequence[RunContents], compared: bool = False) -> list[Chart]:
    """The charts of the loss, of top-1 and macro F1, of the metrics that decide, and of `_CURVES`.

    All curves of one run, with its best epoch; compared: a curve of each run, in the colour of its position.
    """
    charts = []
    metrics = (METRICS["loss"], METRICS["top1"], *(run.metric for run in runs), METRICS["macro_f1"])
    for table in (*map(_curves_of_metric, dict.fromkeys(metrics)), *_CURVES):
        title = table.title[0].upper() + table.title[1:]
        best = runs[0].best if table.metric is runs[0].metric else None
        curves = [(runs[0], column, name) for column, name in table.columns.items()]
        if compared:
            title = f"Validation {table.title}" if table.metric else table.title
            best = None
            curves = [(run, next(iter(table.columns)), run.name) for run in runs]
        found = [Series(name, table.points(run, column), index) for index, (run, column, name) in enumerate(curves)]
        series = [one for one in found if one.points]
        if any(len(one.points) > 1 for one in series):  # one epoch, as of a probe, is no curve
            charts.append(Chart(title, table.x_label, series, table.unit, table.log, best))
    return charts


CALIBRATED = Series("calibrated", [(0, 0), (100, 100)], NUM_COLOURS)


def accuracy_by(column: str, rows: Iterable[Row], of: str, *others: Series) -> Chart | None:
    """Accuracy by confidence or coverage, beside other curves; None without a value. of: ends the title."""
    accuracy = points(rows, column, "accuracy")
    series = [Series("accuracy", accuracy), *others]
    return Chart(f"Accuracy by {column}{of}", f"{column} (%)", series, "%") if accuracy else None


def roc_and_precision(rows: Iterable[Row], of: str) -> list[Chart]:
    """The ROC curve, and precision by sensitivity, of each class, whose rows are together; without curves none."""
    roc = []
    precision = []
    for index, (name, group) in enumerate(groupby(rows, itemgetter("class"))):
        found = [*group]
        by_specificity = [(100 - x, y) for x, y in points(found, "specificity", "sensitivity")]
        of_thresholds = points(found, "sensitivity", "precision")
        if by_specificity and of_thresholds:
            starts = [0.0, *(x for x, _ in of_thresholds)]
            steps = [(at, y) for start, (x, y) in zip(starts, of_thresholds, strict=False) for at in (start, x)]
            roc.append(Series(str(name), [(0, 0), *by_specificity], index))
            precision.append(Series(str(name), steps, index))  # from a threshold to the next one, as in AP
    if not roc:
        return []
    return [
        Chart(f"ROC curve{of}", "1 - specificity (%)", roc, "sensitivity, %"),
        Chart(f"Precision and recall{of}", "recall, the sensitivity (%)", precision, "precision, %"),
    ]
