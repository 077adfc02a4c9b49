"""Background threads that delay no exit, and waits with a limit.

Python waits at exit for the threads of a `ThreadPoolExecutor`, and for all of its calls that have not begun. Use it for
work that must be complete, such as a checkpoint. Use `DaemonPool` for work that may be lost, such as a request to a
server, which may take TIMEOUT_SECONDS.
"""

import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from utils.errors import print_escaped

T = TypeVar("T")
_Calls = SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]


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
    with suppress(Empty):
        while call := calls.get_nowait():
            call[0].cancel()
    for _ in range(num_threads):
        calls.put(None)


_QUIET_SECONDS = 10.0
_POLL_SECONDS = 0.2


def wait_for(is_true: Callable[[], object], limit_seconds: float, describe: Callable[[], str] | None = None) -> bool:
    """Returns whether the condition became true within the limit; an OSError, such as a stale handle, is false.

    describe: the line to print if it takes long.
    """
    started = time.monotonic()
    while True:
        with suppress(OSError):
            if is_true():
                return True
        seconds = time.monotonic() - started
        if seconds >= limit_seconds:
            return False
        if seconds > _QUIET_SECONDS and describe:
            print_escaped(describe(), sys.stderr)
            describe = None
        time.sleep(min(_POLL_SECONDS, limit_seconds - seconds))
