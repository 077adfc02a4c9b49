"""Background threads that delay no exit: calls with results, and a watchdog.

Python waits at exit for the threads of a `ThreadPoolExecutor`, and for all of its calls that have not begun. Use it for
work that must be complete, such as a checkpoint. Use `DaemonPool` for work that may be lost, such as a request to a
server, which may take TIMEOUT_SECONDS.
"""

import math
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

T = TypeVar("T")
_Calls = SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
TICK_SECONDS = 0.5


class DaemonPool:
    """Daemon threads that make the calls that are submitted, in their order. They end with the pool."""

    def __init__(self, num_threads: int) -> None:
        self._calls: _Calls = SimpleQueue()
        for _ in range(num_threads):
            Thread(target=_work, args=(self._calls,), daemon=True).start()
        self._end = weakref.finalize(self, _end, self._calls, num_threads)

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """The future result or exception of `function(*args)`."""
        future: Future[T] = Future()
        self._calls.put((future, function, args))
        return future

    def close(self) -> None:
        """Cancels the calls that have not begun, and waits for none."""
        self._end()


def _work(calls: _Calls) -> None:
    while call := calls.get():
        future, function, args = call
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
        del call, future, function, args  # an idle thread keeps no result in memory


def _end(calls: _Calls, num_threads: int) -> None:
    while not calls.empty():
        try:
            call = calls.get_nowait()
        except Empty:
            break
        if call:
            call[0].cancel()
    for _ in range(num_threads):
        calls.put(None)


class Watchdog:
    """Calls `on_timeout` once, in its thread, after more than `limit_seconds` without a call of `reset`.

    The thread only counts its ticks: the call that it watches may block, and Python cannot interrupt it. A process that
    was itself stopped, or had no processor, does not count its own pause.
    """

    def __init__(self, limit_seconds: float, on_timeout: Callable[[], None]) -> None:
        self.limit_seconds, self._on_timeout = limit_seconds, on_timeout
        self.seconds = 0.0
        self.has_expired = False
        self._stopped = Event()

    def start(self) -> None:
        Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def reset(self) -> None:
        """Counts from 0 again, also after a pause."""
        self.seconds = 0.0

    def pause(self) -> None:
        """Counts no time until `reset`."""
        self.seconds = -math.inf

    def _run(self) -> None:
        while not self._stopped.wait(TICK_SECONDS):
            self.seconds += TICK_SECONDS
            if self.seconds > self.limit_seconds:
                self.has_expired = True
                self._on_timeout()
                return
