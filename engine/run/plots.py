"""`curves.png` in the folder of a run, drawn from `metrics.csv`: loss and accuracy."""

import io
import warnings
from pathlib import Path
from typing import Any

from engine.run.result import best_epoch, points
from utils.atomic_file import atomic_write
from utils.metric_table import METRICS, Metric
from utils.packages import is_installed
from utils.tables import read_rows

CURVES = "curves.png"
_PANELS = {  # the label of the y axis; the legend of each column of metrics.csv
    "loss": {"train_loss": "training", "val_loss": "validation", "raw_val_loss": "validation, raw weights"},
    "accuracy (%)": {"train_top1": "training top-1", "val_top5": "validation top-5"}
    | {f"val_{name}": f"validation {METRICS[name].title}" for name in ("top1", "mean_ap")}
    | {f"raw_val_{name}": f"validation {METRICS[name].title}, raw weights" for name in ("top1", "mean_ap")},
}


def draw_curves(folder: Path, metric: Metric) -> None:
    """Draws curves.png if matplotlib is installed. Raises OSError; an older picture is then unchanged.

    metric: the one that decides, which has a curve and a mark at the best epoch.
    """
    if not is_installed("matplotlib"):
        return
    from matplotlib.figure import Figure  # imported late: it takes about a second

    rows, decides = read_rows(folder / "metrics.csv"), f"val_{metric.name}"
    panels = {label: {**columns} for label, columns in _PANELS.items()}
    panels["loss" if metric.name == "loss" else "accuracy (%)"][decides] = f"validation {metric.title}"
    figure = Figure(figsize=(12, 4), layout="constrained")
    figure.suptitle(folder.name.replace("$", r"\$"))  # matplotlib reads text between dollar signs as a formula
    for axes, (label, columns) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        for column, legend in columns.items():
            if curve := points(rows, "epoch", column):
                axes.plot(*zip(*curve, strict=True), label=legend, marker=".", markersize=4)
        if decides in columns and (best := best_epoch(rows, metric)):
            text = f"best: {metric.text(best[1])}, epoch {best[0]}"
            axes.plot(*best, "*", color="black", markersize=10, label=text)
        if axes.lines:
            axes.legend()
    atomic_write(folder / CURVES, png_bytes(figure))


def png_bytes(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # its font lacks a character of a name
        warnings.filterwarnings("ignore", message="Creating legend")  # on a busy machine: it is slow
        FigureCanvasAgg(figure).print_png(picture)
    return picture.getvalue()
