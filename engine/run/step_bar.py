"""The progress bar of a training epoch."""

import time

from engine.progress import EpochProgress
from engine.run.log import progress_bar
from utils.distributed import ProcessContext

_SECONDS_PER_UPDATE = 1.0


class StepBar:
    """Shows steps, elapsed and remaining time, images/s of the last second or longer, and the loss of the last report.

    images_per_step: over all ranks. The host counts steps; reading the loss waits for the device, and is left to the
    reports.
    """

    def __init__(self, title: str, context: ProcessContext, progress: EpochProgress, images_per_step: float) -> None:
        self._bar = progress_bar(title, context, progress.steps, progress.done_steps)
        self._images_per_step = images_per_step
        self._loss = ""
        self._shown_steps, self._shown_time = progress.done_steps, time.perf_counter()

    def after_step(self, progress: EpochProgress) -> None:
        """Updates the numbers once per second, and after the last step of the epoch."""
        now = time.perf_counter()
        seconds = now - self._shown_time
        if seconds >= _SECONDS_PER_UPDATE or progress.done_steps == progress.steps:
            images = (progress.done_steps - self._shown_steps) * self._images_per_step
            self._bar.set_postfix_str(f"{images / max(seconds, 1e-9):.0f} img/s{self._loss}", refresh=False)
            self._bar.n = progress.done_steps
            self._bar.refresh()
            self._shown_steps, self._shown_time = progress.done_steps, now

    def show_loss(self, loss: float) -> None:
        """Sets the loss, which the next update shows."""
        self._loss = f", loss {loss:.4f}"

    def close(self) -> None:
        self._bar.close()
