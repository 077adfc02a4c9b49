"""Plots of a run, drawn from its CSV files."""

import time
from pathlib import Path
from typing import Any

from utils.tables import read_rows

_CURVES = {
    "loss.png": ("loss", {"train_loss": "training", "val_loss": "validation"}),
    "accuracy.png": ("accuracy (%)", {"train_top1": "training top-1", "val_top1": "top-1", "val_top5": "top-5"}),
}
_MAX_TIME_SHARE = 0.02
_MAX_MARKED_POINTS = 30  # of a curve; markers of more points overlap


class CurvePlots:
    """Draws `loss.png`, `accuracy.png` and `loss_scale.png` in the folder of a run, from `metrics.csv` and `steps.csv`.

    Drawing takes at most 2% of the time of the run. A run whose loss scale was always 1, and that skipped no step,
    has no `loss_scale.png`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._next_time = 0.0

    def update(self, now: bool = False) -> None:
        """Draws the plots, unless they were drawn a short while ago. now: draws them in any case."""
        started = time.monotonic()
        if not now and started < self._next_time:
            return
        rows = read_rows(self.folder / "metrics.csv")
        for name, (label, curves) in _CURVES.items():
            _plot_curves(rows, curves, label, self.folder / name)
        _plot_loss_scale(read_rows(self.folder / "steps.csv"), self.folder / "loss_scale.png")
        finished = time.monotonic()
        self._next_time = finished + (finished - started) / _MAX_TIME_SHARE


def _plot_curves(rows: list[dict[str, str]], curves: dict[str, str], label: str, path: Path) -> None:
    """curves: legend by column."""
    figure, axes = _figure("epoch", label)
    for column, legend in curves.items():
        points = [(int(row["epoch"]), float(row[column])) for row in rows if row[column]]
        if points:
            marker = "." if len(points) < _MAX_MARKED_POINTS else None
            axes.plot(*zip(*points, strict=True), label=legend, marker=marker)
    if axes.lines:
        axes.legend()
    _write(figure, path)


def _plot_loss_scale(rows: list[dict[str, str]], path: Path) -> None:
    steps, scales, skipped = ([float(row[key]) for row in rows] for key in ("step", "loss_scale", "skipped_steps"))
    if not any(skipped) and set(scales) <= {1.0}:
        return
    figure, axes = _figure("step", "loss scale")
    axes.set_yscale("log", base=2)
    axes.step(steps, scales, where="post", color="tab:blue")
    skipped_axes = axes.twinx()
    skipped_axes.step(steps, skipped, where="post", color="tab:red")
    skipped_axes.set_ylabel("skipped steps, total", color="tab:red")
    skipped_axes.yaxis.get_major_locator().set_params(integer=True)
    _write(figure, path)


def _figure(x_label: str, y_label: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # imported late: it takes about a second

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure, axes


def _write(figure: Any, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).print_png(path)
