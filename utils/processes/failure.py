"""Ends all ranks of a run when one of them fails, is killed, is stopped or hangs, or when the network is cut.

A rank that leaves the run writes this to the key-value store of the ranks. A thread of each rank polls the store and
then answers, so that the leaving rank can name a rank that does not answer. The same thread looks for processes of this
host that have ended. Two watchdogs end a rank if its main thread may be blocked: if
the store does not answer, and if the GPU waits in a collective operation. NCCL's own timeout kills the process without
a message.
"""

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

import torch.distributed as dist

from utils.errors import UserError
from utils.processes.diagnosis import STORE_ENDED, cut_off_message, diagnose, ended_message
from utils.processes.flight_recorder import CollectiveWatchdog, recorder_folder, started_collectives, write_dump
from utils.processes.launch import is_launched_here, silence_launcher
from utils.processes.ranks import RESPONSE_SECONDS, Counts, RankProcess, RunStore
from utils.signals import exit_now, received_signal, record_signals
from utils.status import RANK_LOG, record_failure_at_once, record_run_end
from utils.threads import Watchdog, run_briefly

POLL_SECONDS = 0.5
LAUNCHER_SECONDS = 4.0  # a launcher terminates the healthy ranks of a failed run within this time
FORCE_SECONDS = 8.0  # a healthy rank of a failed run exits by itself after this time
_EXIT_SECONDS = 0.1  # a process whose connections are closed has ended after this time
_MIN_SILENCE_SECONDS = 5.0  # a process that was stopped, or had no processor, has polled again within this time
_CLOSED = re.compile(r"(closed|reset) by peer|broken pipe|remote process exit", re.IGNORECASE)
_NO_ANSWER = re.compile(
    r"timed out waiting \d+ms|collective operation timeout|no route to host|(network|host) is (unreachable|down)"
    r"|connection timed out",
    re.IGNORECASE,
)


