"""`curves.png` in the folder of a run, drawn from its tables: loss, accuracy, and a loss scale that varies."""

import io
import warnings
from pathlib import Path
from typing import Any

from engine.run.summary import best_epoch, points, score_column
from utils.atomic_file import atomic_write
from utils.packages import is_installed
from utils.tables import read_rows

CURVES = "curves.png"
_PANELS = {  # the label of the y axis; the legend of each column of metrics.csv
    "loss": {"train_loss": "training", "val_loss": "validation", "raw_val_loss": "validation, raw weights"},
    "accuracy (%)": {
        "train_top1": "training top-1",
        "val_top1": "validation top-1",
        "val_top5": "validation top-5",
        "raw_val_top1": "validation top-1, raw weights",
        "val_mean_ap": "validation mAP",
        "raw_val_mean_ap": "validation mAP, raw weights",
    },
}
_MAX_MARKED_POINTS = 30  # of a curve; markers of more points overlap


def draw_curves(folder: Path) -> None:
    """Draws curves.png if matplotlib is installed. Raises OSError; an older picture is then unchanged."""
    if not is_installed("matplotlib"):
        return
    from matplotlib.figure import Figure  # imported late: it takes about a second

    rows, steps = read_rows(folder / "metrics.csv"), read_rows(folder / "steps.csv")
    scales, skipped = (points(steps, "step", column) for column in ("loss_scale", "skipped_steps"))
    has_scale = any(scale != 1 for _, scale in scales) or any(number for _, number in skipped)
    panels = len(_PANELS) + has_scale
    figure = Figure(figsize=(6 * panels, 4), layout="constrained")
    figure.suptitle(folder.name.replace("$", r"\$"))  # matplotlib reads text between dollar signs as a formula
    axes = figure.subplots(1, panels)
    for one, (label, columns) in zip(axes, _PANELS.items(), strict=False):
        _draw_epochs(_prepared(one, "epoch", label), rows, columns)
    if has_scale:
        _draw_loss_scale(_prepared(axes[-1], "step", "loss scale"), scales, skipped)
    atomic_write(folder / CURVES, png_bytes(figure))


def _prepared(axes: Any, x_label: str, y_label: str) -> Any:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    return axes


def _draw_epochs(axes: Any, rows: list[dict[str, str]], columns: dict[str, str]) -> None:
    for column, legend in columns.items():
        if curve := points(rows, "epoch", column):
            marker = "." if len(curve) < _MAX_MARKED_POINTS else None
            axes.plot(*zip(*curve, strict=True), label=legend, marker=marker)
    if score_column(rows) in columns and (best := best_epoch(rows)):
        epoch, score = best
        axes.plot(epoch, score, "*", color="black", markersize=10, label=f"best: {score:.2f}%, epoch {epoch}")
    if axes.lines:
        axes.legend()


def _draw_loss_scale(axes: Any, scales: list[tuple[float, float]], skipped: list[tuple[float, float]]) -> None:
    axes.set_yscale("log", base=2)
    axes.step(*zip(*scales, strict=True), where="post", color="tab:blue")
    skipped_axes = axes.twinx()
    skipped_axes.step(*zip(*skipped, strict=True), where="post", color="tab:red")
    skipped_axes.set_ylabel("skipped steps, total", color="tab:red")
    skipped_axes.yaxis.get_major_locator().set_params(integer=True)


def png_bytes(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # its font lacks a character of a name
        warnings.filterwarnings("ignore", message="Creating legend")  # on a busy machine: it is slow
        FigureCanvasAgg(figure).print_png(picture)
    return picture.getvalue()
