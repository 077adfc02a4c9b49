"""Pictures from the CSV files."""

import time
from pathlib import Path
from typing import Any

from utils.tables import read_rows

_CURVES = {
    "loss.png": ("loss", {"train_loss": "training", "val_loss": "validation"}),
    "accuracy.png": ("accuracy (%)", {"train_top1": "training top-1", "val_top1": "top-1", "val_top5": "top-5"}),
}
_LARGEST_SHARE = 0.02


class CurvePlots:
    """`loss.png`, `accuracy.png` and `loss_scale.png` of a run's folder, from its `metrics.csv` and `steps.csv`.

    They are redrawn as often as costs at most 2% of the run's time. A loss scale that stood at 1 and skipped nothing
    (fp32, bfloat16) has no picture.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._next_time = 0.0

    def update(self, now: bool = False) -> None:
        """Redraws if it is time, or at once."""
        started = time.monotonic()
        if not now and started < self._next_time:
            return
        rows = read_rows(self.folder / "metrics.csv")
        for name, (label, curves) in _CURVES.items():
            _plot(rows, curves, label, self.folder / name)
        _plot_loss_scale(read_rows(self.folder / "steps.csv"), self.folder / "loss_scale.png")
        finished = time.monotonic()
        self._next_time = finished + (finished - started) / _LARGEST_SHARE


def _plot(rows: list[dict[str, str]], curves: dict[str, str], label: str, path: Path) -> None:
    figure, axes = _figure("epoch", label)
    for column, legend in curves.items():
        points = [(int(row["epoch"]), float(row[column])) for row in rows if row[column]]
        if points:
            axes.plot(*zip(*points, strict=True), label=legend, marker="." if len(points) < 30 else None)
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
    skipped_axes.set_ylabel("skipped steps, in all", color="tab:red")
    skipped_axes.yaxis.get_major_locator().set_params(integer=True)
    _write(figure, path)


def _figure(x_label: str, y_label: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # loaded here: a second that a run's start need not wait for

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return figure, axes


def _write(figure: Any, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).print_png(path)
