"""The state of training at a step, and its log lines."""

from dataclasses import dataclass

from engine.run.log import RunLogger
from utils.metric_table import METRICS
from utils.metrics import Metrics
from utils.tables import format_duration, three_digits, wrap_parts

_MIN_DATA_WAIT_SHARE = 0.05
_MIN_LAUNCH_BOUND_SHARE = 0.5
_GRAD_NORM_SPIKE = 2.0  # times the mean of the epoch


@dataclass(frozen=True)
class StepReport:
    """Throughput (all devices) and `latest` cover the time since the previous report.

    epoch counts from 1, step from the start of the run, epoch_step from the start of the epoch. average: the metrics
    since the start of the epoch. is_scaled: whether the loss scale can be anything but 1. seconds_left: to the end of
    the run; None if it is unknown. data_wait_share, launch_bound_share: see `TimerTotals`.
    """

    epoch: int
    num_epochs: int
    epoch_step: int
    steps_per_epoch: int
    step: int
    lr: float | None
    latest: Metrics
    average: Metrics
    images_per_second: float
    data_wait_share: float
    tflops_per_second: float | None
    model_flops_utilization: float | None
    is_scaled: bool
    loss_scale: float
    skipped_steps: int
    peak_memory_bytes: int
    seconds_left: float | None = None
    launch_bound_share: float | None = None

    @property
    def grad_norm(self) -> float | None:
        return self.latest.grad_norm


def log_lines(report: StepReport, previous: StepReport | None = None) -> list[str]:
    """PaddleViT's line, continued with images/s, memory and the time left; '-' means that all steps were skipped.

    Other values appear if they are unusual: the data wait from 5% of the time, the share of launch-bound steps
    above half, the gradient norm above twice its mean since the start of the epoch, a loss scale that differs from the
    `previous` report's, and the number of skipped steps of the run if it has grown. Values that do not fit into 120
    columns form a second line.
    """
    parts = [_paddlevit_part(report), format_speed(report.images_per_second)]
    parts.append(f"{three_digits(report.peak_memory_bytes / 1e9)}G")
    if report.data_wait_share >= _MIN_DATA_WAIT_SHARE:
        parts.append(f"wait {report.data_wait_share:.0%}")
    if (report.launch_bound_share or 0) > _MIN_LAUNCH_BOUND_SHARE:
        parts.append(f"launch-bound {report.launch_bound_share:.0%}")
    if report.seconds_left:
        parts.append(f"left {format_duration(report.seconds_left)}")
    latest, average = report.grad_norm, report.average.grad_norm
    if latest is not None and average is not None and latest > _GRAD_NORM_SPIKE * average:
        parts.append(f"grad norm {three_digits(latest)} (mean {three_digits(average)})")
    if report.is_scaled and not (previous and previous.loss_scale == report.loss_scale):
        parts.append(f"loss scale {report.loss_scale:g}")
    if report.latest.skipped_samples:
        parts.append(f"skipped steps {report.skipped_steps}")
    return wrap_parts(parts)


def _paddlevit_part(report: StepReport) -> str:
    latest, average = report.latest, report.average
    lr = "" if report.lr is None else f"Lr: {report.lr:.6f}, "
    return (
        f"Epoch[{report.epoch:03d}/{report.num_epochs:03d}], "
        f"Step[{report.epoch_step - 1:04d}/{report.steps_per_epoch:04d}], {lr}"
        f"Loss: {_loss(latest)} ({_loss(average)}), "
        f"Avg Acc: {METRICS['top1'].text(average.values['top1']) if average.samples else '-'}"
    )


def format_speed(images_per_second: float) -> str:
    """'64.5 img/s' or '2850 img/s'."""
    return f"{images_per_second:.{0 if images_per_second >= 999.95 else 1}f} img/s"


def _loss(metrics: Metrics) -> str:
    return f"{metrics.loss:.4f}" if metrics.samples else "-"


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
