"""Work that is repeated during a run, in a limited share of its time."""

import time
from collections.abc import Callable


class TimeShare:
    """Calls `work` at most so often that it takes a fraction `share` of the time of the run.

    first_seconds: that the first call is expected to take.
    """

    def __init__(self, work: Callable[[], None], share: float, first_seconds: float = 0.0) -> None:
        self.work, self.share = work, share
        self._next_time = time.monotonic() + first_seconds / share

    def update(self, now: bool = False) -> None:
        """Calls `work`, unless it was called a short while ago. now: calls it in any case."""
        started = time.monotonic()
        if not now and started < self._next_time:
            return
        try:
            self.work()
        finally:
            finished = time.monotonic()
            self._next_time = finished + (finished - started) / self.share
