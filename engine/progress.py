"""The progress of a run: its sums of loss and accuracy, its position, its time, and those who follow it.

Sums and counts are reduced once: never averages of averages.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.schema.operating_point import UNDECIDED, Decision
from configs.yaml_io import Values
from datasets.sources.samples import UNKNOWN
from utils.distributed import ProcessContext, all_reduce_sum
from utils.metric_table import METRICS, Metric

NUM_SUMS = 7  # of `MetricSums.totals`
_MAX_RANK = 5
_LOSS, _GRAD_NORM, _STEPS, _HITS = range(4)  # positions in `MetricSums._sums`; the hits of top-1 to top-5 follow


@dataclass(frozen=True)
class Metrics:
    """Means over `samples` samples.

    values: by their names in `METRICS`: of training, the loss, top-1 and top-5; of an evaluation, all that apply.
    skipped_samples: samples of skipped steps, which no other field counts. grad_norm: mean over the optimizer steps
    that were not skipped, before clipping; None without such a step. best: the name of the metric that decides which
    evaluation is the best. decision: of an evaluation.
    """

    values: Mapping[str, float]
    samples: int
    skipped_samples: int = 0
    grad_norm: float | None = None
    best: str = "top1"
    decision: Decision = UNDECIDED

    @property
    def loss(self) -> float:
        return self.values["loss"]

    @property
    def known(self) -> dict[str, float | None]:
        """The values; None if not finite: JSON has none."""
        return {name: value if math.isfinite(value) else None for name, value in self.values.items()}

    @property
    def metric(self) -> Metric:
        return METRICS[self.best]

    @property
    def score(self) -> float:
        """The value that decides which evaluation is the best."""
        return self.values[self.best]

    def logged(self) -> dict[Metric, float]:
        """The metrics of PaddleViT's line of an evaluation, and the one that decides."""
        shown = [name for name in self.values if METRICS[name].log_name or name == self.best]
        return {METRICS[name]: self.values[name] for name in shown}

    @property
    def total_samples(self) -> int:
        """Samples of all steps, skipped ones included."""
        return self.samples + self.skipped_samples


@dataclass(frozen=True)
class BatchSums:
    """The sums of a batch, on the device.

    loss: () over the samples. hits: float32 (K,): samples whose target has the (k+1)-th highest logit. With several
    labels per image, the best-ranked label counts; an image without labels is a hit if all logits are negative.
    samples: known to the host.
    """

    loss: Tensor
    hits: Tensor
    samples: int

    @classmethod
    @torch.no_grad()
    def of(cls, loss_sum: Tensor, logits: Tensor, targets: Tensor, samples: int) -> "BatchSums":
        """logits (B, classes); targets int64 (B,) or multi-hot (B, classes), negative for padding or `UNKNOWN`.

        K is 5, or the number of classes if lower.
        """
        if targets.ndim == 2:
            is_unknown = targets == UNKNOWN
            logits = logits.masked_fill(is_unknown, -torch.inf)
        values, best = logits.topk(min(_MAX_RANK, logits.shape[-1]), dim=-1)
        if targets.ndim == 1:
            hits = best == targets.unsqueeze(-1)
        else:
            hits = targets.gather(-1, best) > 0
            hits = hits & (hits.cumsum(-1) == 1)
            hits[:, 0] |= (is_unknown | (targets == 0)).all(-1) & (values[:, 0] < 0)
        return cls(loss_sum.detach(), hits.sum(0, dtype=torch.float32), samples)

    def __add__(self, other: "BatchSums") -> "BatchSums":
        return BatchSums(self.loss + other.loss, self.hits + other.hits, self.samples + other.samples)


