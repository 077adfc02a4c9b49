"""Ends all ranks of a run when one of them fails, is killed, is stopped or hangs, or when the network is cut.

A rank that leaves the run writes this to the key-value store of the ranks. A thread of each rank polls the store and
then answers, so that the leaving rank can name a rank that does not answer. Another thread finds a collective operation
of NCCL that does not end: the main thread, which waits for the GPU, receives no error. NCCL's own timeout kills the
process without a message.
"""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import torch.distributed as dist

from utils.errors import Unavailable, UserError, print_error, print_resume
from utils.signals import Interrupted, PendingSignal, exit_now, handle_signals
from utils.status import record_run_end
from utils.system import read_stat
from utils.threads import DaemonPool, wait_for
from utils.torch_compat import collective_numbers

POLL_SECONDS = 0.5
RESPONSE_SECONDS = 2.0  # a live rank answers within this time
STORE_SECONDS = 5.0  # the store answers all questions of a leaving rank within this time
LAUNCHER_SECONDS = 4.0  # a launcher terminates the healthy ranks of a failed run within this time
FORCE_SECONDS = 9.0  # a healthy rank of a failed run exits by itself after this time
GPU_BACKEND = "nccl"
_EXIT_SECONDS = 0.1  # a process whose connections are closed has ended after this time
_MESSAGES = "messages"  # a key of the store
OUT_OF_MEMORY = "possible cause: out of host memory"
_LOST_CONNECTION = re.compile(
    r"(closed|reset) by peer|broken pipe|remote process exit|timed out waiting \d+ms|collective operation timeout"
    r"|no route to host|(network|host) is (unreachable|down)|connection timed out",
    re.IGNORECASE,
)


class Message(StrEnum):
    """A rank that leaves the run sends FAILS (its own error) or LOST_A_RANK (another rank closed its connections, or
    does not answer). The others answer WAITS (the GPU is blocked in a collective operation) or RUNS."""

    FAILS = "fails"
    LOST_A_RANK = "lost-a-rank"
    WAITS = "waits"
    RUNS = "runs"


LEAVING = frozenset({Message.FAILS, Message.LOST_A_RANK})
Messages = Mapping[int, frozenset[Message]]  # by rank, of the ranks that have sent one


@dataclass(frozen=True)
class RankProcess:
    """The process of a rank. start_time: in clock ticks since the host started; "" where there is no /proc."""

    rank: int
    host: str
    pid: int
    start_time: str

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    def has_ended(self) -> bool:
        """Returns whether a process of this host has ended; False on another host."""
        return self._is_here() and self._stat()[0] in ("", "Z", "X")

    def is_stopped(self) -> bool:
        """Returns whether a signal or a debugger has stopped a process of this host; False on another host."""
        return self._is_here() and self._stat()[0] in ("T", "t")

    def has_same_launcher(self) -> bool:
        """Returns whether the launcher of this process started it on this host."""
        return self._is_here() and self._stat()[1] == str(os.getppid())

    def _is_here(self) -> bool:
        return self.host == socket.gethostname() and bool(self.start_time)

    def _stat(self) -> tuple[str, str]:
        """The state of the process and its parent; empty texts if it has ended, also if another one has its id."""
        state, parent, start_time = read_stat(self.pid)
        return (state, parent) if start_time == self.start_time else ("", "")


