"""SIGTERM, SIGUSR1 (Slurm's warning) and Ctrl-C: a run in training saves first, on all ranks at the same step.

Outside `defer_signals` they end the process where it is, as an exception.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_ECHO_SECONDS = 1.0  # within which a launcher passes on the Ctrl-C that the terminal sent as well


class Interrupted(BaseException):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status, by the shells' convention."""
        return 128 + self.number


def raise_on_signals() -> None:
    """From now on a signal raises `Interrupted`, wherever Python is."""
    for number in TERMINATION_SIGNALS:
        signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


class PendingSignal:
    """Which signal has come, if any. A second one ends the process at once where one of the two is Ctrl-C."""

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0

    def take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.number:
            self.number, self._since = number, now
        elif signal.SIGINT in (number, self.number) and now - self._since > _ECHO_SECONDS:
            kill_children()
            os._exit(128 + number)


@contextmanager
def defer_signals(pending: PendingSignal) -> Iterator[None]:
    """Within the block a signal is only noted; who runs the block looks at the note and saves."""
    handlers = {number: signal.signal(number, pending.take) for number in TERMINATION_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def kill_children() -> None:
    """Kills the loading processes: they ignore SIGTERM, and one that is stopped or hangs would hold this one up."""
    for child in multiprocessing.active_children():
        child.kill()
