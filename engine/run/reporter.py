"""Follows a training run: a report, an evaluation, an epoch is a row of the record, a log line, values of loggers."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from tqdm import tqdm

from engine.precision.policy import LossScaler
from engine.progress import EpochProgress, Observer
from engine.run.cost import StepTimer, TimerTotals
from engine.run.facts import Model
from engine.run.log import RunLogger, progress_bar
from engine.run.loggers import LoggerGroup
from engine.run.record import DETAILS
from utils.device import peak_memory_bytes
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.files import make_own_folder
from utils.metric_table import METRICS
from utils.metrics import Metrics, to_metrics
from utils.tables import format_duration, three_digits, wrap_parts

_MIN_DATA_WAIT_SHARE = 0.05
_MIN_LAUNCH_BOUND_SHARE = 0.5
_GRAD_NORM_SPIKE = 2.0  # times the mean of the epoch


@dataclass(frozen=True)
class StepReport:
    """The state of training after a step.

    epoch counts from 1, step from the start of the run, epoch_step from the start of the epoch. latest: the metrics
    since the previous report; average: since the start of the epoch. figures: of the time since the previous report and
    all devices, by their names in the rows and in the loggers; unknown ones are missing. is_scaled: whether the loss
    scale can be anything but 1. seconds_left: to the end of the run; None if it is unknown.
    """

    epoch: int
    num_epochs: int
    epoch_step: int
    steps_per_epoch: int
    step: int
    latest: Metrics
    average: Metrics
    figures: dict[str, float]
    is_scaled: bool
    seconds_left: float | None = None

    def log_lines(self, previous: "StepReport | None" = None) -> list[str]:
        """PaddleViT's line, continued with images/s, memory and the time left; '-' means that all steps were skipped.

        Other values appear if they are unusual, the loss scale if it differs from the `previous` report's. Values that
        do not fit into 120 columns form a second line.
        """
        average, figures = self.average, self.figures
        lr = f"Lr: {figures['lr']:.6f}, " if "lr" in figures else ""
        latest_loss, loss = (f"{one.loss:.4f}" if one.samples else "-" for one in (self.latest, average))
        accuracy = METRICS["top1"].text(average.values["top1"]) if average.samples else "-"
        parts = [
            f"Epoch[{self.epoch:03d}/{self.num_epochs:03d}], "
            f"Step[{self.epoch_step - 1:04d}/{self.steps_per_epoch:04d}], {lr}"
            f"Loss: {latest_loss} ({loss}), Avg Acc: {accuracy}",
            format_speed(figures["images_per_second"]),
            f"{three_digits(figures['peak_memory_bytes'] / 1e9)}G",
        ]
        if figures["data_wait_share"] >= _MIN_DATA_WAIT_SHARE:
            parts.append(f"wait {figures['data_wait_share']:.0%}")
        if figures.get("launch_bound_share", 0) > _MIN_LAUNCH_BOUND_SHARE:
            parts.append(f"launch-bound {figures['launch_bound_share']:.0%}")
        if self.seconds_left:
            parts.append(f"left {format_duration(self.seconds_left)}")
        norm, mean_norm = self.latest.grad_norm, average.grad_norm
        if norm is not None and mean_norm is not None and norm > _GRAD_NORM_SPIKE * mean_norm:
            parts.append(f"grad norm {three_digits(norm)} (mean {three_digits(mean_norm)})")
        if self.is_scaled and not (previous and previous.figures["loss_scale"] == figures["loss_scale"]):
            parts.append(f"loss scale {figures['loss_scale']:g}")
        if self.latest.skipped_samples:
            parts.append(f"skipped steps {figures['skipped_steps']}")
        return wrap_parts(parts)


def format_speed(images_per_second: float) -> str:
    """'64.5 img/s' or '2850 img/s'."""
    return f"{images_per_second:.{0 if images_per_second >= 999.95 else 1}f} img/s"


def log_validation(
    logger: RunLogger,
    title: str,
    metrics: Metrics,
    num_classes: int,
    num_samples: int,
    seconds: float,
    split: str = "Validation",
    precision: str = "",
) -> None:
    """Logs PaddleViT's line, continued with the `precision`, and a warning if images were unreadable."""
    shown = [(metric, value) for metric, value in metrics.logged().items() if num_classes >= metric.min_classes]
    figures = ", ".join(f"{split} {metric.log_name or metric.title}: {metric.text(value)}" for metric, value in shown)
    logger.info(f"----- {title}{figures}, time: {seconds:.2f} s{precision and f', {precision}'}")
    if unreadable := num_samples - metrics.samples:
        logger.warn(f"Data: {unreadable} of {num_samples} images skipped: see bad_images_*.csv")


