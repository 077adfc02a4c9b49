"""Calls in background threads that delay no exit.

Python waits at exit for the threads of a `ThreadPoolExecutor`, and for all of its calls that have not begun. A request
to a server that is away may last as long as TIMEOUT_SECONDS.
"""

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
_Calls = SimpleQueue[tuple[Future, Callable, tuple] | None]


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
