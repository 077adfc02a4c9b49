"""The curves of a run, and of several runs in one chart."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.report.charts import Chart, Series
from engine.report.contents import RunContents
from engine.report.formats import number
from engine.report.scales import Point
from engine.run.summary import Rows, points


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
    steps: bool = False
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
    _Spec("Learning rate", {"lr": "learning rate"}, "lr", by_step=True),
    _Spec("Gradient norm", {"grad_norm": "gradient norm"}, "grad_norm", by_step=True, log_base=10),
    _Spec("Loss scale", {"loss_scale": "loss scale"}, "loss_scale", by_step=True, log_base=2, steps=True, unused=1),
    _Spec("Skipped steps", {"skipped_steps": "skipped steps, total"}, "skipped_steps", by_step=True, steps=True,
          unused=0),
    _Spec("Throughput", {"images_per_second": "images per second"}, "images_per_second", unit="images/s"),
    _Spec("Data wait", {"data_wait_share": "share of the time"}, "data_wait_share", unit="% of the time", factor=100),
    _Spec("Peak memory", {"peak_memory_bytes": "peak memory"}, "peak_memory_bytes", unit="GB", factor=1e-9),
)  # fmt: skip
_OPTIONAL = ("Mean AP", "Top-1", "Training hit@1", "Skipped steps")  # no line if they are missing


@dataclass(frozen=True)
class Curves:
    """constants: (title, value) of the curves that are a number. missing: titles of those without a value."""

    charts: list[Chart] = field(default_factory=list)
    constants: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def curves_of_run(run: RunContents) -> Curves:
    curves = Curves()
    for spec in _SPECS:
        rows = _rows(run, spec)
        series = [
            Series(name, points_of(rows, column, spec), index)
            for index, (column, name) in enumerate(spec.columns.items())
            if column != "val_top5" or run.shows_top5
        ]
        _add_chart(curves, spec, series, run.summary.best if spec.compared == run.summary.score_column else None)
    return curves


def curves_of_runs(runs: Sequence[RunContents]) -> Curves:
    """A curve of each run in each chart, in the colour of its position."""
    curves = Curves()
    for spec in _SPECS:
        series = [
            Series(run.summary.name, points_of(_rows(run, spec), spec.compared, spec), index)
            for index, run in enumerate(runs)
        ]
        is_validation = spec.compared.startswith("val_")
        title = f"Validation {spec.title[0].lower()}{spec.title[1:]}" if is_validation else spec.title
        _add_chart(curves, spec, series, None, title)
    return curves


def _rows(run: RunContents, spec: _Spec) -> Rows:
    if spec.multi_label not in (None, run.summary.is_multi_label):
        return []
    return run.steps if spec.by_step else run.summary.epochs


def points_of(rows: Rows, column: str, spec: _Spec) -> list[Point]:
    """(epoch or step, value)."""
    return [(x, y * spec.factor) for x, y in points(rows, "step" if spec.by_step else "epoch", column)]


def _add_chart(curves: Curves, spec: _Spec, series: list[Series], best: Point | None, title: str | None = None) -> None:
    """Adds the chart, or the number if no curve changes, or the title if there is no value."""
    title = title or spec.title
    has_values = any(one.points for one in series)
    series = [one for one in series if {y for _, y in one.points} - {spec.unused}]
    values = {y for one in series for _, y in one.points}
    if not values:
        if not has_values and spec.title not in _OPTIONAL:
            curves.missing.append(title)
    elif len(values) == 1 or max(len(one.points) for one in series) == 1:
        unit = spec.unit if spec.unit.startswith("%") else f" {spec.unit}"
        shown = ", ".join(
            (f"{one.name}: " if len(series) > 1 else "") + number(one.points[-1][1])
            for one in (series if len(values) > 1 else series[:1])
        )
        curves.constants.append((title, f"{shown}{unit}".strip()))
    else:
        x_label = "step" if spec.by_step else "epoch"
        curves.charts.append(Chart(title, x_label, series, spec.unit, spec.log_base, spec.steps, best))
