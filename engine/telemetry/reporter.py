"""What a run tells while it goes: log lines, progress bar, metrics.csv, steps.csv, TensorBoard, plots, result."""

import json
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from configs.schema import Config
from engine.precision.loss_scaler import LossScaler
from engine.progress import EpochProgress
from engine.telemetry.flops import MFUMeter
from engine.telemetry.plots import CurvePlots
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.logger import RunLogger, progress_bar
from utils.metrics import Metrics, to_metrics
from utils.tables import CsvFile

_COLUMNS = [
    "epoch", "step", "lr", "train_loss", "train_top1", "val_loss", "val_top1", "val_top5",
    "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "loss_scale",
    "skipped_steps", "skipped_images", "peak_memory_bytes", "train_seconds",
]  # fmt: skip
_SCALARS = (
    "lr", "images_per_second", "data_wait_share", "tflops_per_second", "model_flops_utilization", "loss_scale",
    "skipped_steps",
)  # fmt: skip
_STEP_COLUMNS = ["step", "lr", "loss_scale", "skipped_steps"]


@dataclass(frozen=True)
class StepReport:
    """The state of training at a step. Throughput is over all devices, since the report before."""

    step: int
    lr: float
    latest: Metrics
    average: Metrics
    images_per_second: float
    data_wait_share: float
    tflops_per_second: float | None
    model_flops_utilization: float | None
    loss_scale: float
    skipped_steps: int
    peak_memory_bytes: int


