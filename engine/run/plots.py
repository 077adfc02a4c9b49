"""`curves.png` in the folder of a run, drawn from `metrics.csv`: loss and accuracy."""

import io
import warnings
from pathlib import Path
from typing import Any

from engine.run.result import best_epoch, points, score_column
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


def draw_curves(folder: Path) -> None:
    """Draws curves.png if matplotlib is installed. Raises OSError; an older picture is then unchanged."""
    if not is_installed("matplotlib"):
        return
    from matplotlib.figure import Figure  # imported late: it takes about a second

    rows = read_rows(folder / "metrics.csv")
    figure = Figure(figsize=(12, 4), layout="constrained")
    figure.suptitle(folder.name.replace("$", r"\$"))  # matplotlib reads text between dollar signs as a formula
    for axes, (label, columns) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        for column, legend in columns.items():
            if curve := points(rows, "epoch", column):
                axes.plot(*zip(*curve, strict=True), label=legend, marker=".", markersize=4)
        if score_column(rows) in columns and (best := best_epoch(rows)):
            epoch, score = best
            axes.plot(epoch, score, "*", color="black", markersize=10, label=f"best: {score:.2f}%, epoch {epoch}")
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
