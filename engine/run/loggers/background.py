"""A logger in a thread of its own."""

from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import partial
from typing import Any

from engine.run.loggers.logger import LoggedRun, MetricLogger
from utils.errors import to_single_line
from utils.threads import DaemonPool

_MAX_WAITING_CALLS = 10_000
_LOST = "some values will be missing there"


class BackgroundLogger:
    """Calls a logger in a thread: training does not wait for a slow one, and does not end if one fails.

    A logger that cannot start is not called again. If a later call fails, its values are lost. One warning says so.

    Args:
        finish_seconds: `finish` waits this long for the calls that are left.
    """

    def __init__(
        self, name: str, logger: MetricLogger, warn: Callable[[str], None], finish_seconds: float = 30.0
    ) -> None:
        self.name, self.logger, self.finish_seconds = name, logger, finish_seconds
        self._record = warn
        self._thread = DaemonPool(1)
        self._has_warned = False
        self._cannot_start = False

    def start(self, run: LoggedRun) -> None:
        self._thread.submit(self._start, run)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._add(partial(self.logger.scalars, values, step))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        _, unfinished = wait(
            [self._thread.submit(self._call, partial(self.logger.finish, result))], self.finish_seconds
        )
        if unfinished:
            self._warn(f"has not taken the last values within {self.finish_seconds:g} s; they may be missing there")

    def _add(self, call: Callable[[], None]) -> None:
        if self._thread.num_waiting() >= _MAX_WAITING_CALLS:
            self._warn(f"does not keep up: {_MAX_WAITING_CALLS} calls wait; {_LOST}")
        else:
            self._thread.submit(self._call, call)

    def _start(self, run: LoggedRun) -> None:
        try:
            self.logger.start(run)
        except BaseException as error:  # a library may call sys.exit()
            self._cannot_start = True
            self._warn(f"{_describe(error)}; the run continues without it")

    def _call(self, call: Callable[[], None]) -> None:
        if self._cannot_start:
            return
        try:
            call()
        except BaseException as error:
            self._warn(f"{_describe(error)}; {_LOST}")

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._record(f"Warning: LOGGERS: {self.name}: {to_single_line(problem)}")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
