"""The files that a run writes besides its logs and checkpoints: CSV tables, TensorBoard events, plots."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from engine.telemetry.plots import CurvePlots
from engine.telemetry.step_report import StepReport
from utils.metrics import Metrics
from utils.tables import CsvFile

# New columns go to the end: scripts may read columns by their position.
EPOCH_COLUMNS = [
    "epoch", "step", "lr", "train_loss", "train_top1", "val_loss", "val_top1", "val_top5",
    "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "loss_scale",
    "skipped_steps", "skipped_images", "peak_memory_bytes", "train_seconds", "grad_norm", "images_in_skipped_steps",
    "raw_val_loss", "raw_val_top1", "raw_val_top5",
]  # fmt: skip
STEP_COLUMNS = ["step", "lr", "loss_scale", "skipped_steps", "grad_norm"]
_SCALARS = (
    "lr", "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "loss_scale",
    "skipped_steps", "grad_norm", "peak_memory_bytes",
)  # fmt: skip
_VALIDATED = ("loss", "top1", "top5")


@dataclass(frozen=True)
class RunFiles:
    """Only the main process has them."""

    epochs: CsvFile
    steps: CsvFile
    board: SummaryWriter
    plots: CurvePlots

    def append_step(self, report: StepReport) -> None:
        row = {name: getattr(report, name) for name in STEP_COLUMNS}
        self.steps.append(row | {"grad_norm": cell(report.grad_norm, ".6g")})

    def write_scalars(self, report: StepReport) -> None:
        """TensorBoard's curves of training."""
        for name in _SCALARS:
            if (value := getattr(report, name)) is not None:
                self.board.add_scalar(f"train/{name}", value, report.step)
        if report.latest.samples:
            self.board.add_scalar("train/loss", report.latest.loss, report.step)
            self.board.add_scalar("train/top1", report.latest.top1, report.step)

    def write_hyperparameters(self, values: Mapping[str, str]) -> None:
        """TensorBoard's table of hyperparameters, beside the validation top-1 of the run."""
        for summary in hparams(dict(values), {"val/top1": 0.0}):
            self.board.file_writer.add_summary(summary)

    def write_validation(self, prefix: str, validation: Metrics, step: int) -> None:
        """TensorBoard's curves of validation: val/loss and so on, with the prefix 'raw_' for raw weights."""
        for name in _VALIDATED:
            self.board.add_scalar(f"{prefix}val/{name}", getattr(validation, name), step)

    def sync(self) -> None:
        """Returns when the tables are on the disk."""
        self.epochs.sync()
        self.steps.sync()


def open_run_files(folder: Path, epochs_done: int, steps_done: int) -> RunFiles:
    """Opens the files of a run. Rows after the position of the checkpoint are dropped: a resumed run repeats them."""
    return RunFiles(
        CsvFile(folder / "metrics.csv", EPOCH_COLUMNS, epochs_done),
        CsvFile(folder / "steps.csv", STEP_COLUMNS, steps_done),
        SummaryWriter(folder, purge_step=steps_done),
        CurvePlots(folder),
    )


def validation_cells(prefix: str, validation: Metrics | None) -> dict[str, Any]:
    """The cells val_loss, val_top1 and val_top5 of `metrics.csv`, with the prefix 'raw_' for raw weights."""
    return {f"{prefix}val_{name}": getattr(validation, name) if validation else "" for name in _VALIDATED}


def cell(value: float | None, spec: str = "") -> str:
    """A cell of a table; empty for None."""
    return "" if value is None else format(value, spec)
