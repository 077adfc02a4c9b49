"""Loading workers: their number and end, and errors about workers that fail."""

import atexit
import ctypes
import errno
import functools
import os
import shutil
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import DataLoader

from utils.errors import Unavailable
from utils.processes.launch import end_with_parent
from utils.signals import SIGNAL_NAMES, kill_children
from utils.system import CoreShare
from utils.threads import Watchdog, share_waits
from utils.torch_compat import (
    close_fork_server_pipe,
    loader_workers,
    pinning_has_ended,
    release_loader_event,
    start_loader,
)

POLL_SECONDS = 5.0  # between two checks for workers that have died
START_SECONDS = 30.0  # additional time for the first batch: workers import torch
_DEATH_SECONDS = 1.0  # until the death of a worker is visible
_MAX_WORKERS = 16
_MAIN_PROCESS_CORES = 2
SHARED_MEMORY_FIX = "enlarge /dev/shm (docker run --shm-size), lower -num_workers, or use no workers: -num_workers=0"
_CAUSES: dict[int, str] = {
    signal.SIGKILL: "probably out of host memory; lower -num_workers, or give the job more host memory",
    signal.SIGBUS: f"probably because /dev/shm is full; {SHARED_MEMORY_FIX}",
}
_SHARED_MEMORY = "/dev/shm"  # macOS has none
_MIN_SHARED_BYTES = 2**20  # per worker: its semaphores, and a batch of a few images
_WORKER_FILES, _OTHER_FILES = 8, 16  # descriptors: pipes and batches of a worker; checkpoints and logs
_PINNING_ENDED = "the thread that pins batches has ended; its error is above, probably too many open files"
_FILES_FIX = "raise the limit (ulimit -n 65536), or lower -num_workers"


def default_num_workers(share: CoreShare, on_gpu: bool) -> int:
    """One worker for each core of this rank's share.

    With a GPU, two cores remain for the threads of the rank, which launch kernels and pin batches. Without one, the
    model and the workers share all cores.
    """
    return max(1, min(_MAX_WORKERS, share.cores - _MAIN_PROCESS_CORES if on_gpu else share.cores))


def start_worker(told_at: ctypes.c_double, worker: int) -> None:
    """Runs in a worker: makes it exit with its server, even if it is stopped, and the server with the rank."""
    share_waits(told_at)
    end_with_parent(signal.SIGKILL)
    close_fork_server_pipe()


@functools.cache
def _kill_workers_at_exit() -> None:
    """Kills workers that hang, at exit: Python would wait for them without a limit.

    Call it after the workers have started: exit functions run in reverse order.
    """
    atexit.register(kill_children)


def iter_with_timeout(batches: DataLoader[Any], limit_seconds: float) -> Iterator[Any]:
    """Starts the workers of a DataLoader, or restarts the workers of its last iteration, and returns its batches in
    order. If not exhausted, it kills the workers.

    Raises:
        UserError: a worker was killed, none has answered for `limit_seconds`, batches are no longer pinned, or a system
            resource is exhausted.
    """
    wait = _WorkerWait()
    try:
        _check_limits(batches.num_workers)
        with wait.limited(limit_seconds):
            iterator = start_loader(batches, wait.receive)
    except (OSError, EOFError) as error:
        otherwise = f"loading workers cannot start ({error!r}); use no workers: -num_workers=0"
        raise Unavailable(_exhausted_resource(error) or otherwise) from error
    wait.attach(iterator)
    _kill_workers_at_exit()
    return _with_timeout(iterator, wait, limit_seconds)


def _check_limits(workers: int) -> None:
    """Raises OSError before the first worker starts: one that loses its rank while it starts prints a traceback."""
    with ExitStack() as reserved:
        for _ in range(_WORKER_FILES * workers + _OTHER_FILES):
            reserved.enter_context(open(os.devnull))
    total, _, free = shutil.disk_usage(_SHARED_MEMORY) if os.path.exists(_SHARED_MEMORY) else (0, 0, 0)
    if total and free < _MIN_SHARED_BYTES * workers:  # 0: without a limit
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _WorkerWait:
    """Every wait for a message of a worker: a batch, or the answer of one that starts again.

    To receive a message, torch waits without a limit once it has begun. A worker that is stopped at that moment would
    block the rank forever: the watchdog kills the workers.
    """

    def __init__(self) -> None:
        self._workers = list[BaseProcess]()
        self._death: str | None = None

    @contextmanager
    def limited(self, seconds: float) -> Iterator[Watchdog]:
        """The watchdog of the waits in the block; the workers are killed if it raises."""
        self._watchdog = Watchdog(seconds + POLL_SECONDS, self._expire)
        self._watchdog.start()
        try:
            yield self._watchdog
        except BaseException:
            self._kill()
            raise
        finally:
            self._watchdog.stop()

    def attach(self, iterator: Any) -> None:
        self._iterator, self._workers = weakref.ref(iterator), loader_workers(iterator)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.kill()
        if self._workers and (iterator := self._iterator()):  # else it has ended with its workers
            release_loader_event(iterator)

    def _expire(self) -> None:
        self._death = _death_message(self._workers)
        self._kill()

    def receive(self, iterator: Any, receive: Callable[[], Any]) -> Any:
        """The next message; `receive` raises an error after POLL_SECONDS without one."""
        self.attach(iterator)
        limit_seconds = self._watchdog.limit_seconds - POLL_SECONDS
        while True:
            try:
                return receive()
            except Exception as error:
                timed_out = str(error).startswith("DataLoader timed out")
                if timed_out and pinning_has_ended(iterator):
                    raise Unavailable(f"{_PINNING_ENDED}; {_FILES_FIX}") from error
                if timed_out and self._watchdog.seconds < limit_seconds:
                    continue
                unanswered = (
                    f"no loading worker has answered for {limit_seconds:.0f} s; check that the disk of DATA.DATA_PATH "
                    "responds, or raise TIMEOUT_SECONDS"
                )
                problem = _exhausted_resource(error) or self._death
                problem = problem or (
                    unanswered if timed_out or self._watchdog.has_expired else _death_message(self._workers)
                )
                if problem is None:
                    raise
                raise Unavailable(problem) from error


def _with_timeout(iterator: Iterator[Any], wait: _WorkerWait, limit_seconds: float) -> Iterator[Any]:
    with wait.limited(limit_seconds + START_SECONDS) as watchdog:
        watchdog.reset()
        for batch in iterator:
            watchdog.pause()
            watchdog.limit_seconds = limit_seconds + POLL_SECONDS
            yield batch
            watchdog.reset()


def _exhausted_resource(error: Exception) -> str | None:
    code = getattr(error, "errno", None)
    if code == errno.EMFILE or str(error).startswith("Too many open files"):
        return f"too many open files for loading workers; {_FILES_FIX}"
    return f"shared memory is full: no room for loading workers; {SHARED_MEMORY_FIX}" if code == errno.ENOSPC else None


def _death_message(workers: list[BaseProcess]) -> str | None:
    """Describes the death of a worker; None if all are alive. torch reports that a worker died, but not why."""
    connection.wait([worker.sentinel for worker in workers], _DEATH_SECONDS)
    dead = [(worker.pid, status) for worker in workers if (status := worker.exitcode) is not None]
    if not dead:
        return None
    worker, status = dead[0]
    if status >= 0:
        return f"loading worker {worker} exited with status {status}; for details, use no workers: -num_workers=0"
    cause = _CAUSES.get(-status, "perhaps by a damaged file; for details, use no workers: -num_workers=0")
    return f"loading worker {worker} was killed by {SIGNAL_NAMES.get(-status, f'signal {-status}')}, {cause}"
