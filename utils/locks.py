"""Locks on files: `flock`, or a lease on a file system without it, such as Lustre mounted without `-o flock`."""

import errno
import fcntl
import logging
import math
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from utils.errors import Unavailable, print_error
from utils.files import own_file
from utils.signals import exit_now
from utils.status import RUN_LOG
from utils.system import read_stat
from utils.threads import wait_for

_EXPIRY_SECONDS, _RENEWAL_SECONDS = 300.0, 30.0
_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def locked(path: Path, wait_seconds: float = math.inf, fix: str = "", is_essential: bool = False) -> Iterator[None]:
    """Creates the file `path`, and locks it until the block or the process ends. The file names the process.

    is_essential: the process ends if another one takes over its lease, which expires while the process is suspended.
    The lease of another host is waited for until it expires: its process may have been killed.
    Raises UserError: another process has locked it for `wait_seconds`, or it is a link; OSError: the file cannot be
    created or locked.
    """
    lease = _Lease(path, is_essential)
    operation = fcntl.LOCK_EX if wait_seconds == math.inf else fcntl.LOCK_EX | fcntl.LOCK_NB
    file = open(path, "a+b", buffering=0, opener=own_file)  # noqa: SIM115 - closed below

    def try_lock() -> bool:
        nonlocal file
        try:
            fcntl.flock(file, operation)
        except (BlockingIOError, PermissionError):  # EAGAIN, EACCES
            return False
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return lease.try_acquire()
            if error.errno != errno.ESTALE:
                raise
            file.close()  # another host has removed it
            file = open(path, "a+b", buffering=0, opener=own_file)  # noqa: SIM115 - closed below
            return False
        return True

    def holder() -> str:
        return os.pread(file.fileno(), 200, 0).decode(errors="replace").strip() or "another process"

    try:
        is_locked = try_lock() or wait_for(try_lock, wait_seconds)
        if not is_locked and is_essential and lease.is_remote:
            waits = f"{path.parent}: waits until {holder()} releases it or its lease expires"
            is_locked = wait_for(try_lock, _EXPIRY_SECONDS + _RENEWAL_SECONDS, lambda: waits)
        if not is_locked:
            raise Unavailable(f"{path.parent}: is in use by {holder()}; {fix}")
        with suppress(OSError):  # a full disk
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        lease.release()
        file.close()


class _Lease:
    """A file beside `path` with a name of its own for each process. A thread renews its time.

    At most one process has the lease: each creates its file, and then lists the folder. Of two, the one that lists
    later sees the file of the other: a client of NFS reads a folder again after it has changed it. Both may give way;
    they try again after random times. An expired file is removed by its own name: with one name for all, a slow process
    would remove the file of a faster one, which has just taken over.
    """

    def __init__(self, path: Path, is_essential: bool) -> None:
        self.path, self.is_essential = path, is_essential
        self.is_remote = False  # whether a process has it that is not visible here, such as one of another host
        self._prefix, pid = f".{path.name.lstrip('.')}.lease.", os.getpid()
        identity = f"{socket.gethostname()}.{_namespace()}.{pid}.{read_stat(pid)[2]}.{secrets.token_hex(4)}"
        self._own, self._released = path.with_name(self._prefix + identity), Event()

    def try_acquire(self) -> bool:
        if not self._is_taken():
            self._own.touch()
            if not self._is_taken():
                Thread(target=self._renew, daemon=True).start()
                if self.is_essential:
                    logging.getLogger(RUN_LOG).warning(
                        f"{self.path.parent}: its file system has no flock; locked by the lease {self._own.name}"
                    )
                return True
            time.sleep(secrets.randbelow(1000) / 1000)
        self._own.unlink(missing_ok=True)
        return False

    def release(self) -> None:
        self._released.set()
        with suppress(OSError):
            self._own.unlink()

    def _renew(self) -> None:
        while not self._released.wait(_RENEWAL_SECONDS):
            try:
                os.utime(self._own)
            except OSError as error:
                is_lost = error.errno in (errno.ENOENT, errno.ESTALE) and not self._released.is_set()
                if is_lost and self.is_essential:
                    reason = f"this process was suspended or cut off for {_EXPIRY_SECONDS:g} s and has lost its lease"
                    print_error(f"{self.path.parent}: {reason}; it ends without saving")
                    exit_now(1)

    def _is_taken(self) -> bool:
        """Looks for leases of other processes; removes those that have expired or whose process has ended."""
        self.path.touch()
        now, is_taken = self.path.stat().st_mtime, False  # by the clock of the file server
        leases = {file for file in self.path.parent.iterdir() if file.name.startswith(self._prefix)}
        for file in leases - {self._own}:
            with suppress(FileNotFoundError, ValueError):  # a name that is no lease's
                _, namespace, pid, start_time, _ = file.name.removeprefix(self._prefix).rsplit(".", 4)
                is_visible = bool(namespace) and namespace == _namespace()
                state, _, started = read_stat(pid)
                has_ended = is_visible and (state in ("", "Z", "X") or started != start_time)
                if has_ended or now - file.stat().st_mtime > _EXPIRY_SECONDS:
                    file.unlink()
                else:
                    is_taken, self.is_remote = True, not is_visible
        return is_taken


def _namespace() -> str:
    """Names the process ids that this user can see in /proc; empty where it does not show this process."""
    with suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):  # it is of another namespace
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}-{os.getuid()}"
    return ""
