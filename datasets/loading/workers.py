"""Loading processes: how many, how they start and end, and what is said of one that does not answer.

They are started by a server process, which Python calls a fork server, and belong to it.
"""

import atexit
import ctypes
import errno
import functools
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any

from torch.utils.data import DataLoader

from utils.errors import UserError
from utils.signals import TERMINATION_SIGNALS, kill_children

POLL_SECONDS = 5.0  # between two looks for workers that have died
START_SECONDS = 30.0  # more, until the first batch: workers import torch
DEATH_SECONDS = 1.0  # after which it is known that one has
_MOST_WORKERS = 16
SHARED_MEMORY_CURE = "enlarge /dev/shm (docker run --shm-size=8g), lower -num_workers, or load without: -num_workers=0"
_CAUSES = {
    signal.SIGKILL: "as when host memory is short; lower -num_workers, or give the job more host memory",
    signal.SIGBUS: f"as when /dev/shm is full; {SHARED_MEMORY_CURE}",
}


def default_num_workers(local_world_size: int) -> int:
    """One for each core of this rank's share, of which there are `local_world_size` on this host."""
    return max(1, min(_MOST_WORKERS, len(os.sched_getaffinity(0)) // local_world_size))


def worker_context() -> multiprocessing.context.BaseContext:
    """Workers from a server process without threads: a fork of a process that has some can hang for ever.

    The signals that a terminal or a launcher sends to all processes are for the rank, which may want more batches
    before it ends. The server inherits that they are blocked, and the workers from it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["datasets.loading.loader"])
    resource_tracker.ensure_running()  # or the server starts it first, and with it unblocks them
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    forkserver.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    return context


def exit_with_rank(worker: int) -> None:
    """Called in a worker: lets it end with its server, even while it is stopped, and the server with the rank."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    os.close(forkserver._forkserver._forkserver_alive_fd)  # while any process has it, the server goes on


@functools.cache
def _kill_workers_at_exit() -> None:
    """Python, when it exits, waits for its workers, and for one that hangs without end.

    To be called when workers have started: what was registered last is done first.
    """
    atexit.register(kill_children)


def _kill(workers: Iterable[multiprocessing.Process]) -> None:
    for worker in workers:
        worker.kill()


class _Watch:
    """Ends workers that are waited for too long by someone who cannot notice it.

    To receive a batch its worker must pass over the memory it lies in; of one that is stopped just then, torch waits
    without end.
    """

    def __init__(self, workers: list[multiprocessing.Process], limit_seconds: float) -> None:
        self.workers, self.limit_seconds = workers, limit_seconds
        self.waiting_since = math.inf
        self.has_killed = False
        self.finished = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def waited(self) -> float:
        return time.monotonic() - self.waiting_since

    def _look(self) -> None:
        while not self.finished.wait(1.0):
            if self.waited() > self.limit_seconds + POLL_SECONDS:
                self.has_killed = True
                _kill(self.workers)
                return


def iter_with_timeout(batches: DataLoader, limit_seconds: float) -> Iterator[Any]:
    """What the workers of `batches` read, in order. Left before the last of it, it ends them.

    Raises:
        UserError: a worker was killed, none has answered for `limit_seconds`, or the system has no more to give.
    """
    try:
        iterator = iter(batches)
    except (OSError, EOFError) as error:
        otherwise = f"loading workers cannot start ({error!r}); load without: -num_workers=0"
        raise UserError(_shortage(error) or otherwise) from error
    _kill_workers_at_exit()
    watch = _Watch(iterator._workers, limit_seconds + START_SECONDS)  # torch says that one died, but not of what
    is_exhausted = False
    try:
        while True:
            watch.waiting_since = time.monotonic()
            batch = _next(iterator, watch)
            watch.limit_seconds = limit_seconds
            watch.waiting_since = math.inf
            yield batch
    except StopIteration:
        is_exhausted = True
    finally:
        watch.finished.set()
        if not is_exhausted:
            _kill(watch.workers)


def _next(iterator: Iterator[Any], watch: _Watch) -> Any:
    while True:
        try:
            return next(iterator)
        except StopIteration:
            raise
        except Exception as error:
            timed_out = str(error).startswith("DataLoader timed out")
            if timed_out and watch.waited() < watch.limit_seconds:
                continue
            problem = _shortage(error) or (_silence(watch) if timed_out or watch.has_killed else _death(watch))
            if problem is None:
                raise  # what a worker raised, with its traceback
            raise UserError(problem) from error


def _shortage(error: Exception) -> str | None:
    code = getattr(error, "errno", None)
    if code == errno.EMFILE or str(error).startswith("Too many open files"):
        return "too many open files for loading workers; raise the limit (ulimit -n 65536), or lower -num_workers"
    return f"no shared memory is left for loading workers; {SHARED_MEMORY_CURE}" if code == errno.ENOSPC else None


def _silence(watch: _Watch) -> str:
    return (
        f"no loading worker has answered for {watch.limit_seconds:.0f} s; see that the disk of DATA.DATA_PATH answers, "
        "or raise TIMEOUT_SECONDS"
    )


def _death(watch: _Watch) -> str | None:
    """None if all are alive."""
    connection.wait([worker.sentinel for worker in watch.workers], DEATH_SECONDS)
    dead = [worker for worker in watch.workers if not worker.is_alive()]
    if not dead:
        return None
    worker, status = dead[0].pid, dead[0].exitcode
    if status >= 0:
        return f"loading worker {worker} ended with status {status}; to see more, load without: -num_workers=0"
    ended_by = signal.Signals(-status)
    cause = _CAUSES.get(ended_by, "perhaps over a file; to see more, load without: -num_workers=0")
    return f"loading worker {worker} was ended by {ended_by.name}, {cause}"
