"""The position of a run, its time in training, and those who follow it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.metrics import MetricSums


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
    from the checkpoint.
    """

    def __init__(self, started: float, seconds: float = 0.0, images: int = 0, total_seconds: float = 0.0) -> None:
        self.seconds, self.images = seconds, images
        self._since, self._images_then = time.perf_counter(), 0
        self._start = started - total_seconds

    @property
    def total_seconds(self) -> float:
        return time.perf_counter() - self._start

    def start(self, images_of_epoch: int) -> None:
        """Starts to count; `images_of_epoch` are done already."""
        self._since, self._images_then = time.perf_counter(), images_of_epoch

    def lap(self, images_of_epoch: int) -> float:
        """Adds the time and the images since the last call; returns those seconds."""
        now = time.perf_counter()
        seconds = now - self._since
        self.seconds += seconds
        self.images += images_of_epoch - self._images_then
        self._since, self._images_then = now, images_of_epoch
        return seconds


class Observer:
    """Follows a training run, on every rank; it changes nothing in it."""

    def after_step(self, progress: EpochProgress) -> None:
        """Called after each step, before it is saved."""

    def before_evaluation(self) -> None:
        """Called after the last step of an epoch, before its evaluations."""

    def after_evaluation(self) -> None:
        """Called after the evaluations of an epoch."""

    def after_save(self, path: Path, content: dict[str, Any]) -> None:
        """Called by the writer's thread with a checkpoint that it has written, on the main process."""
