"""Follows a training run: a report, an evaluation, an epoch is a row of the record, a log line, values of loggers."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor
from tqdm import tqdm

from configs.schema.train import Horizon
from engine.precision.policy import LossScaler
from engine.progress import EpochProgress, Evaluated, Metrics, Observer, TrainClock, to_metrics
from engine.run.cost import StepTimer, TimerTotals
from engine.run.facts import Model
from engine.run.log import RunLogger, progress_bar
from engine.run.loggers import LoggerGroup
from engine.run.record import DETAILS, Row
from utils.device import peak_memory_bytes
from utils.distributed import ProcessContext, call_on_main
from utils.errors import UserError
from utils.files import make_own_folder, without_none
from utils.metric_table import METRICS
from utils.notes import texts_of
from utils.tables import format_duration, three_digits

_MIN_DATA_WAIT_SHARE = 0.05
_MIN_LAUNCH_BOUND_SHARE = 0.5
_GRAD_NORM_SPIKE = 2.0  # times the mean of the epoch


def step_line(
    progress: EpochProgress,
    num_epochs: int,
    latest: Metrics,
    average: Metrics,
    figures: Mapping[str, float | None],
    seconds_left: float | None,
    shows_scale: bool,
) -> str:
    """PaddleViT's line, continued with images/s, memory and the time left; '-' means that all steps were skipped.

    latest: the metrics since the previous line; average: since the start of the epoch. figures: as in the rows. Other
    values appear if they are unusual.
    """

    known = {name: value or 0.0 for name, value in figures.items()}
    lr = "" if progress.lr is None else f"Lr: {progress.lr:.6f}, "
    latest_loss, loss = (f"{one.loss:.4f}" if one.samples else "-" for one in (latest, average))
    accuracy = METRICS["top1"].text(average.values["top1"]) if average.samples else "-"
    parts = [
        f"Epoch[{progress.epoch + 1:03d}/{num_epochs:03d}], "
        f"Step[{progress.done_steps - 1:04d}/{progress.steps:04d}], {lr}"
        f"Loss: {latest_loss} ({loss}), Avg Acc: {accuracy}",
        format_speed(known["images_per_second"]),
        f"{three_digits(known['peak_memory_bytes'] / 1e9)}G",
    ]
    wait = known["data_wait_share"]
    launch_bound = known["launch_bound_share"]
    left = seconds_left or 0.0
    norm = latest.grad_norm or 0.0
    mean_norm = average.grad_norm or 0.0
    unusual = texts_of(
        (wait >= _MIN_DATA_WAIT_SHARE, f"wait {wait:.0%}"),
        (launch_bound > _MIN_LAUNCH_BOUND_SHARE, f"launch-bound {launch_bound:.0%}"),
        (left > 0, f"left {format_duration(left)}"),
        (norm > _GRAD_NORM_SPIKE * mean_norm, f"grad norm {three_digits(norm)} (mean {three_digits(mean_norm)})"),
        (shows_scale, f"loss scale {known['loss_scale']:g}"),
        (latest.skipped_samples > 0, f"skipped steps {known['skipped_steps']:g}"),
    )
    return ", ".join([*parts, *unusual])


def format_speed(images_per_second: float) -> str:
    """'64.5 img/s' or '2850 img/s'."""
    return f"{images_per_second:.{0 if images_per_second >= 999.95 else 1}f} img/s"


def log_validation(
    logger: RunLogger,
    title: str,
    metrics: Metrics,
    num_classes: int,
    seconds: float,
    split: str = "Validation",
    precision: str = "",
) -> None:
    """Logs PaddleViT's line, continued with the `precision`."""
    shown = [(metric, value) for metric, value in metrics.logged().items() if num_classes >= metric.min_classes]
    figures = ", ".join(f"{split} {metric.log_name or metric.title}: {metric.text(value)}" for metric, value in shown)
    logger.info(f"----- {title}{figures}, time: {seconds:.2f} s{precision and f', {precision}'}")


