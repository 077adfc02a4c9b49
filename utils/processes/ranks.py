"""Starts the ranks of a run on this host, passes signals on to them, and finds out how they ended."""

import math
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from os import environ
from pathlib import Path
from types import FrameType

from utils.errors import Unavailable, first_line
from utils.files import read_json
from utils.library_compat import set_openblas_threads
from utils.notes import LAUNCH_FOLDER, OWN_IMPORTS
from utils.processes.forks import fork_alone
from utils.processes.launch import (
    LAUNCHER_PID,
    SHUTDOWN_SECONDS,
    exit_with_launcher,
    loopback_listener,
    open_loopback_store,
    send_to_groups,
)
from utils.signals import TERMINATION_SIGNALS, Interrupted, handle_signals, signal_name
from utils.threads import wait_for

have_ended = False  # the ranks that this process has launched
_STORE_DESCRIPTORS = 12  # 9 of torch 2.14, besides one for each rank
_END_SECONDS = 30  # of the other ranks when one has failed
_POSSIBLE_CAUSES: dict[int, str] = {
    signal.SIGKILL: f": out of host memory, or not saved {SHUTDOWN_SECONDS} s after another signal",
    signal.SIGABRT: ": another rank may not have answered NCCL within TIMEOUT_SECONDS",
}


def launch_ranks(words: Sequence[str], number: int, folder: str, own_imports: str = "") -> int | None:
    """Runs `number` ranks on this host, and returns their exit status; returns None in a rank, a fork of this process.

    A fork has in memory what this process has imported. If there is a reason against forks, `own_imports`, or this
    process has threads, each rank is a Python that runs `words`. If one fails, the others receive SIGTERM, and SIGKILL
    after 30 s. A termination signal is passed on; then they have 120 s to save. Call it last: its signal handlers
    remain.

    folder: for files of the ranks: their errors, and the name of their run.

    Raises Interrupted: a signal has ended the ranks. Raises Unavailable: they cannot start; or one was killed, or did
    not respond, and none has printed this.
    """
    listener = loopback_listener("127.0.0.1")  # the store's thread starts after the forks
    shared = {
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS") or _share_threads(number),
        "WORLD_SIZE": str(number),
        "LOCAL_WORLD_SIZE": str(number),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listener.getsockname()[1]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the launcher, not rank 0, owns the store
        LAUNCHER_PID: str(os.getpid()),
        LAUNCH_FOLDER: folder,
    }
    variables = list[dict[str, str]]()
    for rank in range(number):
        error_file = str(Path(folder, f"error-{rank}.json"))
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_ERROR_FILE": error_file}
        variables.append(shared | own)
    ranks = _Ranks()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, the system keeps no status
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        _check_descriptors(_STORE_DESCRIPTORS + number)
        for of_rank in variables:
            Path(of_rank["TORCHELASTIC_ERROR_FILE"]).touch()  # it stays if the rank ends without an error
            child = None if own_imports else fork_alone()
            if child == 0:
                listener.close()
                _begin_rank(of_rank, unblocked)
                return None
            if child is None:
                own_imports = own_imports or "the launcher has threads"
                command = [sys.executable, *words]
                of_program = {**environ, **of_rank, OWN_IMPORTS: own_imports}
                child = os.posix_spawn(sys.executable, command, of_program, setsid=True, setsigmask=unblocked)
            ranks.pids.append(child)
        ranks.store = open_loopback_store(listener)
    except (OSError, RuntimeError) as error:
        ranks.send(signal.SIGKILL)
        raise Unavailable(
            f"-ngpus: the ranks cannot start ({first_line(error)}); raise ulimit -u and -n, or lower -ngpus"
        ) from error
    try:
        handle_signals(ranks.receive)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        ranks.wait()
    finally:
        handle_signals(signal.SIG_IGN)
        send_to_groups(ranks.pids, signal.SIGKILL)  # workers of ranks that have ended
    global have_ended
    have_ended = True
    return ranks.end_status(variables)