class State(Enum):
    """The work of this rank, or the reason why it leaves the run."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "a signal or an exit"
    FAILED = "an error of its own"
    LOST_RANK = "another rank closed its connections"
    TIMED_OUT = "another rank did not answer in a collective operation"


def leaving_state(error: BaseException) -> State:
    """The state of a rank in which `error` was raised. torch tells the kinds of lost connections by their text only."""
    if not isinstance(error, Exception):
        return State.INTERRUPTED
    if isinstance(error, RuntimeError) and _NO_ANSWER.search(str(error)):
        return State.TIMED_OUT
    if isinstance(error, RuntimeError) and _CLOSED.search(str(error)):
        return State.LOST_RANK
    return State.FAILED


class Membership:
    """This rank as a member of a run, and its view of the other ranks.

    `seconds` is how long the store may be silent before this process ends: TIMEOUT_SECONDS, see `limit_silence`.
    """

    def __init__(self, store: RunStore, seconds: float) -> None:
        self.store = store
        self.state = State.RUNNING
        self.ranks: list[RankProcess] = []
        self.store_watchdog = Watchdog(seconds, self._exit_cut_off)
        self.gpu_watchdog = CollectiveWatchdog(seconds + RESPONSE_SECONDS, self._exit_stuck)  # an error comes first
        self._visible: list[RankProcess] = []
        self._has_reported = False  # this rank or another one has printed which ranks are lost
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, args=(store.clone(),), daemon=True)
        store.announce()

    def start(self) -> None:
        self._thread.start()
        self.store_watchdog.start()
        self.gpu_watchdog.start()

    def stop(self) -> None:
        """Ends the threads: at Python's exit, a thread in a call of the store would abort the process."""
        self._stopped.set()
        self.store_watchdog.stop()
        self.gpu_watchdog.stop()
        self._thread.join(RESPONSE_SECONDS)

    def meet(self) -> None:
        """Reads the processes of all ranks, which are then known without the store. A collective call."""
        ranks = self.store.processes()
        self._visible = [one for one in ranks if one.rank != self.store.rank and one.is_visible()]
        self.ranks = ranks

    def leave(self, error: BaseException) -> None:
        """Tells the other ranks that this one ends. Returns if `error` is the cause, which the caller then reports.

        Raises:
            UserError: the line that names the lost ranks.
            SystemExit: another process reports the cause.
        """
        self.gpu_watchdog.stop()
        self._force_exit()
        record_signals()  # a signal of the launcher must not stop the diagnosis
        is_first = self._leave(leaving_state(error))
        if self.state is State.INTERRUPTED:
            return
        if self.state is State.FAILED and is_first:
            if self.store.rank == 0:
                time.sleep(2 * POLL_SECONDS)  # this process may own the store; the others must poll it first
            return
        message = None if self.state is State.FAILED else self._diagnose()
        if message:
            record_run_end("failed", message=message)
        if self.state is not State.TIMED_OUT or self._has_reported:  # else the launcher had the time of the timeout
            _wait_for_launcher()
        if is_first and message and not self._has_reported:
            if not received_signal():
                raise UserError(message) from error
            if not is_launched_here():  # torchrun names the rank in a traceback only
                self._report(message)
        raise SystemExit(1)

    def _poll(self, store: RunStore) -> None:
        """Exits when another rank has left: a process that waits for its GPU handles no signal."""
        is_ending = False
        while not (is_ending or self._stopped.wait(POLL_SECONDS)):
            ended = self._ended()  # before the store is read: a rank writes there before it ends
            try:
                is_ending = store.is_ending()
                self.store_watchdog.reset()
                if is_ending:
                    ended = []  # the leaving rank reports the cause
                    if store.answer(started_collectives):
                        run_briefly(lambda: write_dump(store.rank), seconds=RESPONSE_SECONDS)
            except dist.DistError:  # the process that owns the store has ended
                is_ending, ended = True, self._ended()
            self._record(ended)
        if is_ending:
            self.store_watchdog.stop()
            self._force_exit()

    def _force_exit(self) -> None:
        """Ends this process if it has not ended by itself: its exit may wait for the GPU or for a thread."""
        timer = threading.Timer(FORCE_SECONDS, self._exit_unless_finished)
        timer.daemon = True
        timer.start()

    def _exit_unless_finished(self) -> None:
        if self.state is not State.FINISHED:
            exit_now(1)

    def _ended(self) -> list[RankProcess]:
        return [one for one in self._visible if one.has_ended()]

    def _record(self, ended: list[RankProcess]) -> None:
        """Writes status.json at once: after the death of a rank, mpirun gives the others one second."""
        if ended and not self._stopped.is_set():
            self._visible = []
            run_briefly(lambda: record_failure_at_once(ended_message(ended)), seconds=0)

    def _leave(self, state: State) -> bool:
        """Returns whether this rank is the first one to leave."""
        self.state = state
        try:
            return self.store.leave(state is State.TIMED_OUT)
        except dist.DistError:  # the process that owns the store has ended
            return False

    def _diagnose(self) -> str | None:
        """Kills the lost ranks of this launcher. Returns a line that names all lost ranks; None if there is none."""
        timed_out = self.state is State.TIMED_OUT
        time.sleep(_EXIT_SECONDS)
        self._record(self._ended())
        try:
            message, lost = diagnose(self.ranks, *self._read_answers(timed_out), timed_out)
        except dist.DistError:
            return STORE_ENDED
        if message and timed_out and (folder := recorder_folder()):
            message += f"; the last collectives of the ranks: {folder}"
        to_kill = [one for one in lost if one.has_same_launcher()]
        if message and to_kill:
            self._report(message)  # first: the launcher only sees that a process was killed
            for one in to_kill:
                os.kill(one.pid, signal.SIGKILL)
        return message

    def _read_answers(self, timed_out: bool) -> tuple[set[int], dict[int, Counts]]:
        """The ranks that have left, and the answers, as soon as all are known.

        A rank that waits, too, leaves a little later than this one. After a timeout, its answer counts as well.
        """
        deadline = time.monotonic() + RESPONSE_SECONDS
        while True:
            remaining, answers = self.store.without("left"), self.store.answers()
            missing = [one for one in self.ranks if one.rank in remaining or (timed_out and one.rank not in answers)]
            if time.monotonic() > deadline or all(one.is_local_and_ended() for one in missing):
                return {one.rank for one in self.ranks}.difference(remaining), answers
            time.sleep(POLL_SECONDS)

    def _report(self, message: str) -> None:
        """Prints the message, once for all ranks of the run."""
        self._has_reported = True
        with suppress(dist.DistError):
            if not self.store.is_first_report():
                return
        print(f"error: {message}", file=sys.stderr, flush=True)
        _log(message)
        silence_launcher()
        run_briefly(lambda: record_failure_at_once(message), seconds=RESPONSE_SECONDS)

    def _exit_cut_off(self) -> None:
        """Ends this process, in the watchdog's thread. Uses no store, and waits for no file: both may be cut off."""
        message, own = cut_off_message(self.ranks, self.store_watchdog.limit_seconds), self.store.rank
        before = [one for one in self.ranks[:own] if one.host == self.ranks[own].host]
        time.sleep(min(0.5 * len(before), 2.0))  # the first of this host prints; the launcher terminates the others
        run_briefly(
            lambda: print(f"error: {message}", file=sys.stderr, flush=True),
            lambda: _log(message),
            lambda: record_failure_at_once(message),
            lambda: write_dump(own),
            seconds=RESPONSE_SECONDS,
        )
        if self.ranks and own != 0 and self.ranks[0].has_same_launcher():
            os.kill(self.ranks[0].pid, signal.SIGKILL)  # last: torch logs the end of its connections
        exit_now(1)

    def _exit_stuck(self) -> None:
        """Called by the watchdog of the GPU: the main thread may be blocked, and then receives no error."""
        self.store = self.store.clone()  # the main thread may wait for an answer to this one
        is_first = self._leave(State.TIMED_OUT)
        message = self._diagnose()
        if is_first and message and not self._has_reported:
            self._report(message)
        run_briefly(lambda: record_run_end("failed", message=message), seconds=RESPONSE_SECONDS)
        if not is_first:
            time.sleep(LAUNCHER_SECONDS)  # the launcher terminates the others when the first process ends
        exit_now(1)


