"""The curves of a run, and of several runs in one chart."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.report.charts import Chart, Series
from engine.report.contents import RunContents
from engine.run.result import Rows, points
from utils.metric_table import METRICS


@dataclass(frozen=True)
class _Spec:
    """A chart: its title, and a curve for each column of `metrics.csv`, or of `steps.csv` if `by_step`.

    factor: from the column's unit to `unit`. compared: the column that a chart of several runs shows. unused: a curve
    with this value only is left out. multi_label: the chart is for these runs only; None: for all runs.
    """

    title: str
    columns: dict[str, str]
    compared: str
    unit: str = ""
    by_step: bool = False
    factor: float = 1.0
    log_base: int | None = None
    unused: float | None = None
    multi_label: bool | None = None


_SPECS = (
    _Spec("Loss", {"train_loss": "training", "val_loss": "validation", "raw_val_loss": "validation, raw weights"},
          "val_loss", log_base=10),
    _Spec("Top-1", {"train_top1": "training", "val_top1": "validation", "val_top5": "validation top-5",
                    "raw_val_top1": "validation, raw weights"}, "val_top1", unit="%", multi_label=False),
    _Spec("Training hit@1", {"train_top1": "training hit@1"}, "train_top1", unit="%", multi_label=True),
    _Spec("Mean AP", {"val_mean_ap": "validation", "raw_val_mean_ap": "validation, raw weights"}, "val_mean_ap",
          unit="%"),
    _Spec("Means over classes", {"val_macro_f1": "macro F1", "val_balanced_accuracy": "balanced accuracy",
                                 "val_min_recall": "minimum recall"}, "val_macro_f1", unit="%"),
    _Spec("Learning rate", {"lr": "learning rate"}, "lr", by_step=True),
    _Spec("Gradient norm", {"grad_norm": "gradient norm"}, "grad_norm", by_step=True, log_base=10),
    _Spec("Loss scale", {"loss_scale": "loss scale"}, "loss_scale", by_step=True, log_base=2, unused=1),
    _Spec("Skipped steps", {"skipped_steps": "skipped steps, total"}, "skipped_steps", by_step=True, unused=0),
    _Spec("Throughput", {"images_per_second": "images per second"}, "images_per_second", unit="images/s"),
    _Spec("Data wait", {"data_wait_share": "share of the time"}, "data_wait_share", unit="% of the time", factor=100),
    _Spec("Peak memory", {"peak_memory_bytes": "peak memory"}, "peak_memory_bytes", unit="GB", factor=1e-9),
)  # fmt: skip


def curves_of_run(run: RunContents) -> list[Chart]:
    charts = []
    for spec in _SPECS:
        rows = _rows(run, spec)
        series = [
            Series(name, _points(rows, column, spec), index)
            for index, (column, name) in enumerate(spec.columns.items())
            if column != "val_top5" or run.shows(METRICS["top5"])
        ]
        charts += _chart(spec, spec.title, series, run.best if f"val_{run.metric.name}" in spec.columns else None)
    return charts


def curves_of_runs(runs: Sequence[RunContents]) -> list[Chart]:
    """A curve of each run in each chart, in the colour of its position."""
    charts = []
    for spec in _SPECS:
        series = [
            Series(run.name, _points(_rows(run, spec), spec.compared, spec), index) for index, run in enumerate(runs)
        ]
        title = f"Validation {spec.title[0].lower()}{spec.title[1:]}"
        charts += _chart(spec, title if spec.compared.startswith("val_") else spec.title, series)
    return charts


def _rows(run: RunContents, spec: _Spec) -> Rows:
    if spec.multi_label not in (None, run.is_multi_label):
        return []
    return run.steps if spec.by_step else run.epochs


def _points(rows: Rows, column: str, spec: _Spec) -> list[tuple[float, float]]:
    """(epoch or step, value)."""
    return [(x, y * spec.factor) for x, y in points(rows, "step" if spec.by_step else "epoch", column)]


def _chart(spec: _Spec, title: str, series: list[Series], best: tuple[int, float] | None = None) -> list[Chart]:
    """The chart of the curves that have values; empty if there are none."""
    series = [one for one in series if {y for _, y in one.points} - {spec.unused}]
    x_label = "step" if spec.by_step else "epoch"
    return [Chart(title, x_label, series, spec.unit, spec.log_base, best)] if series else []