class _IntervalStart(NamedTuple):
    """The counters at the start of an interval: time, metric sums over all ranks, timer totals."""

    time: float
    sums: Tensor
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
    clock: TrainClock
    horizon: Horizon
    report_freq: int
    images_per_epoch: int
    max_steps: int | None = None

    def __post_init__(self) -> None:
        self._record = self.logger.record
        self._bar: tqdm[Any] | None = None  # of the epoch in progress
        self._seconds = 0.0  # of its steps; 0 until they are done, or if none was left
        self._first: tuple[float, int] | None = None  # the time of the first step of this start, and its number
        self._scale: float | None = None  # in the last line

    @cached_property
    def model(self) -> Model:
        """The description of the model."""
        return self.describe()

    def start(self, epochs_done: int, steps_done: int) -> None:
        """Continues the rows after this position of the run."""

        def open_rows() -> None:
            make_own_folder(self._record.folder / DETAILS)
            if warning := self._record.open_rows(epochs_done, steps_done):
                self.logger.warn(warning)
            self.loggers.start(self._record, steps_done)

        call_on_main(open_rows, self.context)

    def start_epoch(self, progress: EpochProgress) -> None:
        """Starts the clock of an epoch, or of the rest of one in a resumed run."""
        title = f"Epoch {progress.epoch + 1}/{self.horizon.num_epochs}"
        images_per_step = round(self.images_per_epoch / progress.steps)
        self._bar = progress_bar(title, self.context, progress.steps, "img", images_per_step, progress.done_steps)
        self._seconds = 0.0
        self._epoch_start = self._last_report = self._interval_start(progress.sums.reduced(self.context))

    def _interval_start(self, sums: Tensor) -> _IntervalStart:
        return _IntervalStart(time.perf_counter(), sums, self.timer.totals())

    def after_step(self, progress: EpochProgress) -> None:
        """Reports after each `report_freq` steps, the first step of the run, and the last step of an epoch.

        Raises UserError on all ranks at the end of an epoch without a readable image.
        """
        assert self._bar is not None
        self._bar.update()
        is_last = progress.done_steps == progress.steps
        is_first = self._first is None
        is_due = progress.done_steps % self.report_freq == 0 or is_last
        if is_due or is_first:
            row = self._report(progress)
            if is_due or progress.step == 1:  # not the first step of a resumed run: no row is there
                self._record.add_row("report", **row)
            if is_first:
                self.logger.note(self.model)
        if not is_last:
            return
        self._seconds = time.perf_counter() - self._epoch_start.time
        self._bar.close()
        unreadable = self._unreadable_images(to_metrics(self._last_report.sums))
        if unreadable == self.images_per_epoch:
            problem = f"no training image of epoch {progress.epoch + 1} can be read"
            raise UserError(f"{problem}; bad_images_*.csv in {self._record.folder} has the reasons")
        self.logger.warn_of_skipped("training", unreadable)

    def stop(self, progress: EpochProgress) -> None:
        """Writes the last report of a run that aborts. The aborted step is not counted, but its loss scale is."""
        assert self._bar is not None
        self._record.add_row("report", **self._report(progress) | {"step": progress.step + 1})
        self._bar.close()

    def after_epoch(self, progress: EpochProgress, ends: bool) -> None:
        """Logs the time of the epoch, evaluation included, and the speed of its training; adds its row."""
        sums = progress.sums.reduced(self.context)
        images = to_metrics(sums - self._epoch_start.sums).total_samples
        figures = self._figures(images, self._seconds, self.timer.totals().since(self._epoch_start.timer))
        epoch_seconds = time.perf_counter() - self._epoch_start.time
        parts = [f"----- Epoch[{progress.epoch + 1:03d}/{self.horizon.num_epochs:03d}]"]
        parts.append(f"epoch time: {format_duration(epoch_seconds)}")
        if speed := figures["images_per_second"]:
            parts += [format_speed(speed), *self.model.rates(speed)]
        if self.scaler.skipped:
            parts.append(f"skipped steps: {self.scaler.skipped}")
        if seconds_left := self.seconds_left(progress):
            parts.append(f"time left: {format_duration(seconds_left)}")
        self.logger.info(", ".join(parts))
        trained = to_metrics(sums)
        self._record.add_row(
            "epoch",
            epoch=progress.epoch + 1,
            step=progress.step,
            lr=progress.lr,
            train_loss=trained.values.get("loss"),
            train_top1=trained.values.get("top1"),
            skipped_images=self._unreadable_images(trained),
            train_seconds=round(self.clock.seconds, 3),
            grad_norm=trained.grad_norm,
            images_in_skipped_steps=trained.skipped_samples,
            **figures,
        )

    def _figures(self, images: int, seconds: float, times: TimerTotals) -> dict[str, float | None]:
        """The figures of an interval with so many images over all devices, by their names in rows and loggers."""
        speed = images / seconds if seconds else 0.0
        has_rates = speed and self._scale is not None  # not before the first line
        measured: dict[str, float | None] = {
            "images_per_second": speed or None,
            "data_wait_share": times.data_wait_seconds / max(seconds, 1e-9),
            "launch_bound_share": times.launch_bound_share,
            "tflops_per_second": self.model.tflops_per_second(speed) if has_rates else None,
            "model_flops_utilization": self.model.utilization(speed) if has_rates else None,
        }
        rounded = {name: None if value is None else float(f"{value:.6g}") for name, value in measured.items()}
        return rounded | {
            "loss_scale": self.scaler.get_scale(),
            "skipped_steps": self.scaler.skipped,
            "peak_memory_bytes": peak_memory_bytes(self.context.device),
        }

    def after_evaluation(self, progress: EpochProgress, evaluated: Evaluated) -> None:
        """Adds the row of the evaluation."""
        epoch = evaluated.epoch
        metrics = evaluated.metrics
        is_best = evaluated.is_best
        values = {f"val/{name}": value for name, value in metrics.known.items()}
        if evaluated.raw:
            values |= {f"raw_val/{name}": value for name, value in evaluated.raw.known.items()}
        figures = {name.replace("/", "_"): value for name, value in values.items()}
        self._record.add_row("evaluation", epoch=epoch, step=progress.step, is_best=is_best, **figures)
        if is_best:
            # First in the alphabet: TensorBoard's table of hyperparameters shows the first five scalars.
            values |= {f"best/{metric.name}": value for metric, value in metrics.logged().items()}
            values["best/epoch"] = epoch
        self.loggers.scalars(without_none(values), progress.step)

    def finish(self) -> None:
        """Ends the loggers with the result of the run."""
        if self._first is None:  # no step was left
            self.logger.note(self.model)
        call_on_main(lambda: self.close(self._record.values["result"]), self.context)

    def close(self, result: Mapping[str, Any] | None = None) -> None:
        """Ends the loggers; a second call does nothing. result: None if the run failed."""
        if self._bar is not None:
            self._bar.close()
        self.loggers.finish(result)

    def _report(self, progress: EpochProgress) -> Row:
        """Logs the state of training, and starts a new interval; returns its row. Every rank must call it."""
        sums = progress.sums.reduced(self.context)
        start = self._last_report
        latest = to_metrics(sums - start.sums)  # the host waits: all spans of the timer are complete
        times = self.timer.totals().since(start.timer)
        seconds = time.perf_counter() - start.time
        figures = {"lr": progress.lr} | self._figures(latest.total_samples, seconds, times)
        figures |= {"grad_norm": latest.grad_norm, **latest.values}
        scale = figures["loss_scale"]
        left = self.seconds_left(progress)
        shows_scale = scale != self._scale and (self.scaler.dynamic or scale != 1)
        line = step_line(progress, self.horizon.num_epochs, latest, to_metrics(sums), figures, left, shows_scale)
        self.logger.info(line)
        if self.context.world_size > 1:
            self.logger.rank(line)
        if latest.samples and self._bar is not None:
            self._bar.set_postfix_str(f"loss {latest.loss:.4f}", refresh=False)
        self.loggers.scalars(without_none({f"train/{name}": value for name, value in figures.items()}), progress.step)
        self._first = self._first or (time.perf_counter(), progress.step)
        self._scale = scale
        self._last_report = self._interval_start(sums)
        position = {"epoch": progress.epoch + 1, "step": progress.step, "epoch_step": progress.done_steps}
        return position | {"seconds_left": left} | figures

    def seconds_left(self, progress: EpochProgress) -> float | None:
        """The steps that are left at the mean time of a step since the first one, with evaluations; None before it."""
        if self._first is None or progress.step == self._first[1]:
            return None
        started, step = self._first
        steps_left = min(self.horizon.num_epochs * progress.steps, self.max_steps or sys.maxsize) - progress.step
        return max(steps_left, 0) * (time.perf_counter() - started) / (progress.step - step)

    def _unreadable_images(self, epoch: Metrics) -> int:
        """The number, at least 0: an epoch that was resumed with another batch size may have a few more images."""
        return max(self.images_per_epoch - epoch.total_samples, 0)