@dataclass(frozen=True)
class _IntervalStart:
    """The counters at the start of an interval: time, metric sums over all ranks and of this rank, timer totals."""

    time: float
    sums: torch.Tensor
    own_sums: torch.Tensor
    timer: TimerTotals


@dataclass(eq=False)
class Reporter(Observer):
    """Reports on a training run. Every rank calls all methods; only the main process writes the record.

    describe: counts the FLOPs, which takes part of a second: after the first step, whose speed is not representative.
    images_per_epoch: over all ranks, unreadable images included.
    report_freq: steps between two reports. Each report reads the metrics from the device, and waits for it.
    """

    context: ProcessContext
    logger: RunLogger
    scaler: LossScaler
    describe: Callable[[], Model]
    timer: StepTimer
    loggers: LoggerGroup
    num_epochs: int
    report_freq: int
    images_per_epoch: int
    max_steps: int | None = None
    last: StepReport | None = field(default=None, init=False)
    _bar: "tqdm[Any] | None" = field(default=None, init=False)  # of the epoch in progress
    _seconds: float = field(default=0.0, init=False)  # of its steps; 0 until they are done, or if none was left

    def __post_init__(self) -> None:
        self._record = self.logger.record
        self._first: tuple[float, int] | None = None  # the time of the first step of this start, and its number

    @cached_property
    def model(self) -> Model:
        """The description of the model."""
        return self.describe()

    def start(self, epochs_done: int, steps_done: int) -> None:
        """Continues the rows after this position of the run."""
        if self.context.is_main:
            make_own_folder(self._record.folder / DETAILS)
            self._record.open_rows(epochs_done, steps_done, self.logger.warn)
            self.loggers.start(self._record, steps_done)

    def start_epoch(self, progress: EpochProgress) -> None:
        """Starts the clock of an epoch, or of the rest of one in a resumed run."""
        title = f"Epoch {progress.epoch + 1}/{self.num_epochs}"
        images_per_step = round(self.images_per_epoch / progress.steps)
        self._bar = progress_bar(title, self.context, progress.steps, "img", images_per_step, progress.done_steps)
        self._seconds = 0.0
        self._epoch_start = self._last_report = self._interval_start(progress, progress.sums.reduced(self.context))

    def _interval_start(self, progress: EpochProgress, sums: torch.Tensor) -> _IntervalStart:
        return _IntervalStart(time.perf_counter(), sums, progress.sums.totals(), self.timer.totals())

    def after_step(self, progress: EpochProgress) -> None:
        """Reports after each `report_freq` steps, the first step of the run, and the last step of an epoch.

        Raises UserError on all ranks at the end of an epoch without a readable image.
        """
        assert self._bar is not None
        self._bar.update()
        is_last = progress.done_steps == progress.steps
        is_due = progress.done_steps % self.report_freq == 0 or is_last
        is_first = self.last is None
        if is_first:
            self._first = time.perf_counter(), progress.step
        if is_due or is_first:
            report = self._report(progress)
            if is_due or progress.step == 1:  # not the first step of a resumed run: no row is there
                self._add_row(report)
            if is_first:
                self.logger.fact(self.model)
            if is_last:
                self._seconds = time.perf_counter() - self._epoch_start.time
                self._bar.close()
                unreadable = self._unreadable_images(report.average)
                if unreadable == self.images_per_epoch:
                    problem = f"no training image of epoch {report.epoch} can be read"
                    raise UserError(f"{problem}; bad_images_*.csv in {self._record.folder} has the reasons")
                if unreadable:
                    self.logger.warn(
                        f"Data: {unreadable} of {self.images_per_epoch} training images could not be read and were "
                        "skipped: see bad_images_*.csv"
                    )

    def stop(self, progress: EpochProgress) -> None:
        """Writes the last report of a run that aborts. The aborted step is not counted, but its loss scale is."""
        assert self._bar is not None
        self.last = replace(self._report(progress), step=progress.step + 1)
        self._add_row(self.last)
        self._bar.close()

    def _add_row(self, report: StepReport) -> None:
        if self.context.is_main:
            position = {name: getattr(report, name) for name in ("epoch", "step", "epoch_step", "seconds_left")}
            self._record.add_row("report", **{"lr": None} | position | report.figures)

    def end_epoch(
        self,
        progress: EpochProgress,
        validation: Metrics | None,
        train_seconds: float,
        raw: Metrics | None = None,
        is_best: bool = False,
    ) -> None:
        """Logs the time of the epoch, evaluation included, and the speed of its training; adds its rows.

        train_seconds: of the whole run so far, without evaluation. raw: the validation of the raw weights, beside
        their average. is_best: whether `validation` is the best so far.
        """
        sums = progress.sums.reduced(self.context)
        images = to_metrics(sums - self._epoch_start.sums).total_samples
        speed = images / self._seconds if self._seconds else None
        epoch_seconds = time.perf_counter() - self._epoch_start.time
        parts = [f"----- Epoch[{progress.epoch + 1:03d}/{self.num_epochs:03d}]"]
        parts.append(f"epoch time: {format_duration(epoch_seconds)}")
        if speed:
            parts += [format_speed(speed), *self.model.rates(speed)]
        if self.scaler.skipped:
            parts.append(f"skipped steps: {self.scaler.skipped}")
        if seconds_left := self._seconds_left(progress):
            parts.append(f"time left: {format_duration(seconds_left)}")
        self.logger.info(", ".join(parts))
        if not self.context.is_main:
            return
        epochs_done = progress.epoch + 1
        if validation:
            self.add_evaluation(progress, epochs_done, validation, raw, is_best)
        trained, times = to_metrics(sums), self.timer.totals().since(self._epoch_start.timer)
        has_samples = trained.samples > 0  # else all steps were skipped
        self._record.add_row(
            "epoch",
            epoch=epochs_done,
            step=progress.step,
            lr=progress.lr,
            train_loss=trained.loss if has_samples else None,
            train_top1=trained.values["top1"] if has_samples else None,
            images_per_second=speed and round(speed, 2),
            data_wait_share=round(times.data_wait_seconds / max(self._seconds, 1e-9), 4),
            tflops_per_second=speed and _rounded(self.model.tflops_per_second(speed)),
            model_flops_utilization=speed and _rounded(self.model.utilization(speed)),
            loss_scale=self.scaler.get_scale(),
            skipped_steps=self.scaler.skipped,
            skipped_images=self._unreadable_images(trained),
            peak_memory_bytes=peak_memory_bytes(self.context.device),
            train_seconds=round(train_seconds, 3),
            grad_norm=_rounded(trained.grad_norm, 6),
            images_in_skipped_steps=trained.skipped_samples,
            launch_bound_share=_rounded(times.launch_bound_share),
        )

    def add_evaluation(
        self,
        progress: EpochProgress,
        epochs_done: int,
        validation: Metrics,
        raw: Metrics | None = None,
        is_best: bool = False,
    ) -> None:
        """Adds the row of an evaluation after so many epochs. raw, is_best: as of `end_epoch`."""
        if not self.context.is_main:
            return
        figures: dict[str, float | None] = {}
        for prefix, values in (("val", validation.known), ("raw_val", raw.known if raw else {})):
            figures |= {f"{prefix}_{name}": value for name, value in values.items()}
            known = {f"{prefix}/{name}": value for name, value in values.items() if value is not None}
            if values:
                self.loggers.scalars(known, progress.step)
        if is_best:
            # First in the alphabet: TensorBoard's table of hyperparameters shows the first five scalars.
            best = {f"best/{metric.name}": value for metric, value in validation.logged().items()}
            self.loggers.scalars(best | {"best/epoch": epochs_done}, progress.step)
        self._record.add_row("evaluation", epoch=epochs_done, step=progress.step, is_best=is_best, **figures)

    def finish(self) -> None:
        """Ends the loggers with the result of the run."""
        if self.last is None:  # a probe has no steps
            self.logger.fact(self.model)
        self.close(self._record.values["result"])

    def close(self, result: Mapping[str, Any] | None = None) -> None:
        """Ends the loggers; a second call does nothing. result: None if the run failed."""
        if self._bar is not None:
            self._bar.close()
        self.loggers.finish(result)

    def _report(self, progress: EpochProgress) -> StepReport:
        """Logs the state of training, and starts a new interval. Every rank must call it."""
        sums, start = progress.sums.reduced(self.context), self._last_report
        latest = to_metrics(sums - start.sums)  # the host waits: all spans of the timer are complete
        seconds, times = time.perf_counter() - start.time, self.timer.totals().since(start.timer)
        images_per_second = latest.total_samples / seconds
        model = self.model if self.last else None
        figures = {
            "lr": progress.lr,
            "images_per_second": images_per_second,
            "data_wait_share": times.data_wait_seconds / seconds,
            "tflops_per_second": model.tflops_per_second(images_per_second) if model else None,
            "model_flops_utilization": model.utilization(images_per_second) if model else None,
            "loss_scale": self.scaler.get_scale(),
            "skipped_steps": self.scaler.skipped,
            "peak_memory_bytes": peak_memory_bytes(self.context.device),
            "launch_bound_share": times.launch_bound_share,
            "grad_norm": latest.grad_norm,
        }
        figures |= latest.values if latest.samples else {}  # without samples, all steps were skipped
        report = StepReport(
            epoch=progress.epoch + 1,
            num_epochs=self.num_epochs,
            epoch_step=progress.done_steps,
            steps_per_epoch=progress.steps,
            step=progress.step,
            latest=latest,
            average=to_metrics(sums),
            figures={name: value for name, value in figures.items() if value is not None},
            is_scaled=self.scaler.dynamic or figures["loss_scale"] != 1,
            seconds_left=self._seconds_left(progress),
        )
        for line in report.log_lines(self.last):
            self.logger.info(line)
        if self.context.world_size > 1:
            own_sums = progress.sums.totals()
            own_latest = replace(to_metrics(own_sums - start.own_sums), grad_norm=latest.grad_norm)
            own_report = replace(report, latest=own_latest, average=to_metrics(own_sums))
            for line in own_report.log_lines(self.last):
                self.logger.rank(line)
        if latest.samples and self._bar is not None:
            self._bar.set_postfix_str(f"loss {latest.loss:.4f}", refresh=False)
        self.loggers.scalars({f"train/{name}": value for name, value in report.figures.items()}, report.step)
        self.last, self._last_report = report, self._interval_start(progress, sums)
        return report

    def _seconds_left(self, progress: EpochProgress) -> float | None:
        """The steps that are left at the mean time of a step since the first one, with evaluations; None before it."""
        if self._first is None or progress.step == self._first[1]:
            return None
        started, step = self._first
        steps_left = min(self.num_epochs * progress.steps, self.max_steps or sys.maxsize) - progress.step
        return max(steps_left, 0) * (time.perf_counter() - started) / (progress.step - step)

    def _unreadable_images(self, epoch: Metrics) -> int:
        """The number, at least 0: an epoch that was resumed with another batch size may have a few more images."""
        return max(self.images_per_epoch - epoch.total_samples, 0)


def _rounded(value: float | None, digits: int = 4) -> float | None:
    """The number with so many significant digits."""
    return None if value is None else float(f"{value:.{digits}g}")