class Reporter:
    """Follows a training run on every rank; only the main process writes for the run."""

    def __init__(
        self,
        config: Config,
        context: ProcessContext,
        folder: Path,
        logger: RunLogger,
        scaler: LossScaler,
        gauge: MFUMeter,
    ) -> None:
        self.config, self.context, self.folder, self.logger, self.scaler = config, context, folder, logger, scaler
        self.gauge = gauge
        self.last: StepReport | None = None
        self._first_step = True
        self._bar: tqdm | None = None

    def start(self, epochs_done: int, steps_done: int) -> None:
        """Opens the files; what they hold of later epochs is dropped (a resumed run goes through those again)."""
        if self.context.is_main:
            self._metrics = CsvFile(self.folder / "metrics.csv", _COLUMNS, epochs_done)
            self._steps = CsvFile(self.folder / "steps.csv", _STEP_COLUMNS, steps_done)
            self._board = SummaryWriter(self.folder, purge_step=steps_done)
            self._plots = CurvePlots(self.folder)

    def start_epoch(self, progress: EpochProgress) -> None:
        title = f"Epoch {progress.epoch + 1}/{self.config.train.num_epochs}"
        self._bar = progress_bar(title, self.context, progress.steps, progress.done_steps)
        sums = progress.sums.reduced(self.context)
        self._epoch_started, self._samples_before = time.perf_counter(), to_metrics(sums).samples
        self._epoch_seconds = 0.0  # of training; none are left where only the evaluation was to be done again
        self._open_interval(progress, sums)

    def _open_interval(self, progress: EpochProgress, sums: torch.Tensor) -> None:
        self._since = time.perf_counter()
        self._sums_then = sums
        self._wait_then = progress.data_wait_seconds

    def after_step(self, progress: EpochProgress) -> None:
        self._bar.update()
        done = progress.done_steps
        is_due = done % self.config.report_freq == 0 or done == progress.steps
        if is_due or self._first_step:
            self._first_step = False
            self._report(progress)
        if is_due:
            self._append_step()
        if done == progress.steps:
            self._epoch_seconds = time.perf_counter() - self._epoch_started
            self._bar.close()
            self._tell_skipped_images(progress)

    def _tell_skipped_images(self, progress: EpochProgress) -> None:
        """At an epoch's end; raises a UserError, on all ranks alike, where there was no other image."""
        images = self._images(progress)
        skipped = self._skipped_images(progress, self.last.average)
        if skipped == images:
            raise UserError(
                f"no training image of epoch {progress.epoch + 1} can be read; "
                f"bad_images_*.csv in {self.folder} says why"
            )
        if skipped:
            self.logger.info(
                f"----- Data: {skipped} of {images} training images could not be read and were skipped: "
                f"see bad_images_*.csv in {self.folder}"
            )

    def _skipped_images(self, progress: EpochProgress, trained: Metrics) -> int:
        """None less: resumed with another batch size, the epoch may have had a few more."""
        return max(self._images(progress) - trained.samples, 0)

    def _images(self, progress: EpochProgress) -> int:
        """Of an epoch, over all ranks, if all could be read."""
        return progress.batches * self.config.data.batch_size * self.context.world_size

    def _append_step(self) -> None:
        if self.context.is_main:
            self._steps.append({name: getattr(self.last, name) for name in _STEP_COLUMNS})

    def stop(self, progress: EpochProgress) -> None:
        """For a run that ends at a step it does not count as done: where the loss scale went with it."""
        self._report(progress)
        self.last = replace(self.last, step=progress.step + 1)
        self._append_step()
        self.close()
        if self.context.is_main:
            self._plots.update(now=True)

    def _report(self, progress: EpochProgress) -> None:
        sums = progress.sums.reduced(self.context)
        latest = to_metrics(sums - self._sums_then)
        seconds = time.perf_counter() - self._since
        images_per_second = latest.samples / seconds
        self.last = StepReport(
            step=progress.step,
            lr=progress.lr,
            latest=latest,
            average=to_metrics(sums),
            images_per_second=images_per_second,
            data_wait_share=(progress.data_wait_seconds - self._wait_then) / seconds,
            tflops_per_second=self.gauge.tflops_per_second(images_per_second),
            model_flops_utilization=self.gauge.utilization(images_per_second),
            loss_scale=self.scaler.get_scale(),
            skipped_steps=self.scaler.skipped,
            peak_memory_bytes=peak_memory_bytes(self.context.device),
        )
        self.logger.info(self._line(progress, latest, self.last.average))
        own = to_metrics(progress.sums.sums)
        self.logger.rank(self._line(progress, own, own))
        self._bar.set_postfix_str(f"loss {latest.loss:.4f}, {self.last.images_per_second:.0f} images/s")
        if self.context.is_main:
            self._write_scalars(self.last)
        self._open_interval(progress, sums)

    def _line(self, progress: EpochProgress, latest: Metrics, average: Metrics) -> str:
        now = self.last
        rate = self.gauge.describe(now.images_per_second)
        return (
            f"Epoch[{progress.epoch + 1:03d}/{self.config.train.num_epochs:03d}], "
            f"Step[{progress.done_steps - 1:04d}/{progress.steps:04d}], Lr: {now.lr:.6f}, "
            f"Loss: {latest.loss:.4f} ({average.loss:.4f}), Avg Acc: {average.top1:.2f}%, "
            f"images/s: {now.images_per_second:.1f}, data wait: {now.data_wait_share:.0%}, "
            f"{rate}{', ' if rate else ''}loss scale: {now.loss_scale:g}, skipped: {now.skipped_steps}, "
            f"memory: {now.peak_memory_bytes / 1e9:.2f} GB"
        )

    def _write_scalars(self, report: StepReport) -> None:
        for name in _SCALARS:
            if (value := getattr(report, name)) is not None:
                self._board.add_scalar(f"train/{name}", value, report.step)
        self._board.add_scalar("train/loss", report.latest.loss, report.step)

    def end_epoch(self, progress: EpochProgress, validation: Metrics | None, train_seconds: float) -> None:
        """Every rank must call it. train_seconds: of the whole run so far, without evaluation."""
        trained = to_metrics(progress.sums.reduced(self.context))
        if not self.context.is_main:
            return
        seconds = max(self._epoch_seconds, 1e-9)
        images_per_second = (trained.samples - self._samples_before) / seconds
        tflops, utilization = self.gauge.tflops_per_second(images_per_second), self.gauge.utilization(images_per_second)
        self._metrics.append(
            {
                "epoch": progress.epoch + 1,
                "step": progress.step,
                "lr": progress.lr,
                "train_loss": trained.loss,
                "train_top1": trained.top1,
                "val_loss": validation.loss if validation else "",
                "val_top1": validation.top1 if validation else "",
                "val_top5": validation.top5 if validation else "",
                "images_per_second": round(images_per_second, 2),
                "data_wait_share": round(progress.data_wait_seconds / seconds, 4),
                "tflops_per_second": "" if tflops is None else f"{tflops:.4g}",
                "model_flops_utilization": "" if utilization is None else f"{utilization:.4g}",
                "loss_scale": self.scaler.get_scale(),
                "skipped_steps": self.scaler.skipped,
                "skipped_images": self._skipped_images(progress, trained),
                "peak_memory_bytes": peak_memory_bytes(self.context.device),
                "train_seconds": round(train_seconds, 3),
            }
        )
        if validation:
            for name in ("loss", "top1", "top5"):
                self._board.add_scalar(f"val/{name}", getattr(validation, name), progress.step)

    def sync(self) -> None:
        """Brings the tables to the disk, before the checkpoint that continues them."""
        if self.context.is_main:
            self._metrics.sync()
            self._steps.sync()

    def draw(self) -> None:
        """The plots, after the checkpoint: they can wait."""
        if self.context.is_main:
            self._plots.update()

    def finish(self, result: dict) -> None:
        self.close()
        if self.context.is_main:
            self._plots.update(now=True)
            write_result(self.folder, result)

    def close(self) -> None:
        if self._bar:
            self._bar.close()
        if self.context.is_main:
            self._board.close()


def write_result(folder: Path, result: dict) -> None:
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")


def validation_line(title: str, metrics: Metrics, num_samples: int, seconds: float) -> str:
    skipped = num_samples - metrics.samples
    return (
        f"----- {title}Validation Loss: {metrics.loss:.4f}, Validation Acc@1: {metrics.top1:.2f}%, "
        f"Validation Acc@5: {metrics.top5:.2f}%, time: {seconds:.2f}"
        + (f", {skipped} of {num_samples} images skipped: see bad_images_*.csv" if skipped else "")
    )


def peak_memory_bytes(device: torch.device) -> int:
    """Of the device where it has memory of its own, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
