"""How the processes of a run end together, however one of them ends: by an error, killed, stopped or hanging.

They leave notes in the store that they met at. Who fails first counts itself there; a thread in each process looks for
that and answers a roll call, so that of a process which cannot speak the others can say which it was.
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
from utils.signals import TERMINATION_SIGNALS, kill_children
from utils.status import record_run_end

POLL_SECONDS = 0.5
ROLL_CALL_SECONDS = 2.0  # within which a process that lives has answered
LAUNCHER_SECONDS = 4.0  # within which a launcher ends the healthy processes of a failed run
FORCE_SECONDS = 8.0  # after which they end themselves, wherever they hang
_FAILURES = "failures"
_NO_ANSWER = re.compile(
    r"(closed|reset) by peer|broken pipe|remote process exit|timed out waiting \d+ms|collective operation timeout",
    re.IGNORECASE,
)


@contextmanager
def abort_together(store: dist.Store) -> Iterator[None]:
    """Whatever ends the block in one process soon ends the others, wherever they are in theirs."""
    rank = int(os.environ["RANK"])
    store.set(f"process {rank}", f"process {os.getpid()} on {socket.gethostname()}")
    finished = threading.Event()
    watch = threading.Thread(target=_watch, args=(store.clone(), rank, finished), daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        _end_all(store, rank, error)
        raise
    finished.set()
    watch.join()


def _watch(store: dist.Store, rank: int, finished: threading.Event) -> None:
    """Ends this process when another has failed: one that waits on its GPU for the dead one hears no signal."""
    failed = False
    while not failed and not finished.wait(POLL_SECONDS):
        try:
            failed = store.check([_FAILURES])
            if failed:
                store.set(f"alive {rank}", "")
        except dist.DistError:  # the process that holds the store has ended
            failed = True
    if not finished.wait(FORCE_SECONDS):
        kill_children()
        os._exit(1)


def _end_all(store: dist.Store, rank: int, error: BaseException) -> None:
    """Tells the others to end. Returns in the process that failed first and knows why; one that followed ends here."""
    launcher_ends_us = threading.Event()
    for number in TERMINATION_SIGNALS:  # nothing is left to save; but what is known is still to be told
        signal.signal(number, lambda *_: launcher_ends_us.set())
    try:
        is_first = store.add(_FAILURES, 1) == 1
        store.set(f"gave up {rank}", "")
    except dist.DistError:  # the process that holds the store has ended
        is_first = False
    if not isinstance(error, Exception):
        return
    unanswered = is_peer_failure(error)
    if is_first and not unanswered:
        if rank == 0:
            time.sleep(2 * POLL_SECONDS)  # it may hold the store, from which the others are to hear of this
        return
    message = _roll_call(store) if unanswered else None
    if message:
        record_run_end("failed", message=message)
    launcher_ends_us.wait(LAUNCHER_SECONDS)
    if is_first and message and not launcher_ends_us.is_set():
        raise UserError(message) from error
    raise SystemExit(1)


def is_peer_failure(error: Exception) -> bool:
    """Whether it says no more than that another process is gone or silent."""
    return isinstance(error, RuntimeError) and _NO_ANSWER.search(str(error)) is not None


def _roll_call(store: dist.Store) -> str | None:
    """Which process does not answer; one of this launcher's that lives on regardless is killed.

    Of those that live, the innocent have given up waiting, as this one has. None where all have: each waits for
    another, and the first to fail has said why.
    """
    time.sleep(ROLL_CALL_SECONDS)
    ranks = range(int(os.environ["WORLD_SIZE"]))
    try:
        gave_up = [rank for rank in ranks if store.check([f"gave up {rank}"])]
        dead = [rank for rank in ranks if rank not in gave_up and not store.check([f"alive {rank}"])]
        silent = dead or [rank for rank in ranks if rank not in gave_up]
        who = [f"rank {rank} ({store.get(f'process {rank}').decode()})" for rank in silent]
    except dist.DistError:
        return "rank 0, or the launcher, ended without a word; was host memory short?"
    for rank in silent:
        _kill_sibling(store.get(f"process {rank}").decode())
    if not who:
        return None
    ending = "has ended without a word, or is stopped; was host memory short?" if dead else "hangs; look at its disk"
    return f"{' and '.join(who)} {ending}"


def _kill_sibling(name: str) -> None:
    """A process of the same launcher on this host, so that a stopped or hanging one does not outlive its run."""
    _, pid, _, host = name.split(maxsplit=3)
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return
    if host == socket.gethostname() and parent == os.getppid():
        os.kill(int(pid), signal.SIGKILL)