def _check_descriptors(number: int) -> None:
    """Raises OSError: this process cannot open so many files; a store would try for a minute to connect to itself."""
    opened = list[int]()
    try:
        for _ in range(number):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _share_threads(number: int) -> str:
    """A share of torch's threads for each rank. Libraries of the forks have read OMP_NUM_THREADS: they get it here."""
    import torch

    threads = max(1, torch.get_num_threads() // number)
    torch.set_num_threads(threads)
    set_openblas_threads(threads)
    return str(threads)


def _begin_rank(variables: Mapping[str, str], unblocked: Iterable[int]) -> None:
    """Gives a fork of the launcher the session, the variables and the signals of a rank."""
    os.setsid()
    environ.update(variables)
    exit_with_launcher()
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


class _Ranks:
    """The processes of the ranks. Each leads a group, in which its workers are. store: answers as long as it exists."""

    def __init__(self) -> None:
        self.store: object = None
        self.pids = list[int]()
        self._statuses = dict[int, int]()  # of the ranks that have ended; the negative number of a signal
        self._received = 0  # the first termination signal

    def send(self, number: int) -> None:
        """Sends a signal to the ranks that run, and their workers."""
        for rank, pid in enumerate(self.pids):
            if rank in self._statuses:
                continue
            try:
                os.killpg(pid, number)
            except OSError:
                with suppress(OSError):
                    os.kill(pid, number)  # a fork that leads no group yet

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The handler of termination signals: all ranks receive them. It raises nothing: ranks save meanwhile."""
        self._received = self._received or number
        self.send(number)

    def wait(self) -> None:
        """Returns when all ranks have ended. Ends the others when one has failed, or has not saved after a signal."""
        wait_for(lambda: self._have_ended() or self._received or any(self._statuses.values()), math.inf)
        limit_seconds = SHUTDOWN_SECONDS
        if not self._received:
            limit_seconds = _END_SECONDS
            self.send(signal.SIGTERM)
        wait_for(self._have_ended, limit_seconds)
        self.send(signal.SIGKILL)
        wait_for(self._have_ended, _END_SECONDS)  # one may wait for a disk or a GPU

    def _have_ended(self) -> bool:
        for rank, pid in enumerate(self.pids):
            if rank in self._statuses:
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._statuses[rank] = os.waitstatus_to_exitcode(status)
        return len(self._statuses) == len(self.pids)

    def end_status(self, variables: Sequence[Mapping[str, str]]) -> int:
        """0, or the exit status of the rank that failed first, if it has printed why.

        A rank that fails makes others lose their connections to it, and the launcher then terminates the rest. Raises
        Unavailable: the error that no rank has printed. Raises Interrupted: all have ended by the signal.
        """
        failed = {rank: status for rank, status in self._statuses.items() if status}
        if not failed:
            return 0
        reports = {rank: read_json(Path(variables[rank]["TORCHELASTIC_ERROR_FILE"])) for rank in failed}
        own = {rank: status for rank, status in failed.items() if not reports[rank]}
        cause = next((report["message"]["message"] for report in reports.values() if report), "")
        if not own:
            raise Unavailable(cause)
        number = self._received or signal.SIGTERM
        rank, status = min(own.items(), key=lambda one: one[1] in (-number, 128 + number))
        if status == -self._received:  # before it handled signals
            raise Interrupted(self._received)
        if status > 0 and status != 128 + number and Path(variables[rank]["TORCHELASTIC_ERROR_FILE"]).exists():
            error = Unavailable(
                f"rank {rank} ended with status {status} and no error: a plugin or a library called exit"
            )
            error.status = status
            raise error
        if 0 < status < 128:
            return status
        if any(report.get("timed_out") for report in reports.values()):
            raise Unavailable(f"{' and '.join(f'rank {rank}' for rank in own)} does not respond; {cause}")
        if status > 0:
            raise Interrupted(status - 128)
        cause = _POSSIBLE_CAUSES.get(-status, "")
        error = Unavailable(f"rank {rank} was terminated by {signal_name(-status)}{cause}")
        error.status = 128 - status
        raise error
