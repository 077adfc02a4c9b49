"""The state of training at a step, and its log lines."""

from dataclasses import dataclass

from engine.telemetry.mfu import format_rates, three_digits
from utils.metrics import Metrics

_MIN_DATA_WAIT_SHARE = 0.01  # a smaller share is not worth a place in the line


@dataclass(frozen=True)
class StepReport:
    """Throughput (all devices) and `latest` cover the time since the previous report.

    epoch counts from 1, step from the start of the run, epoch_step from the start of the epoch. average: the metrics
    since the start of the epoch. is_scaled: whether the loss scale can be anything but 1.
    """

    epoch: int
    num_epochs: int
    epoch_step: int
    steps_per_epoch: int
    step: int
    lr: float
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

    @property
    def grad_norm(self) -> float | None:
        return self.latest.grad_norm


def log_lines(report: StepReport) -> tuple[str, str]:
    """PaddleViT's line, and a line for gradients, speed and memory. Each fits a terminal of 120 columns.

    '-' means no samples: all steps were skipped. The second line leaves out rates that say nothing:
    a short data wait, a loss scale that is always 1, zero skipped steps.
    """
    latest, average = report.latest, report.average
    progress = (
        f"Epoch[{report.epoch:03d}/{report.num_epochs:03d}], "
        f"Step[{report.epoch_step - 1:04d}/{report.steps_per_epoch:04d}], Lr: {report.lr:.6f}, "
        f"Loss: {_loss(latest)} ({_loss(average)}), "
        f"Avg Acc: {f'{average.top1:.2f}%' if average.samples else '-'}"
    )
    grad_norm = "-" if report.grad_norm is None else three_digits(report.grad_norm)
    parts = [f"grad norm: {grad_norm}", f"img/s: {_images_per_second(report.images_per_second)}"]
    if report.data_wait_share >= _MIN_DATA_WAIT_SHARE:
        parts.append(f"wait: {report.data_wait_share:.0%}")
    parts += format_rates(report.tflops_per_second, report.model_flops_utilization)
    if report.is_scaled:
        parts.append(f"loss scale: {report.loss_scale:g}")
    if report.skipped_steps:
        parts.append(f"skipped: {report.skipped_steps}")
    parts.append(f"mem: {three_digits(report.peak_memory_bytes / 1e9)}G")
    return progress, f"  {', '.join(parts)}"


def _loss(metrics: Metrics) -> str:
    return f"{metrics.loss:.4f}" if metrics.samples else "-"


def _images_per_second(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"
