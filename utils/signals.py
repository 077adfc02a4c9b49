"""SIGTERM, SIGUSR1 (Slurm's warning), SIGUSR2 (submitit's), SIGINT (Ctrl-C) and SIGHUP (a closed terminal).

Inside `defer_signals` a signal is recorded, and training saves a checkpoint on all ranks at the same step before it
ends. Outside it, a signal raises an exception.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from utils.files import remove_temporary_folders

# nohup starts a process with SIGHUP ignored, and it stays so.
_HANGUP = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, *_HANGUP)
_DUPLICATE_SECONDS = 1.0  # the terminal and the launcher both send the same Ctrl-C within this time


class Interrupted(BaseException):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status by the convention of shells."""
        return 128 + self.number


def raise_on_signals() -> None:
    """Makes each signal raise `Interrupted`."""
    for number in TERMINATION_SIGNALS:
        signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


class PendingSignal:
    """The number of the first signal received, or 0. On a second one the process exits if either of them is Ctrl-C."""

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0

    def receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.number:
            self.number, self._since = number, now
        elif signal.SIGINT in (number, self.number) and now - self._since > _DUPLICATE_SECONDS:
            exit_now(128 + number)


@contextmanager
def defer_signals(pending: PendingSignal) -> Iterator[None]:
    """Records signals in `pending` inside the block. The caller must check `pending.number` and end the run."""
    handlers = {number: signal.signal(number, pending.receive) for number in TERMINATION_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def kill_children() -> None:
    """Kills the worker processes. They ignore SIGTERM, and a stopped or hanging one would block the exit."""
    for child in multiprocessing.active_children():
        child.kill()


def exit_now(status: int) -> None:
    """Exits without Python's exit handlers, which could block."""
    kill_children()
    remove_temporary_folders()
    os._exit(status)
