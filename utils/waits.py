"""Waits for a condition with a limit."""

import sys
import time
from collections.abc import Callable

from utils.errors import print_escaped

_QUIET_SECONDS = 10.0
_POLL_SECONDS = 0.2


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
