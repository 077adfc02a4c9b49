"""The position of a run, its time in training, the estimated time to its end, and those who follow it."""

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


class TimeLeft:
    """Remaining steps x seconds per step of this epoch + remaining epochs x seconds between two epochs.

    The first step is not measured: compilation and the start of workers make it slow. The time between two epochs
    (evaluation, checkpoints) is a mean, and 0 until it is known.
    """

    def __init__(self, num_epochs: int, max_steps: int | None) -> None:
        """max_steps: the run ends after this many steps in all, if not before."""
        self.num_epochs, self.max_steps = num_epochs, max_steps
        self._start_time, self._start_step = 0.0, 0
        self._epoch_end: float | None = None
        self._pauses: list[float] = []

    def start_epoch(self, progress: EpochProgress) -> None:
        if self._epoch_end is not None:
            self._pauses.append(time.perf_counter() - self._epoch_end)
            self._epoch_end = None
        self.start_clock(progress)

    def start_clock(self, progress: EpochProgress) -> None:
        """Measures the seconds per step from here on."""
        self._start_time, self._start_step = time.perf_counter(), progress.step

    def end_steps(self) -> None:
        """The last step of the epoch is done; the time to the next epoch is a pause."""
        self._epoch_end = time.perf_counter()

    def seconds(self, progress: EpochProgress) -> float | None:
        """The estimate in seconds; None without a measured step."""
        measured = progress.step - self._start_step
        if not measured:
            return None
        now, pauses = time.perf_counter(), self._pauses
        last_step = self.num_epochs * progress.steps
        if self.max_steps is not None:
            last_step = min(last_step, self.max_steps)
        pauses_left = last_step // progress.steps - progress.epoch
        if self._epoch_end is None:
            seconds_per_step = (now - self._start_time) / measured
        else:
            seconds_per_step = (self._epoch_end - self._start_time) / measured
            pauses = [*pauses, now - self._epoch_end]
            pauses_left -= 1
        pause = sum(pauses) / len(pauses) if pauses else 0.0
        return max(last_step - progress.step, 0) * seconds_per_step + max(pauses_left, 0) * pause
