"""Whether files and folders have changed since they were read, as their time stamps tell."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_SETTLED_NS = (
    2_000_000_000  # a younger stamp can be that of a later change too: clocks tick, and differ from a server's
)
_LARGEST = 2**63 - 1

Stamp = tuple[int, int, int, int]


class Stamps:
    """Of all that was read to find something out. Each is to be taken before its file or folder is read."""

    def __init__(self) -> None:
        self._since_ns = time.time_ns()
        self._taken: dict[str, Stamp | None] = {}

    def take(self, path: Path | str) -> None:
        path = os.path.abspath(path)
        if path not in self._taken:
            self._taken[path] = _stamp(path)

    def paths(self) -> list[str]:
        return list(self._taken)

    def values(self) -> np.ndarray | None:
        """int64 (N, 4), a row for each path; None if a change could have gone unnoticed."""
        stamps = list(self._taken.values())
        if any(stamp is None or max(stamp[2:]) > self._since_ns - _SETTLED_NS for stamp in stamps):
            return None
        return np.array(stamps, dtype=np.int64).reshape(-1, 4)


def still_hold(paths: Iterable[str], stamps: np.ndarray) -> bool:
    """Whether all paths bear the stamps (N, 4) that they bore."""
    return all(_stamp(path) == tuple(stamp) for path, stamp in zip(paths, stamps.tolist(), strict=True))


def _stamp(path: str) -> Stamp | None:
    """Of what a link leads to; None where there is nothing. The change time is not set back by rsync and tar."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a zero byte is in no name
        return None
    return found.st_ino & _LARGEST, found.st_size, found.st_mtime_ns, found.st_ctime_ns
