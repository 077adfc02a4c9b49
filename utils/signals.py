"""SIGTERM, SIGUSR1 (Slurm's warning), SIGUSR2 (submitit's), SIGINT (Ctrl-C) and SIGHUP (a closed terminal).

The first signal raises an exception. From its first step on, a training records it in a `PendingSignal`, and all ranks
end at the same step or batch. Later signals are ignored, except for a second Ctrl-C, which ends the process at once.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

# nohup starts a process with SIGHUP ignored, and it stays so: the run outlives its terminal.
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


class PendingSignal:
    """The number of the first signal received, or 0. On a second one the process exits if either of them is Ctrl-C.

    on_first: called with the name of the first one, in its handler, so that it may take no lock.
    """

    def __init__(self) -> None:
        self.number = 0
        self.on_first: Callable[[str], Any] = lambda name: None
        self._since = 0.0

    def receive(self, number: int, frame: FrameType | None) -> None:
        is_later = self.number and time.monotonic() - self._since > _DUPLICATE_SECONDS
        if is_later and signal.SIGINT in (number, self.number):
            exit_now(128 + number)
        self.note(number)

    def note(self, number: int) -> None:
        """Records a signal, perhaps one that another rank has received."""
        if not self.number:
            self.number = number
            self._since = time.monotonic()
            self.on_first(signal.Signals(number).name)


def raise_on_signals() -> None:
    """Makes the first signal raise `Interrupted`."""

    def receive(number: int, frame: FrameType | None) -> None:
        pending = PendingSignal()
        handle_signals(pending.receive)
        pending.receive(number, frame)
        raise Interrupted(number)

    handle_signals(receive)


def handle_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in TERMINATION_SIGNALS:
        signal.signal(number, handler)


def end_without_exceptions() -> None:
    """Makes signals raise no exception: the process has done its work, and Python's exit handlers run."""
    recorder = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    if not isinstance(recorder, PendingSignal):  # else it knows the first signal
        handle_signals(PendingSignal().receive)


def signal_name(number: int) -> str:
    """'SIGKILL'; 'signal 40' for a real-time signal, most of which have no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def kill_children() -> None:
    """Kills the worker processes. They ignore SIGTERM, and a stopped or hanging one would block the exit."""
    for child in multiprocessing.active_children():
        child.kill()


def exit_now(status: int) -> NoReturn:
    """Exits without Python's exit handlers, which could block; the next process removes the temporary folders."""
    kill_children()
    os._exit(status)
