"""The tables and plots that a run writes besides its logs and checkpoints, and the values that its loggers get."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.run.plots import CurvePlots
from engine.run.step_report import StepReport
from utils.metrics import Metrics
from utils.tables import CsvFile

# New columns go to the end: scripts may read columns by their position.
EPOCH_COLUMNS = [
    "epoch", "step", "lr", "train_loss", "train_top1", "val_loss", "val_top1", "val_top5",
    "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "loss_scale",
    "skipped_steps", "skipped_images", "peak_memory_bytes", "train_seconds", "grad_norm", "images_in_skipped_steps",
    "raw_val_loss", "raw_val_top1", "raw_val_top5", "val_mean_ap", "raw_val_mean_ap",
    "launch_bound_share",
]  # fmt: skip
STEP_COLUMNS = ["step", "lr", "loss_scale", "skipped_steps", "grad_norm"]
_SCALARS = (
    "lr", "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "loss_scale",
    "skipped_steps", "grad_norm", "peak_memory_bytes", "launch_bound_share",
)  # fmt: skip
_VALIDATED = ("loss", "top1", "top5", "mean_ap")


@dataclass(frozen=True)
class RunFiles:
    """Only the main process has them."""

    epochs: CsvFile
    steps: CsvFile
    plots: CurvePlots

    def append_step(self, report: StepReport) -> None:
        row = {name: getattr(report, name) for name in STEP_COLUMNS}
        self.steps.append(row | {"grad_norm": cell(report.grad_norm, ".6g")})

    def sync(self) -> None:
        """Returns when the tables are on the disk."""
        self.epochs.sync()
        self.steps.sync()


def open_run_files(folder: Path, epochs_done: int, steps_done: int) -> RunFiles:
    """Opens the files of a run. Rows after the position of the checkpoint are dropped: a resumed run repeats them."""
    return RunFiles(
        CsvFile(folder / "metrics.csv", EPOCH_COLUMNS, epochs_done),
        CsvFile(folder / "steps.csv", STEP_COLUMNS, steps_done),
        CurvePlots(folder),
    )


def training_scalars(report: StepReport) -> dict[str, float]:
    """The curves of training: train/loss and so on."""
    values = {f"train/{name}": value for name in _SCALARS if (value := getattr(report, name)) is not None}
    if report.latest.samples:
        values |= {"train/loss": report.latest.loss, "train/top1": report.latest.top1}
    return values


def validation_scalars(prefix: str, validation: Metrics) -> dict[str, float]:
    """The curves of validation: val/loss and so on, with the prefix 'raw_' for raw weights."""
    return {f"{prefix}val/{name}": value for name, value in _figures(validation).items()}


def best_scalars(validation: Metrics, epoch: int) -> dict[str, float]:
    """The evaluation of the best epoch so far.

    In the alphabet they come first: TensorBoard's table of hyperparameters shows the first five scalars.
    """
    return {"best/epoch": epoch} | {f"best/{name}": value for name, value in _figures(validation).items()}


def validation_cells(prefix: str, validation: Metrics | None) -> dict[str, Any]:
    """The cells val_loss, val_top1, ... of `metrics.csv`, with the prefix 'raw_' for raw weights."""
    values = _figures(validation) if validation else {}
    return {f"{prefix}val_{name}": values.get(name, "") for name in _VALIDATED}


def _figures(validation: Metrics) -> dict[str, float]:
    return {"loss": validation.loss, **validation.scores()}


def cell(value: float | None, spec: str = "") -> str:
    """A cell of a table; empty for None."""
    return "" if value is None else format(value, spec)