class RunStore:
    """Messages between ranks through their key-value store. Methods raise dist.DistError if the owner of the store,
    rank 0 or its launcher, has ended; they block while the network is cut."""

    def __init__(self, store: dist.Store, rank: int, world_size: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size

    def clone(self) -> "RunStore":
        """A second connection, for another thread: a call blocks all other calls of the same object."""
        return RunStore(self.store.clone(), self.rank, self.world_size)

    def announce(self) -> None:
        start_time = read_stat(os.getpid())[2] or "-"
        self.store.set(f"process {self.rank}", f"{os.getpid()} {start_time} {socket.gethostname()}")

    def processes(self, limit_seconds: float) -> list[RankProcess]:
        """The processes of all ranks; raises Unavailable if some have not announced themselves within the limit."""
        keys = [f"process {rank}" for rank in range(self.world_size)]

        def describe() -> str:
            absent = ", ".join(str(rank) for rank, key in enumerate(keys) if not self.store.check([key]))
            return f"WORLD_SIZE is {self.world_size}: rank {self.rank} waits for rank {absent}"

        tell = None if self.rank else lambda: f"{describe()}, at most {limit_seconds:g} s"
        if not wait_for(lambda: self.store.check(keys), limit_seconds, tell):
            compare = "compare RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of all ranks"
            raise Unavailable(f"{describe()}, for {limit_seconds:g} s now; read the output there, and {compare}")
        texts = [text.decode().split(maxsplit=2) for text in self.store.multi_get(keys)]
        return [
            RankProcess(rank=rank, host=host, pid=int(pid), start_time=time.strip("-"))
            for rank, (pid, time, host) in enumerate(texts)
        ]

    def send(self, message: Message) -> None:
        self.store.append(_MESSAGES, f"{self.rank} {message}\n")  # type: ignore[attr-defined]  # torch's stub lacks it

    def is_ending(self) -> bool:
        """Returns whether a rank has left: the first message of a run."""
        return self.store.check([_MESSAGES])

    def messages(self) -> Messages:
        """One request, also for a thousand ranks. The first rank that has left is the first key."""
        messages: dict[int, frozenset[Message]] = {}
        for line in self.store.get(_MESSAGES).decode().splitlines():
            rank, message = line.split()
            messages[int(rank)] = messages.get(int(rank), frozenset()) | {Message(message)}
        return messages


def diagnose(ranks: Sequence[RankProcess], messages: Messages) -> tuple[str | None, list[RankProcess]]:
    """A line, and the ranks to kill, because they do not end by themselves; None if another rank reports a cause."""
    silent = [one for one in ranks if one.rank not in messages]
    if silent:
        return _describe_silent(silent, ranks), silent
    remaining = [one for one in ranks if not messages[one.rank] & LEAVING]
    if remaining:
        busy = [one for one in remaining if Message.WAITS not in messages[one.rank]] or remaining
        return f"{_names(busy)} does not respond; check its file system", busy
    if any(Message.FAILS in of_rank for of_rank in messages.values()):
        return None, []
    hosts = " and ".join(dict.fromkeys(one.host for one in ranks))
    return f"all ranks wait for each other; the network of {hosts} may be cut or block a port", []


def _describe_silent(silent: Sequence[RankProcess], ranks: Sequence[RankProcess]) -> str:
    own, hosts = socket.gethostname(), sorted({one.host for one in silent})
    if all(one.has_ended() for one in silent):
        return f"{_names(silent)} ended without an error message; {OUT_OF_MEMORY}"
    if all(one.is_stopped() for one in silent):
        return f"{_names(silent)} is stopped (SIGSTOP)"
    ended = f"{_names(silent)} ended without an error message or is stopped; {OUT_OF_MEMORY}"
    if own in hosts or any(one not in silent for one in ranks if one.host in hosts):
        return ended
    return f"{own} has no answer from {' and '.join(hosts)}: the network may be cut, or the host is down, or {ended}"


def describe_silent_store(ranks: Sequence[RankProcess]) -> tuple[str, list[RankProcess]]:
    """A line on a store that does not answer, and the lost ranks. Rank 0 or its launcher, on the same host, owns it.

    ranks: empty if they did not announce themselves yet.
    """
    own = socket.gethostname()
    if not ranks:
        return f"{own}: the host of rank 0 does not answer; the network to it may be cut", []
    owner = ranks[0]
    if owner.host == own and not owner.is_stopped():
        return f"{owner} or its launcher does not respond; it may be stopped", []
    lost = [owner] if owner.host == own else [one for one in ranks if one.host == owner.host]
    return _describe_silent(lost, ranks), lost


def _names(ranks: Sequence[RankProcess]) -> str:
    return " and ".join(map(str, ranks))


def has_lost_connection(error: BaseException) -> bool:
    """Returns whether another rank closed its connections, or did not answer in a collective operation.

    torch tells this by its text only. The launcher's signal may arrive while such an error is handled.
    """
    cause = error.__context__ if isinstance(error, Interrupted) else error
    return isinstance(cause, RuntimeError) and bool(_LOST_CONNECTION.search(str(cause)))


class Membership:
    """This rank as a member of a run, and its view of the other ranks.

    limit_seconds: TIMEOUT_SECONDS; how long the GPU may wait in a collective operation.
    """

    def __init__(self, store: RunStore, limit_seconds: float) -> None:
        self.store, self.limit_seconds = store, limit_seconds
        self.ranks: list[RankProcess] = []
        self.is_finished = False
        self.gpu_wait_seconds = 0.0
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._poll, args=(store.clone(),), daemon=True),
            threading.Thread(target=self._watch_gpu, daemon=True),
        ]
        store.announce()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads: at Python's exit, a thread in a call of the store would abort the process."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(RESPONSE_SECONDS)

    def leave(self, error: BaseException) -> None:
        """Tells the other ranks that this one ends. Returns if `error` is the cause, which the caller then reports.

        Raises SystemExit: the cause is reported, by this process or by another one.
        """
        handle_signals(PendingSignal().receive)  # a signal of the launcher must not stop the diagnosis
        has_lost_a_rank = has_lost_connection(error)
        is_first = self._end(has_lost_a_rank)
        if not has_lost_a_rank and not isinstance(error, Exception):  # a signal or an exit
            return
        if not has_lost_a_rank and is_first:
            if self.store.rank == 0:
                time.sleep(2 * POLL_SECONDS)  # this process may own the store; the others must poll it first
            return
        wait_for(lambda: PendingSignal.first, LAUNCHER_SECONDS)
        raise SystemExit(error.status if isinstance(error, UserError) else 1)

    def _poll(self, store: RunStore) -> None:
        """Answers a rank that leaves. Ends this process after it, which may wait for its GPU and handle no signal."""
        try:
            while not store.is_ending():
                if self._stopped.wait(POLL_SECONDS):
                    return
            store.send(Message.WAITS if self.gpu_wait_seconds else Message.RUNS)
        except dist.DistError:  # the process that owns the store has ended
            pass
        self._force_exit()

    def _watch_gpu(self) -> None:
        """Ends this process if a collective operation of the GPU does not end.

        NCCL's operations end in order. gloo's do not, and they raise an error at their timeout, which comes first.
        """
        waits: dict[tuple[str, int], float] = {}  # seconds, by process group and last operation that has ended
        while not self._stopped.wait(POLL_SECONDS):
            numbers = collective_numbers(GPU_BACKEND).items()
            waiting = [(group, ended) for group, (started, ended) in numbers if ended < started]
            waits = {one: waits.get(one, -POLL_SECONDS) + POLL_SECONDS for one in waiting}
            self.gpu_wait_seconds = max(waits.values(), default=0.0)
            if self.gpu_wait_seconds > self.limit_seconds + RESPONSE_SECONDS:
                self._end(has_lost_a_rank=True, main_is_blocked=True)
                wait_for(lambda: PendingSignal.first, LAUNCHER_SECONDS)
                exit_now(1)

    def _force_exit(self) -> None:
        """Ends this process if it has not ended by itself: its exit may wait for the GPU or for a thread."""

        def exit_unless_finished() -> None:
            if not self.is_finished:
                exit_now(1)

        timer = threading.Timer(FORCE_SECONDS, exit_unless_finished)
        timer.daemon = True
        timer.start()

    def _end(self, has_lost_a_rank: bool, main_is_blocked: bool = False) -> bool:
        """Leaves the run, names the lost ranks if they are the cause, and kills them if they have the same launcher.

        Returns whether this rank is the first one to leave. Ends this process if the store does not answer.
        """
        self._force_exit()
        calls = DaemonPool(1)  # the store does not answer if its owner is stopped, or the network is cut
        try:
            is_first, message, lost = calls.submit(self._leave, has_lost_a_rank, main_is_blocked).result(STORE_SECONDS)
        except dist.DistError:  # the process that owns the store has ended
            is_first, message, lost = False, None, []
            if has_lost_a_rank:
                message = f"rank 0 or the launcher ended without an error message; {OUT_OF_MEMORY}"
        except TimeoutError:
            if not has_lost_a_rank:
                return True
            message, lost = describe_silent_store(self.ranks)
            before = [one for one in self.ranks[: self.store.rank] if one.host == self.ranks[self.store.rank].host]
            time.sleep(min(0.5 * len(before), 2.0))  # the first of this host prints; the launcher terminates the others
            self._report(message, lost, is_printed=True)
            exit_now(1)
        if message:
            self._report(message, lost, is_printed=is_first)
        return is_first

    def _leave(self, has_lost_a_rank: bool, main_is_blocked: bool) -> tuple[bool, str | None, list[RankProcess]]:
        """Returns whether this rank is the first one, a line on the lost ranks, and these ranks.

        The line is written as soon as all ranks have left that can: one that waits, too, leaves a little later.
        """
        store = self.store.clone() if main_is_blocked else self.store  # which the main thread may wait for
        store.send(Message.LOST_A_RANK if has_lost_a_rank else Message.FAILS)
        is_first = next(iter(store.messages())) == store.rank
        if not has_lost_a_rank:
            return is_first, None, []
        time.sleep(_EXIT_SECONDS)
        deadline = time.monotonic() + RESPONSE_SECONDS
        while True:
            messages = store.messages()
            remaining = [one for one in self.ranks if not LEAVING & messages.get(one.rank, frozenset())]
            if time.monotonic() > deadline or all(one.has_ended() for one in remaining):
                return is_first, *diagnose(self.ranks, messages)
            time.sleep(POLL_SECONDS)

    def _report(self, message: str, lost: list[RankProcess], is_printed: bool) -> None:
        """Prints the line; then kills the lost ranks, since their launcher only sees that a process was killed.

        Writes the files of the run last: a network file system may be cut off.
        """
        if is_printed:
            print_error(message)
        for one in lost:
            if one.has_same_launcher():
                os.kill(one.pid, signal.SIGKILL)
        print_resume(record_run_end("failed", message=message))


@contextmanager
def abort_together(store: RunStore, limit_seconds: float) -> Iterator[list[RankProcess]]:
    """Yields the processes of all ranks. If the block raises in one of them, all exit within seconds.

    So does a process whose GPU, or whose start, waits for `limit_seconds`.
    """
    membership = Membership(store, limit_seconds)
    membership.start()
    try:
        membership.ranks = store.processes(limit_seconds)
        yield membership.ranks
        membership.is_finished = True
    except BaseException as error:
        membership.leave(error)
        raise
    finally:
        membership.stop()
