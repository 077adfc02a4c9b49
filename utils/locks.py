"""Locks on files by `flock`."""

import errno
import fcntl
import functools
import logging
import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from utils.errors import Unavailable
from utils.files import own_file
from utils.status import RUN_LOG
from utils.threads import wait_for

_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def locked(path: Path, wait_seconds: float = math.inf, fix: str = "") -> Iterator[bool]:
    """Creates the file `path`, and locks it until the block or the process ends. The file names the process.

    Yields whether it is locked: a file system without `flock`, such as Lustre mounted without `-o flock`, has no locks;
    a warning says so.
    Raises UserError: another process has locked it for `wait_seconds`, or it is a link; OSError: the file cannot be
    created or locked.
    """
    operation = fcntl.LOCK_EX if wait_seconds == math.inf else fcntl.LOCK_EX | fcntl.LOCK_NB
    file = open(path, "a+b", buffering=0, opener=own_file)  # noqa: SIM115 - closed below
    has_locks = True

    def try_lock() -> bool:
        nonlocal file, has_locks
        try:
            fcntl.flock(file, operation)
        except (BlockingIOError, PermissionError):  # EAGAIN, EACCES
            return False
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                has_locks = False
                _warn_without_locks(path.parent)
                return True
            if error.errno != errno.ESTALE:
                raise
            file.close()  # another host has removed it
            file = open(path, "a+b", buffering=0, opener=own_file)  # noqa: SIM115 - closed below
            return False
        return True

    try:
        if not (try_lock() or wait_for(try_lock, wait_seconds)):
            holder = os.pread(file.fileno(), 200, 0).decode(errors="replace").strip() or "another process"
            raise Unavailable(f"{path.parent}: is in use by {holder}; {fix}")
        with suppress(OSError):  # a full disk
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield has_locks
    finally:
        file.close()


@functools.cache
def _warn_without_locks(folder: Path) -> None:
    problem = "its file system has no flock, so nothing is locked"
    logging.getLogger(RUN_LOG).warning(f"{folder}: {problem}; let one run at a time write there")
