"""When a run saves inside an epoch, and when it stops early: after steps, after minutes, on signals."""

import math
import time
from collections.abc import Sequence

from engine.parallel.rank_exchange import RankExchange
from utils.signals import Interrupted, PendingSignal

_SAVE = 1  # a request of the main process; a signal requests _SAVE + its number


class SaveTrigger:
    """Decides after every step and every evaluation batch whether to save; the answer is the same on all ranks.

    `signals` receives the signals of this process (see `utils.signals.defer_signals`).
    """

    def __init__(
        self,
        exchange: RankExchange,
        is_main: bool,
        every_steps: int | None = None,
        every_minutes: float | None = None,
    ) -> None:
        self.exchange, self.is_main = exchange, is_main
        self.every_steps, self.every_minutes = every_steps, every_minutes
        self.signals = PendingSignal()
        self._next_save = self._due_time()

    def _due_time(self) -> float:
        return time.monotonic() + 60 * self.every_minutes if self.every_minutes else math.inf

    def saved(self) -> None:
        """Restarts the timer."""
        self._next_save = self._due_time()

    def should_save(self, steps_done: int | None = None, seconds: Sequence[float] | None = None) -> bool:
        """Returns whether to save now. Without `steps_done` (in an evaluation) only the timer counts.

        seconds: of this rank in the step, for the exchange.

        Raises:
            Interrupted: any rank received a signal: save, then exit.
        """
        is_time = self.is_main and time.monotonic() >= self._next_save
        if is_time:
            self._next_save = math.inf  # requests once
        number = self.signals.number
        request = self.exchange.greatest(_SAVE + number if number else _SAVE if is_time else 0, seconds)
        if request > _SAVE:
            self.signals.note(request - _SAVE)
            raise Interrupted(request - _SAVE)
        is_step = bool(self.every_steps and steps_done and steps_done % self.every_steps == 0)
        return is_step or request == _SAVE
