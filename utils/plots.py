"""Pictures from the CSV."""

import time
from pathlib import Path

from utils.logger import read_rows

_CURVES = {
    "loss.png": ("loss", {"train_loss": "training", "val_loss": "validation"}),
    "accuracy.png": ("accuracy (%)", {"train_top1": "training top-1", "val_top1": "top-1", "val_top5": "top-5"}),
}
_LARGEST_SHARE = 0.02


class CurvePlots:
    """`loss.png` and `accuracy.png` beside `metrics.csv`, redrawn as often as costs at most 2% of the run's time."""

    def __init__(self, metrics_csv: Path) -> None:
        self.metrics_csv = metrics_csv
        self._next_time = 0.0

    def update(self, now: bool = False) -> None:
        """Redraws if it is time, or at once."""
        started = time.monotonic()
        if not now and started < self._next_time:
            return
        rows = read_rows(self.metrics_csv)
        for name, (label, curves) in _CURVES.items():
            _plot(rows, curves, label, self.metrics_csv.with_name(name))
        finished = time.monotonic()
        self._next_time = finished + (finished - started) / _LARGEST_SHARE


def _plot(rows: list[dict[str, str]], curves: dict[str, str], label: str, path: Path) -> None:
    # Loaded here: a second that a run's start need not wait for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for column, legend in curves.items():
        points = [(int(row["epoch"]), float(row[column])) for row in rows if row[column]]
        if points:
            axes.plot(*zip(*points, strict=True), label=legend, marker="." if len(points) < 30 else None)
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    FigureCanvasAgg(figure).print_png(path)
