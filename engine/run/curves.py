"""The curves of a run: one table for the page and for `curves.png`, which is drawn here. Without torch and numpy."""

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.run.result import Rows, best_epoch, points
from utils.files import atomic_write
from utils.metric_table import Metric
from utils.system import is_installed
from utils.tables import read_rows

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


def draw_curves(folder: Path, metric: Metric) -> None:
    """Draws the charts with a validation curve, if matplotlib is installed: `curves.png`.

    metric: the one that decides, whose best epoch is marked. Raises OSError; an older picture is then unchanged.
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
            if curve := chart.points(rows, column):
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
