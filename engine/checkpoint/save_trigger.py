"""When a run saves between its epochs, and when it ends early: by steps, by the clock, by signals."""

import math
import time

from configs.schema import Config
from utils.distributed import DelayedMax, ProcessContext
from utils.signals import Interrupted, PendingSignal

_SAVE = 1  # a wish of the main process, below any signal's number


class SaveTrigger:
    """Asked at every step, and every batch of an evaluation, on all ranks; it answers them all alike.

    `signals` is to be filled by whoever listens (`utils.signals.saved_first`).
    """

    def __init__(self, config: Config, context: ProcessContext) -> None:
        self.every_steps, self.every_minutes = config.save_freq_steps, config.save_freq_minutes
        self.is_main = context.is_main
        self.signals = PendingSignal()
        self._agreement = DelayedMax(context, config.timeout_seconds)
        self.saved()

    def saved(self) -> None:
        """The clock runs from here."""
        self._next_save = time.monotonic() + 60 * self.every_minutes if self.every_minutes else math.inf

    def wants_save(self, steps_done: int | None = None) -> bool:
        """Whether to save now; without `steps_done` the clock alone says so.

        Raises:
            Interrupted: a signal came to any rank: save, and end.
        """
        is_time = self.is_main and time.monotonic() >= self._next_save
        if is_time:
            self._next_save = math.inf  # asked once
        wish = self._agreement.exchange(self.signals.number or (_SAVE if is_time else 0))
        if wish > _SAVE:
            raise Interrupted(wish)
        is_step = bool(self.every_steps and steps_done and steps_done % self.every_steps == 0)
        return is_step or wish == _SAVE
