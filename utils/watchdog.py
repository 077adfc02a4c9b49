"""A watchdog for a key-value store that does not answer: it ends a process whose network is cut."""

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

TICK_SECONDS = 0.5
_MAX_TICK_SECONDS = 2.0


class Watchdog:
    """Calls `on_silence` in its thread when `answered` was not called for more than `limit_seconds`.

    The thread only reads a clock: a call into a store whose network is cut blocks for minutes, and holds the thread
    that makes it. A tick counts at most two seconds, so that a process which was itself stopped, or had no processor,
    does not take its own pause for a silence of the store.
    """

    def __init__(self, limit_seconds: float, on_silence: Callable[[], None]) -> None:
        self.limit_seconds, self._on_silence = limit_seconds, on_silence
        self.silent_seconds = 0.0
        self._finished = Event()

    def start(self) -> None:
        Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._finished.set()

    def answered(self) -> None:
        self.silent_seconds = 0.0

    def tick(self, seconds: float) -> None:
        """Called after each `seconds`."""
        self.silent_seconds += seconds

    def _run(self) -> None:
        before = time.monotonic()
        while not self._finished.wait(TICK_SECONDS):
            now = time.monotonic()
            self.tick(min(now - before, _MAX_TICK_SECONDS))
            before = now
            if self.silent_seconds > self.limit_seconds:
                self._on_silence()
                return


def run_briefly(*actions: Callable[[], object], seconds: float) -> None:
    """Runs the actions side by side, and returns when all have ended or after `seconds`.

    A write to a network file system blocks while the network is cut. Exceptions are ignored.
    """
    threads = [Thread(target=_quietly, args=(action,), daemon=True) for action in actions]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _quietly(action: Callable[[], object]) -> None:
    with suppress(Exception):
        action()
