"""A logger in a thread of its own."""

import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from engine.run.loggers.logger import LoggedRun, MetricLogger
from utils.errors import to_single_line

_MAX_WAITING_CALLS = 10_000


class BackgroundLogger:
    """Calls a logger in a thread: training does not wait for a slow one, and does not end if one fails.

    A logger that cannot start is not called again. Values that it cannot log later are lost. One warning says so.

    Args:
        finish_seconds: `finish` waits this long for the calls that are left.
    """

    def __init__(
        self, name: str, logger: MetricLogger, warn: Callable[[str], None], finish_seconds: float = 30.0
    ) -> None:
        self.name, self.logger, self.finish_seconds = name, logger, finish_seconds
        self._record = warn
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(_MAX_WAITING_CALLS)
        self._has_warned = False
        self._thread: threading.Thread | None = None

    def start(self, run: LoggedRun) -> None:
        self._thread = threading.Thread(target=self._work, args=(run,), name=self.name, daemon=True)
        self._thread.start()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._add(partial(self.logger.scalars, values, step))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._add(partial(self.logger.finish, result))
        self._add(None)
        self._thread.join(self.finish_seconds)
        if self._thread.is_alive():
            self._warn(f"has not taken the last values within {self.finish_seconds:g} s; they may be missing there")

    def _add(self, call: Callable[[], None] | None) -> None:
        if not self._thread.is_alive():  # it could not start
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._warn(f"does not keep up: {_MAX_WAITING_CALLS} calls wait; some values will be missing there")

    def _work(self, run: LoggedRun) -> None:
        try:
            self.logger.start(run)
        except BaseException as error:  # a library may call sys.exit()
            self._warn(f"{_describe(error)}; the run continues without it")
            return
        while call := self._calls.get():
            try:
                call()
            except BaseException as error:
                self._warn(f"{_describe(error)}; some values will be missing there")

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._record(f"Warning: LOGGERS: {self.name}: {to_single_line(problem)}")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
