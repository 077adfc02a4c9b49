"""Ends all ranks of a run when one of them fails, is killed, is stopped or hangs, or when the network is cut.

A rank that leaves the run writes this to the key-value store of the ranks. A thread of each rank polls the store and
then answers, so that the leaving rank can name a rank that does not answer. Another thread finds a collective operation
of NCCL that does not end: the main thread, which waits for the GPU, receives no error. NCCL's own timeout kills the
process without a message.
"""

import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

import torch.distributed as dist

from utils.errors import UserError
from utils.processes.launch import claim_error_line
from utils.processes.ranks import LEAVING, Message, Messages, RankProcess, RunStore
from utils.signals import Interrupted, exit_now, received_signal, record_signals
from utils.status import RANK_LOG, record_run_end
from utils.threads import DaemonPool, wait_for
from utils.torch_compat import collective_numbers

OUT_OF_MEMORY = "possible cause: out of host memory"
STORE_ENDED = f"rank 0 or the launcher ended without an error message; {OUT_OF_MEMORY}"


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
    if not ranks:
        return f"{socket.gethostname()}: the host of rank 0 does not answer; the network to it may be cut", []
    owner = ranks[0]
    if owner.host != socket.gethostname():
        lost = [one for one in ranks if one.host == owner.host]
        return _describe_silent(lost, ranks), lost
    if owner.is_stopped():
        return _describe_silent([owner], ranks), [owner]
    return f"{owner} or its launcher does not respond; it may be stopped", []


def _names(ranks: Sequence[RankProcess]) -> str:
    return " and ".join(map(str, ranks))


POLL_SECONDS = 0.5
RESPONSE_SECONDS = 2.0  # a live rank answers within this time
STORE_SECONDS = 5.0  # the store answers all questions of a leaving rank within this time
LAUNCHER_SECONDS = 4.0  # a launcher terminates the healthy ranks of a failed run within this time
FORCE_SECONDS = 9.0  # a healthy rank of a failed run exits by itself after this time
GPU_BACKEND = "nccl"
_EXIT_SECONDS = 0.1  # a process whose connections are closed has ended after this time
_LOST_CONNECTION = re.compile(
    r"(closed|reset) by peer|broken pipe|remote process exit|timed out waiting \d+ms|collective operation timeout"
    r"|no route to host|(network|host) is (unreachable|down)|connection timed out",
    re.IGNORECASE,
)


class State(Enum):
    """The work of this rank, or the reason why it leaves the run."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "a signal or an exit"
    FAILED = "an error of its own"
    LOST_A_RANK = "another rank closed its connections, or did not answer in a collective operation"


def leaving_state(error: BaseException) -> State:
    """The state of a rank in which `error` was raised. torch tells lost connections by their text only.

    The launcher's signal may arrive while such an error is handled.
    """
    cause = error.__context__ if isinstance(error, Interrupted) else error
    if isinstance(cause, RuntimeError) and _LOST_CONNECTION.search(str(cause)):
        return State.LOST_A_RANK
    return State.FAILED if isinstance(error, Exception) else State.INTERRUPTED


class Membership:
    """This rank as a member of a run, and its view of the other ranks.

    limit_seconds: TIMEOUT_SECONDS; how long the GPU may wait in a collective operation.
    """

    def __init__(self, store: RunStore, limit_seconds: float) -> None:
        self.store, self.limit_seconds = store, limit_seconds
        self.state = State.RUNNING
        self.ranks: list[RankProcess] = []
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

        Raises:
            SystemExit: the cause is reported, by this process or by another one.
        """
        record_signals()  # a signal of the launcher must not stop the diagnosis
        is_first = self._end(leaving_state(error))
        if self.state is State.INTERRUPTED:
            return
        if self.state is State.FAILED and is_first:
            if self.store.rank == 0:
                time.sleep(2 * POLL_SECONDS)  # this process may own the store; the others must poll it first
            return
        wait_for(received_signal, LAUNCHER_SECONDS)
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
                self._end(State.LOST_A_RANK, main_is_blocked=True)
                wait_for(received_signal, LAUNCHER_SECONDS)
                exit_now(1)

    def _force_exit(self) -> None:
        """Ends this process if it has not ended by itself: its exit may wait for the GPU or for a thread."""
        timer = threading.Timer(FORCE_SECONDS, self._exit_unless_finished)
        timer.daemon = True
        timer.start()

    def _exit_unless_finished(self) -> None:
        if self.state is not State.FINISHED:
            exit_now(1)

    def _end(self, state: State, main_is_blocked: bool = False) -> bool:
        """Leaves the run, names the lost ranks if they are the cause, and kills them if they have the same launcher.

        Returns whether this rank is the first one to leave. Ends this process if the store does not answer.
        """
        self.state = state
        self._force_exit()
        calls = DaemonPool(1)  # the store does not answer if its owner is stopped, or the network is cut
        try:
            is_first, message, lost = calls.submit(self._leave, main_is_blocked).result(STORE_SECONDS)
        except dist.DistError:  # the process that owns the store has ended
            is_first, message, lost = False, STORE_ENDED if state is State.LOST_A_RANK else None, []
        except TimeoutError:
            if state is not State.LOST_A_RANK:
                return True
            message, lost = describe_silent_store(self.ranks)
            before = [one for one in self.ranks[: self.store.rank] if one.host == self.ranks[self.store.rank].host]
            time.sleep(min(0.5 * len(before), 2.0))  # the first of this host prints; the launcher terminates the others
            self._report(message, lost, is_printed=True)
            exit_now(1)
        if message:
            self._report(message, lost, is_printed=is_first)
        return is_first

    def _leave(self, main_is_blocked: bool) -> tuple[bool, str | None, list[RankProcess]]:
        """Returns whether this rank is the first one, a line on the lost ranks, and these ranks."""
        store = self.store.clone() if main_is_blocked else self.store  # which the main thread may wait for
        has_lost_a_rank = self.state is State.LOST_A_RANK
        store.send(Message.LOST_A_RANK if has_lost_a_rank else Message.FAILS)
        is_first = next(iter(store.messages())) == store.rank
        if not has_lost_a_rank:
            return is_first, None, []
        time.sleep(_EXIT_SECONDS)
        return is_first, *diagnose(self.ranks, self._wait_for_messages(store))

    def _wait_for_messages(self, store: RunStore) -> Messages:
        """The messages, as soon as all ranks have left that can: one that waits, too, leaves a little later."""
        deadline = time.monotonic() + RESPONSE_SECONDS
        while True:
            messages = store.messages()
            remaining = [one for one in self.ranks if not LEAVING & messages.get(one.rank, frozenset())]
            if time.monotonic() > deadline or all(one.has_ended() for one in remaining):
                return messages
            time.sleep(POLL_SECONDS)

    def _report(self, message: str, lost: list[RankProcess], is_printed: bool) -> None:
        """Prints the line; then kills the lost ranks, since their launcher only sees that a process was killed.

        Writes the files of the run last: a network file system may be cut off.
        """
        if is_printed and claim_error_line():
            print(f"error: {message}", file=sys.stderr, flush=True)
        for one in lost:
            if one.has_same_launcher():
                os.kill(one.pid, signal.SIGKILL)
        if is_printed:
            logging.getLogger(RANK_LOG).info(f"error: {message}")
        record_run_end("failed", message=message)


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
        membership.state = State.FINISHED
    except BaseException as error:
        membership.leave(error)
        raise
    finally:
        membership.stop()
