"""Follows a training run: log lines, progress bar, tables, loggers, curves.png, result.json."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from engine.precision.loss_scaler import LossScaler
from engine.progress import EpochProgress, Observer, TimeLeft
from engine.run.facts import Model
from engine.run.log import RunLogger, progress_bar
from engine.run.loggers import LoggerGroup
from engine.run.result import PICTURE, Result, draw_curves, write_result
from engine.run.step_report import EPOCH_COLUMNS, STEP_COLUMNS, CsvFile, StepReport, cell, format_speed, metric_figures
from engine.run.step_timer import StepTimer, TimerTotals
from utils.device import peak_memory_bytes
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.metric_table import METRICS, Metric
from utils.metrics import Metrics, to_metrics
from utils.tables import format_duration


@dataclass(frozen=True)
class _IntervalStart:
    """The counters at the start of an interval: time, metric sums over all ranks and of this rank, timer totals."""

    time: float
    sums: torch.Tensor
    own_sums: torch.Tensor
    timer: TimerTotals


@dataclass
class EpochReport:
    """The epoch in progress. seconds: of its steps; 0 until they are done, or if only its evaluation was left."""

    bar: "tqdm[Any]"
    start: _IntervalStart
    last_report: _IntervalStart
    seconds: float = 0.0


@dataclass(eq=False)
class Reporter(Observer):
    """Reports on a training run. Every rank calls all methods; only the main process writes the files of the run.

    Attributes:
        describe: counts the FLOPs, which takes part of a second.
        images_per_epoch: over all ranks, unreadable images included.
        report_freq: steps between two reports. Each report reads the metrics from the device, and waits for it.
        metric: the one that decides which epoch is the best. num_classes: of the model.
    """

    context: ProcessContext
    folder: Path
    logger: RunLogger
    scaler: LossScaler
    describe: Callable[[], Model]
    timer: StepTimer
    loggers: LoggerGroup
    num_epochs: int
    report_freq: int
    images_per_epoch: int
    max_steps: int | None = None
    metric: Metric = METRICS["top1"]
    num_classes: int = 1000
    last: StepReport | None = field(default=None, init=False)
    _epochs: CsvFile | None = field(default=None, init=False)  # of the main process
    _steps: CsvFile | None = field(default=None, init=False)
    _epoch: EpochReport | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._time_left = TimeLeft(self.num_epochs, self.max_steps)

    @cached_property
    def model(self) -> Model:
        """The description of the model."""
        return self.describe()

    def start(self, epochs_done: int, steps_done: int) -> None:
        """Describes the model, and opens the files of the run: new, or resumed after these epochs and steps.

        Rows of later steps are dropped. Call it after the loading workers were started: they start meanwhile.
        """
        self.logger.record(self.model)
        if self.context.is_main:
            self._epochs = CsvFile(self.folder / "metrics.csv", EPOCH_COLUMNS, epochs_done, self.logger.warn)
            self._steps = CsvFile(self.folder / "steps.csv", STEP_COLUMNS, steps_done, self.logger.warn)
            self.loggers.start(self.folder, steps_done)

    def start_epoch(self, progress: EpochProgress) -> None:
        """Starts the clock of an epoch, or of the rest of one in a resumed run."""
        title = f"Epoch {progress.epoch + 1}/{self.num_epochs}"
        images_per_step = round(self.images_per_epoch / progress.steps)
        bar = progress_bar(title, self.context, progress.steps, "img", images_per_step, progress.done_steps)
        self._time_left.start_epoch(progress)
        sums, own_sums = progress.sums.reduced(self.context), progress.sums.totals()
        start = _IntervalStart(time.perf_counter(), sums, own_sums, self.timer.totals())
        self._epoch = EpochReport(bar, start, start)

    def after_step(self, progress: EpochProgress) -> None:
        """Reports after each `report_freq` steps, the first step of the run, and the last step of an epoch.

        Raises UserError on all ranks at the end of an epoch without a readable image.
        """
        epoch = self._epoch
        assert epoch
        epoch.bar.update()
        is_last = progress.done_steps == progress.steps
        is_due = progress.done_steps % self.report_freq == 0 or is_last
        is_first = self.last is None
        if is_first:
            self._time_left.start_clock(progress)
        if is_due or is_first:
            report = self._report(progress, epoch)
            if self._steps and (is_due or progress.step == 1):  # not the first step of a resumed run: no row is there
                self._steps.append(report.row())
            if is_last:
                epoch.seconds = time.perf_counter() - epoch.start.time
                self._time_left.end_steps()
                epoch.bar.close()
                self._report_unreadable_images(report)

    def stop(self, progress: EpochProgress) -> None:
        """Writes the last report of a run that aborts. The aborted step is not counted, but its loss scale is."""
        assert self._epoch
        self.last = replace(self._report(progress, self._epoch), step=progress.step + 1)
        if self._steps:
            self._steps.append(self.last.row())
            self._draw_curves()
        self._epoch.bar.close()

    def end_epoch(
        self,
        progress: EpochProgress,
        validation: Metrics | None,
        train_seconds: float,
        raw: Metrics | None = None,
        is_best: bool = False,
    ) -> None:
        """Logs the epoch, and appends it to `metrics.csv`.

        train_seconds: of the whole run so far, without evaluation. raw: the validation of the raw weights, beside
        their average. is_best: whether `validation` is the best so far.
        """
        epoch, sums = self._epoch, progress.sums.reduced(self.context)
        assert epoch
        images = to_metrics(sums - epoch.start.sums).total_samples
        images_per_second = images / epoch.seconds if epoch.seconds else 0.0
        self._log_epoch(progress, epoch, images_per_second)
        if self._epochs:
            row = self._epoch_row(progress, epoch, to_metrics(sums), images_per_second)
            row["train_seconds"] = round(train_seconds, 3)
            for prefix, metrics in (("", validation), ("raw_", raw)):
                if metrics:
                    row |= metric_figures(f"{prefix}val_", metrics)
                    self.loggers.scalars(metric_figures(f"{prefix}val/", metrics), progress.step)
            if is_best and validation:
                # First in the alphabet: TensorBoard's table of hyperparameters shows the first five scalars.
                best = {f"best/{metric.name}": value for metric, value in validation.logged().items()}
                self.loggers.scalars(best | {"best/epoch": progress.epoch + 1}, progress.step)
            self._epochs.append(row)

    def _log_epoch(self, progress: EpochProgress, epoch: EpochReport, images_per_second: float) -> None:
        """Logs the time of the epoch, evaluation included, the speed of its training, and the time left of the run."""
        epoch_seconds = time.perf_counter() - epoch.start.time
        parts = [f"----- Epoch[{progress.epoch + 1:03d}/{self.num_epochs:03d}]"]
        parts.append(f"epoch time: {format_duration(epoch_seconds)}")
        if images_per_second:
            parts += [format_speed(images_per_second), *self.model.rates(images_per_second)]
        if self.scaler.skipped:
            parts.append(f"skipped steps: {self.scaler.skipped}")
        if seconds_left := self._time_left.seconds(progress):
            parts.append(f"time left: {format_duration(seconds_left)}")
        self.logger.info(", ".join(parts))

    def _epoch_row(
        self, progress: EpochProgress, epoch: EpochReport, trained: Metrics, images_per_second: float
    ) -> dict[str, Any]:
        has_samples = trained.samples > 0  # else all steps were skipped
        times = self.timer.totals().since(epoch.start.timer)
        return {
            "epoch": progress.epoch + 1,
            "step": progress.step,
            "lr": progress.lr,
            "train_loss": trained.loss if has_samples else "",
            "train_top1": trained.values["top1"] if has_samples else "",
            "images_per_second": cell(images_per_second or None, ".2f"),  # None if only the evaluation was left
            "data_wait_share": round(times.data_wait_seconds / max(epoch.seconds, 1e-9), 4),
            "tflops_per_second": cell(self.model.tflops_per_second(images_per_second) or None, ".4g"),
            "model_flops_utilization": cell(self.model.utilization(images_per_second) or None, ".4g"),
            "loss_scale": self.scaler.get_scale(),
            "skipped_steps": self.scaler.skipped,
            "skipped_images": self._unreadable_images(trained),
            "peak_memory_bytes": peak_memory_bytes(self.context.device),
            "grad_norm": cell(trained.grad_norm, ".6g"),
            "images_in_skipped_steps": trained.skipped_samples,
            "launch_bound_share": cell(times.launch_bound_share, ".4g"),
        }

    def sync(self) -> None:
        """Returns when the tables are on the disk. To be called before the checkpoint that continues them."""
        for table in filter(None, (self._epochs, self._steps)):
            table.sync()

    def finish(self, result: Result) -> None:
        """Writes `result.json`, draws curves.png and closes the files."""
        if self._epochs:
            write_result(self.folder, result)
            self._draw_curves()
        self.close(result.entries)

    def _draw_curves(self) -> None:
        """Warns of a full disk: the checkpoint and the result of the run are more important."""
        try:
            draw_curves(self.folder, self.metric, self.num_classes)
        except OSError as error:
            self.logger.warn(f"Warning: {self.folder / PICTURE}: cannot be drawn ({error.strerror or error})")

    def close(self, result: Mapping[str, Any] | None = None) -> None:
        """Ends the loggers; a second call does nothing. result: None if the run failed."""
        if self._epoch:
            self._epoch.bar.close()
        self.loggers.finish(result)

    def _report(self, progress: EpochProgress, epoch: EpochReport) -> StepReport:
        """Logs the state of training, and starts a new interval. Every rank must call it."""
        sums, start = progress.sums.reduced(self.context), epoch.last_report
        latest = to_metrics(sums - start.sums)  # the host waits: all spans of the timer are complete
        seconds, times = time.perf_counter() - start.time, self.timer.totals().since(start.timer)
        images_per_second = latest.total_samples / seconds
        loss_scale = self.scaler.get_scale()
        report = StepReport(
            epoch=progress.epoch + 1,
            num_epochs=self.num_epochs,
            epoch_step=progress.done_steps,
            steps_per_epoch=progress.steps,
            step=progress.step,
            lr=progress.lr,
            latest=latest,
            average=to_metrics(sums),
            images_per_second=images_per_second,
            data_wait_share=times.data_wait_seconds / seconds,
            tflops_per_second=self.model.tflops_per_second(images_per_second),
            model_flops_utilization=self.model.utilization(images_per_second),
            is_scaled=self.scaler.dynamic or loss_scale != 1,
            loss_scale=loss_scale,
            skipped_steps=self.scaler.skipped,
            peak_memory_bytes=peak_memory_bytes(self.context.device),
            seconds_left=self._time_left.seconds(progress),
            launch_bound_share=times.launch_bound_share,
        )
        for line in report.log_lines(self.last):
            self.logger.info(line)
        own_sums = progress.sums.totals()
        own_latest = replace(to_metrics(own_sums - start.own_sums), grad_norm=latest.grad_norm)
        own_report = replace(report, latest=own_latest, average=to_metrics(own_sums))
        for line in own_report.log_lines(self.last):
            self.logger.rank(line)
        if latest.samples:
            epoch.bar.set_postfix_str(f"loss {latest.loss:.4f}", refresh=False)
        self.loggers.scalars(report.scalars(), report.step)
        self.last = report
        epoch.last_report = _IntervalStart(time.perf_counter(), sums, own_sums, self.timer.totals())
        return report

    def _report_unreadable_images(self, report: StepReport) -> None:
        unreadable = self._unreadable_images(report.average)
        if unreadable == self.images_per_epoch:
            raise UserError(
                f"no training image of epoch {report.epoch} can be read; bad_images_*.csv in {self.folder} has the "
                "reasons"
            )
        if unreadable:
            self.logger.warn(
                f"Data: {unreadable} of {self.images_per_epoch} training images could not be read and were "
                "skipped: see bad_images_*.csv"
            )

    def _unreadable_images(self, epoch: Metrics) -> int:
        """The number, at least 0: an epoch that was resumed with another batch size may have a few more images."""
        return max(self.images_per_epoch - epoch.total_samples, 0)
