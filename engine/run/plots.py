"""Plots of a run, drawn from its CSV files."""

import io
import warnings
from pathlib import Path
from typing import Any

from engine.run.timing.time_share import TimeShare
from utils.atomic_file import atomic_write
from utils.packages import is_installed, require
from utils.tables import read_rows

_CURVES = {
    "loss.png": (
        "loss",
        {"train_loss": "training", "val_loss": "validation", "raw_val_loss": "validation, raw weights"},
    ),
    "accuracy.png": (
        "accuracy (%)",
        {
            "train_top1": "training top-1",
            "val_top1": "validation top-1",
            "val_top5": "validation top-5",
            "raw_val_top1": "validation top-1, raw weights",
            "val_mean_ap": "validation mAP",
            "raw_val_mean_ap": "validation mAP, raw weights",
        },
    ),
}
_MAX_TIME_SHARE = 0.02
_SCORES = ("val_mean_ap", "val_top1")  # the best epoch has the highest value of the first one with values
_MAX_MARKED_POINTS = 30  # of a curve; markers of more points overlap


class CurvePlots:
    """Draws `loss.png`, `accuracy.png` and `loss_scale.png` in the folder of a run, from `metrics.csv` and `steps.csv`.

    Drawing takes at most 2% of the time of the run. A run whose loss scale was always 1, and that skipped no step,
    has no `loss_scale.png`. Without matplotlib there are no plots.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._drawing = TimeShare(self._draw, _MAX_TIME_SHARE)

    def update(self, now: bool = False) -> None:
        """Draws the plots, unless they were drawn a short while ago. now: draws them in any case."""
        self._drawing.update(now)

    def _draw(self) -> None:
        if not is_installed("matplotlib"):
            return
        rows = read_rows(self.folder / "metrics.csv")
        for name, (label, curves) in _CURVES.items():
            _plot_curves(rows, curves, label, self.folder / name)
        _plot_loss_scale(read_rows(self.folder / "steps.csv"), self.folder / "loss_scale.png")


def _plot_curves(rows: list[dict[str, str]], curves: dict[str, str], label: str, path: Path) -> None:
    """curves: legend by column."""
    figure, axes = new_figure("epoch", label, path.parent.name)
    for column, legend in curves.items():
        if points := curve(rows, column):
            plot_curve(axes, points, legend)
    if score_column(rows) in curves and (best := best_epoch(rows)):
        epoch, score = best
        axes.plot(epoch, score, "*", color="black", markersize=10, label=f"best: {score:.2f}%, epoch {epoch}")
    if axes.lines:
        axes.legend()
    write_png(figure, path)


def curve(rows: list[dict[str, str]], column: str) -> list[tuple[int, float]]:
    """(epoch, value) of the rows of `metrics.csv` that have a value."""
    return [(int(row["epoch"]), float(row[column])) for row in rows if row.get(column)]


def best_epoch(rows: list[dict[str, str]]) -> tuple[int, float] | None:
    """(epoch, score) of `best.pth`: the highest top-1 or mAP, then the lowest loss; None without evaluation."""
    column = score_column(rows)
    evaluated = [(float(row[column]), -float(row["val_loss"]), -int(row["epoch"])) for row in rows if row[column]]
    if not evaluated:
        return None
    score, _, negative_epoch = max(evaluated)
    return -negative_epoch, score


def score_column(rows: list[dict[str, str]]) -> str:
    """The column of `metrics.csv` that decides which epoch is the best; of a multi-label run the mAP."""
    return next((column for column in _SCORES if any(row.get(column) for row in rows)), _SCORES[-1])


def plot_curve(axes: Any, points: list[tuple[int, float]], legend: str) -> Any:
    """Returns the line."""
    marker = "." if len(points) < _MAX_MARKED_POINTS else None
    (line,) = axes.plot(*zip(*points, strict=True), label=without_math(legend), marker=marker)
    return line


def _plot_loss_scale(rows: list[dict[str, str]], path: Path) -> None:
    steps, scales, skipped = ([float(row[key]) for row in rows] for key in ("step", "loss_scale", "skipped_steps"))
    if not any(skipped) and set(scales) <= {1.0}:
        return
    figure, axes = new_figure("step", "loss scale", path.parent.name)
    axes.set_yscale("log", base=2)
    axes.step(steps, scales, where="post", color="tab:blue")
    skipped_axes = axes.twinx()
    skipped_axes.step(steps, skipped, where="post", color="tab:red")
    skipped_axes.set_ylabel("skipped steps, total", color="tab:red")
    skipped_axes.yaxis.get_major_locator().set_params(integer=True)
    write_png(figure, path)


def new_figure(x_label: str, y_label: str, title: str, size: tuple[float, float] = (6, 4)) -> tuple[Any, Any]:
    """A figure and its axes, with whole numbers on the x axis. size: in inches. Raises UserError without matplotlib."""
    require("plots", "matplotlib")
    from matplotlib.figure import Figure  # imported late: it takes about a second

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_title(without_math(title))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    return figure, axes


def without_math(text: str) -> str:
    """matplotlib reads text between two dollar signs as a formula."""
    return text.replace("$", r"\$")


def write_png(figure: Any, path: Path) -> None:
    """Raises OSError if the file cannot be written; the old file is then intact."""
    atomic_write(path, png_bytes(figure))


def png_bytes(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # its font lacks a character of a name
        FigureCanvasAgg(figure).print_png(picture)
    return picture.getvalue()