class MetricSums:
    """Running sums, kept on the device in float64; only reading them waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(_HITS + _MAX_RANK, dtype=torch.float64, device=device)
        self._samples = 0  # samples of skipped steps included
        self._skipped_samples = torch.zeros((), dtype=torch.float64, device=device)
        self._restored = torch.zeros(NUM_SUMS, dtype=torch.float64, device=device)
        self._one = torch.ones((), device=device)

    def add_step(self, batch: BatchSums, grad_norm: Tensor, skipped: Tensor) -> None:
        """Adds the batch of an optimizer step; of a skipped step only its number of samples, as skipped.

        grad_norm (): before clipping. skipped: bool ().
        """
        scalars = (batch.loss, grad_norm, self._one)
        step = torch.cat((*(scalar.view(1) for scalar in scalars), batch.hits)).masked_fill_(skipped, 0)
        self._sums[: len(step)].add_(step)
        self._skipped_samples.add_(skipped, alpha=batch.samples)
        self._samples += batch.samples

    def totals(self) -> Tensor:
        """The sums of this rank as a checkpoint stores them, float64 (7,): loss, top-1, top-5, samples, samples of
        skipped steps, gradient norm, steps that were not skipped."""
        sums = self._sums
        skipped = self._skipped_samples
        hits = sums[_HITS:]
        parts = (sums[_LOSS], hits[0], hits.sum(), self._samples - skipped, skipped, sums[_GRAD_NORM], sums[_STEPS])
        return self._restored + torch.stack(parts)

    def restore(self, totals: Tensor) -> None:
        """Continues from the totals of a checkpoint, which are sums over all ranks: call it on one rank."""
        self._restored.copy_(totals)

    def reduced(self, context: ProcessContext) -> Tensor:
        """The totals (7,) over all ranks; a collective call."""
        return all_reduce_sum(self.totals(), context)


def to_metrics(totals: Tensor) -> Metrics:
    """From totals (7,), without values if all steps were skipped.

    Gradient norms are equal on all ranks: the mean over ranks and steps is the mean over steps.
    """
    loss, top1, top5, samples, skipped_samples, grad_norm, steps = totals.tolist()
    values = {}
    if samples:
        values = {"loss": loss / samples, "top1": 100 * top1 / samples, "top5": 100 * top5 / samples}
    return Metrics(
        values,
        samples=int(samples),
        skipped_samples=int(skipped_samples),
        grad_norm=grad_norm / steps if steps else None,
    )


@dataclass
class EpochProgress:
    """The position in an epoch.

    epoch: counted from 0.
    steps, batches: of the whole epoch; batches on each rank.
    sums: loss and hits so far.
    done_steps: optimizer steps of this epoch, skipped ones included.
    lr: of the last step; None before it, and for a probe.
    accumulation: micro-steps of a step.
    """

    epoch: int
    steps: int
    batches: int
    sums: MetricSums
    done_steps: int = 0
    lr: float | None = None
    accumulation: int = 1

    @property
    def step(self) -> int:
        """Optimizer steps since the start of the run."""
        return self.epoch * self.steps + self.done_steps

    @property
    def window(self) -> int:
        """Micro-steps of the next step: fewer than `accumulation` in the last step, if the batches run out."""
        return min(self.accumulation, self.batches - self.done_batches)

    @property
    def done_batches(self) -> int:
        """Batches of this epoch that the done steps have used, on each rank."""
        return min(self.done_steps * self.accumulation, self.batches)


class TrainClock:
    """Seconds spent in training steps, and images trained on over all ranks, without evaluation and saving.

    `total_seconds` includes them, and the time since `started` (time.perf_counter), as of features. All three continue
    from the checkpoint, where it was `earlier_seconds`.
    """

    def __init__(self, started: float, seconds: float = 0.0, images: int = 0, total_seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.images = images
        self._since = time.perf_counter()
        self._images_then = 0
        self._start = started - total_seconds
        self.earlier_seconds = total_seconds
        self.lap_seconds = 0.0

    @property
    def total_seconds(self) -> float:
        return time.perf_counter() - self._start

    def start(self, images_of_epoch: int) -> None:
        """Starts to count; `images_of_epoch` are done already."""
        self._since = time.perf_counter()
        self._images_then = images_of_epoch

    def lap(self, images_of_epoch: int) -> None:
        """Adds the time and the images since the last call; `lap_seconds` has this time."""
        now = time.perf_counter()
        self.lap_seconds = now - self._since
        self.seconds += self.lap_seconds
        self.images += images_of_epoch - self._images_then
        self._since = now
        self._images_then = images_of_epoch


@dataclass(frozen=True)
class Evaluated:
    """An evaluation after so many epochs; 0: of the probe that the head starts from.

    model: the evaluated one; None if training has changed its weights since, or if it is sharded. results: the
    `SampleResults`, on the main process. raw: of the raw weights, beside their average, if the table shows them.
    is_best: whether it is the best one so far. seconds: that it took; None if features gave its results.
    """

    model: nn.Module | None
    metrics: Metrics
    results: Any
    epoch: int
    raw: Metrics | None = None
    is_best: bool = True
    seconds: float | None = None


class Observer:
    """Follows a training run, on every rank. Its methods are the events of the run, which may be collective calls."""

    def after_step(self, progress: EpochProgress) -> None:
        """Called after each step, before it is saved."""

    def before_evaluation(self, progress: EpochProgress) -> None:
        """Called after the last step of an epoch."""

    def after_evaluation(self, progress: EpochProgress, evaluated: Evaluated) -> None:
        """Called after the evaluations of an epoch, at its last step."""

    def after_epoch(self, progress: EpochProgress, ends: bool) -> None:
        """Called when an epoch is complete, before it is saved. ends: whether the run ends with it."""

    def after_save(self, path: Path, content: Values) -> None:
        """Called by the writer's thread with a checkpoint that it has written, on the main process."""
