"""Lines about waits for a server: one in half a minute for a rank and its loading workers together."""

import math
import sys
import time
from ctypes import c_double
from multiprocessing.sharedctypes import RawValue

_SILENT_SECONDS, _TELL_SECONDS = 3.0, 30.0
_told_at = c_double(-math.inf)  # when the last line was printed


def share_waits(told_at: c_double | None = None) -> c_double:
    """The time of the last line, in shared memory. Each loading worker calls it with the result of its rank's call."""
    global _told_at
    _told_at = RawValue(c_double, _told_at.value) if told_at is None else told_at
    return _told_at


def tell_wait(message: str, waited_seconds: float) -> None:
    """Prints a line to standard error if the wait is long. There is no lock: at worst, two threads print at once."""
    if waited_seconds >= _SILENT_SECONDS and time.monotonic() - _told_at.value > _TELL_SECONDS:
        _told_at.value = time.monotonic()
        print(f"----- {message}", file=sys.stderr, flush=True)
