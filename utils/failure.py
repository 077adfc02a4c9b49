"""Ends all processes of a run when one of them fails, is killed, is stopped or hangs.

The processes share a key-value store. The first one to fail increments a counter in it. A thread in each process polls
the counter and then writes that its process is alive, so that the failing process can name a process that is not.
"""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from utils.errors import UserError
from utils.signals import TERMINATION_SIGNALS, exit_now
from utils.status import record_run_end

POLL_SECONDS = 0.5
RESPONSE_SECONDS = 2.0  # a live process responds within this time
LAUNCHER_SECONDS = 4.0  # a launcher terminates the healthy processes of a failed run within this time
FORCE_SECONDS = 8.0  # a healthy process of a failed run exits by itself after this time
_FAILURES = "failures"
_PEER_FAILURE = re.compile(
    r"(closed|reset) by peer|broken pipe|remote process exit|timed out waiting \d+ms|collective operation timeout",
    re.IGNORECASE,
)


@contextmanager
def abort_together(store: dist.Store) -> Iterator[None]:
    """If the block raises in one process, all other processes exit within seconds."""
    rank = int(os.environ["RANK"])
    store.set(f"process {rank}", f"process {os.getpid()} on {socket.gethostname()}")
    finished = threading.Event()
    watcher = threading.Thread(target=_exit_on_failure, args=(store.clone(), rank, finished), daemon=True)
    watcher.start()
    try:
        yield
    except BaseException as error:
        _signal_failure(store, rank, error)
        raise
    finished.set()
    watcher.join()


def _exit_on_failure(store: dist.Store, rank: int, finished: threading.Event) -> None:
    """Exits when another process has failed. A process that waits for its GPU does not handle signals."""
    failed = False
    while not failed and not finished.wait(POLL_SECONDS):
        try:
            failed = store.check([_FAILURES])
            if failed:
                store.set(f"alive {rank}", "")
        except dist.DistError:  # the process that owns the store has ended
            failed = True
    if not finished.wait(FORCE_SECONDS):
        exit_now(1)


def _signal_failure(store: dist.Store, rank: int, error: BaseException) -> None:
    """Tells the other processes to exit. Returns if this process failed first and knows the cause; exits otherwise."""
    terminated = threading.Event()
    for number in TERMINATION_SIGNALS:  # a signal of the launcher must not stop the diagnosis
        signal.signal(number, lambda *_: terminated.set())
    try:
        is_first = store.add(_FAILURES, 1) == 1
        store.set(f"gave up {rank}", "")
    except dist.DistError:  # the process that owns the store has ended
        is_first = False
    if not isinstance(error, Exception):
        return
    peer_failed = is_peer_failure(error)
    if is_first and not peer_failed:
        if rank == 0:
            time.sleep(2 * POLL_SECONDS)  # this process may own the store; the others must poll it first
        return
    message = _find_dead_ranks(store) if peer_failed else None
    if message:
        record_run_end("failed", message=message)
    terminated.wait(LAUNCHER_SECONDS)
    if is_first and message and not terminated.is_set():
        raise UserError(message) from error
    raise SystemExit(1)


def is_peer_failure(error: Exception) -> bool:
    """Whether the error only reports that another process has ended or does not respond."""
    return isinstance(error, RuntimeError) and _PEER_FAILURE.search(str(error)) is not None


def _find_dead_ranks(store: dist.Store) -> str | None:
    """A message that names the ranks that do not respond; kills those of this launcher.

    A healthy process has given up waiting, as this one has. If all have given up, the result is None: the first process
    to fail reports the cause.
    """
    time.sleep(RESPONSE_SECONDS)
    ranks = range(int(os.environ["WORLD_SIZE"]))
    try:
        gave_up = [rank for rank in ranks if store.check([f"gave up {rank}"])]
        dead = [rank for rank in ranks if rank not in gave_up and not store.check([f"alive {rank}"])]
        silent = dead or [rank for rank in ranks if rank not in gave_up]
        names = [f"rank {rank} ({store.get(f'process {rank}').decode()})" for rank in silent]
    except dist.DistError:
        return "rank 0 or the launcher ended without an error message; possible cause: out of host memory"
    for rank in silent:
        _kill_sibling(store.get(f"process {rank}").decode())
    if not names:
        return None
    ended = "ended without an error message or is stopped; possible cause: out of host memory"
    return f"{' and '.join(names)} {ended if dead else 'does not respond; check its file system'}"


def _kill_sibling(name: str) -> None:
    """Kills a stopped or hanging process if the launcher of this process started it on this host."""
    _, pid, _, host = name.split(maxsplit=3)
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return
    if host == socket.gethostname() and parent == os.getppid():
        os.kill(int(pid), signal.SIGKILL)