_current: Membership | None = None  # of this process


@contextmanager
def abort_together(store: RunStore, seconds: float) -> Iterator[list[RankProcess]]:
    """Yields the processes of all ranks. If the block raises in one of them, all others exit within seconds.

    So does a process whose store is silent for `seconds`, until `limit_silence` gives another limit.
    """
    global _current
    membership = _current = Membership(store, seconds)
    membership.start()
    try:
        membership.meet()
        yield membership.ranks
        membership.state = State.FINISHED
    except BaseException as error:
        membership.leave(error)
        raise
    finally:
        membership.stop()


def limit_silence(seconds: float) -> None:
    """Ends this process when the store has not answered, or the GPU has waited, for `seconds`, at least 5."""
    if _current:
        limit = max(seconds, _MIN_SILENCE_SECONDS)
        _current.store_watchdog.limit_seconds, _current.gpu_watchdog.limit_seconds = limit, limit + RESPONSE_SECONDS


def _wait_for_launcher() -> None:
    """Returns when a launcher has terminated this process, which it does to the healthy ranks of a failed run."""
    deadline = time.monotonic() + LAUNCHER_SECONDS
    while not received_signal() and time.monotonic() < deadline:
        time.sleep(_EXIT_SECONDS)


def _log(message: str) -> None:
    logging.getLogger(RANK_LOG).info(f"error: {message}")
