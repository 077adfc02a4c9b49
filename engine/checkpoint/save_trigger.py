"""When a run saves inside an epoch, and when it stops early: after steps, after minutes, on signals.

The ranks exchange their requests, and with them their times of a step.
"""

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from utils.distributed import ProcessContext
from utils.errors import Unavailable
from utils.processes.failure import State, leaving_state
from utils.signals import Interrupted, PendingSignal

_SAVE = 1  # a request of the main process; a signal requests _SAVE + its number


class SaveTrigger:
    """Decides after every step and every evaluation batch whether to save; the answer is the same on all ranks.

    `signals` receives the signals of this process (see `utils.signals.defer_signals`). `rank_seconds` (ranks, 2) are
    the times that the ranks gave one call before the last; None if they gave none.
    """

    def __init__(
        self,
        context: ProcessContext,
        timeout_seconds: float,
        every_steps: int | None = None,
        every_minutes: float | None = None,
    ) -> None:
        self.every_steps, self.every_minutes = every_steps, every_minutes
        self.is_main = context.is_main
        self.signals = PendingSignal()
        self.rank_seconds: torch.Tensor | None = None
        self._rank, self._world_size = context.rank, context.world_size
        self._max_over_ranks = _DelayedMax(context, timeout_seconds)
        self._gave_seconds = False
        self._next_save = self._due_time()

    def _due_time(self) -> float:
        return time.monotonic() + 60 * self.every_minutes if self.every_minutes else math.inf

    def saved(self) -> None:
        """Restarts the timer."""
        self._next_save = self._due_time()

    def should_save(self, steps_done: int | None = None, seconds: Sequence[float] | None = None) -> bool:
        """Returns whether to save now. Without `steps_done` (in an evaluation) only the timer counts.

        seconds: of this rank in the step: waiting for data, in the forward pass. All ranks give them, or none.

        Raises:
            Interrupted: any rank received a signal: save, then exit.
        """
        is_time = self.is_main and time.monotonic() >= self._next_save
        if is_time:
            self._next_save = math.inf  # requests once
        number = self.signals.number
        request = self._exchange(_SAVE + number if number else _SAVE if is_time else 0, seconds)
        if request > _SAVE:
            self.signals.note(request - _SAVE)
            raise Interrupted(request - _SAVE)
        is_step = bool(self.every_steps and steps_done and steps_done % self.every_steps == 0)
        return is_step or request == _SAVE

    def _exchange(self, request: int, seconds: Sequence[float] | None) -> int:
        """The greatest request of the previous call; sets `rank_seconds`. Every rank fills its own two places."""
        values = torch.zeros(1 + 2 * self._world_size, dtype=torch.float64)
        values[0] = request
        if seconds is not None:
            values[1 + 2 * self._rank : 3 + 2 * self._rank] = torch.tensor(seconds, dtype=torch.float64)
        gave_seconds, self._gave_seconds = self._gave_seconds, seconds is not None
        maxima = self._max_over_ranks.exchange(values)
        if maxima is None:
            return 0
        self.rank_seconds = maxima[1:].view(-1, 2) if gave_seconds else None
        return int(maxima[0])


class _DelayedMax:
    """The maxima of numbers over all ranks, one step late, so that ranks do not wait for each other.

    A rank waits only for one that is more than a step behind, at most `timeout_seconds`. The exchange uses gloo between
    hosts, in parallel with the collectives of the devices.
    """

    def __init__(self, context: ProcessContext, timeout_seconds: float) -> None:
        self._group: Any = None
        self._pending: tuple[Any, torch.Tensor] | None = None
        if context.world_size > 1:
            try:
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
            except RuntimeError as error:  # NCCL may use another network than gloo
                if leaving_state(error) is not State.FAILED:
                    raise
                raise Unavailable(
                    f"the hosts of this run cannot reach each other ({error}); set GLOO_SOCKET_IFNAME to the name of "
                    "their common network interface"
                ) from error

    def exchange(self, values: torch.Tensor) -> torch.Tensor | None:
        """Sends `values` (N,), on the CPU, and returns the maxima (N,) of the previous call; None at first.

        All ranks must call it equally often, with the same N. In a run of one process the result is `values` itself.
        """
        if self._group is None:
            return values
        previous = self._pending
        maxima = values.clone()
        self._pending = dist.all_reduce(maxima, dist.ReduceOp.MAX, self._group, async_op=True), maxima
        if previous is None:
            return None
        previous[0].wait()
        return previous[1]
