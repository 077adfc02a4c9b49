"""Waits for a condition with a limit, and lines about long waits."""

import math
import sys
import time
from collections.abc import Callable
from ctypes import c_double

from utils.errors import print_escaped

_QUIET_SECONDS = 10.0
_POLL_SECONDS = 0.2
_SILENT_SECONDS, _TELL_SECONDS = 3.0, 30.0
_told_at = c_double(-math.inf)  # when `tell_wait` printed its last line


def wait_for(is_true: Callable[[], object], limit_seconds: float, describe: Callable[[], str] | None = None) -> bool:
    """Returns whether the condition became true within the limit; an OSError, such as a stale handle, is false.

    describe: the line to print if it takes long.
    """
    started = time.monotonic()
    while True:
        try:
            if is_true():
                return True
        except OSError:
            pass
        seconds = time.monotonic() - started
        if seconds >= limit_seconds:
            return False
        if seconds > _QUIET_SECONDS and describe:
            print_escaped(describe(), sys.stderr)
            describe = None
        time.sleep(min(_POLL_SECONDS, limit_seconds - seconds))


def share_waits(told_at: c_double | None = None) -> c_double:
    """The time of the last line, in shared memory. Each loading worker calls it with the result of its rank's call."""
    from multiprocessing.sharedctypes import RawValue  # imported late: it takes time, and -h needs none of it

    global _told_at
    _told_at = RawValue(c_double, _told_at.value) if told_at is None else told_at
    return _told_at


def tell_wait(message: str, waited_seconds: float) -> None:
    """Prints a line about a long wait, one in half a minute for a rank and its loading workers together.

    There is no lock: at worst, two threads print at once.
    """
    if waited_seconds >= _SILENT_SECONDS and time.monotonic() - _told_at.value > _TELL_SECONDS:
        _told_at.value = time.monotonic()
        print(f"----- {message}", file=sys.stderr, flush=True)
