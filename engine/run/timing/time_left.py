"""The time to the end of a run, estimated from the steps and the evaluations of this process."""

import time

from engine.progress import EpochProgress


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
