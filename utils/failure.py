"""Ends all processes of a run when one of them fails, is killed, is stopped or hangs, or when the network is cut.

The processes share a key-value store. The first one to fail increments a counter in it. A thread in each process polls
the counter and then writes that its process is alive, so that the failing process can name a process that is not. The
same thread looks for processes of this host that have ended. A second thread, the watchdog, ends a process that the
store does not answer. A third one ends a process whose GPU waits in a collective operation: its main thread is blocked
once the queue of the GPU is full, and the timeout of NCCL kills the process without a message.
"""

import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

from utils.errors import UserError
from utils.flight_recorder import CollectiveWatchdog, ranks_behind, recorder_folder, started_collectives, write_dump
from utils.launch import silence_launcher
from utils.peers import (
    Peer,
    announce,
    announced_peers,
    cut_off_message,
    ended_message,
    is_sibling,
    join_names,
    lost_message,
    ranks_without,
    read_peers,
)
from utils.signals import TERMINATION_SIGNALS, exit_now
from utils.status import RANK_LOG, record_failure_at_once, record_run_end
from utils.threads import Watchdog, run_briefly

POLL_SECONDS = 0.5
RESPONSE_SECONDS = 2.0  # a live process responds within this time
LAUNCHER_SECONDS = 4.0  # a launcher terminates the healthy processes of a failed run within this time
FORCE_SECONDS = 8.0  # a healthy process of a failed run exits by itself after this time
_EXIT_SECONDS = 0.1  # a process whose connections are closed has ended after this time
_FAILURES, _REPORTED = "failures", "reported"
_TIMED_OUT = "timed out"
_ALIVE, _GAVE_UP = "alive", "gave up"  # with a rank: keys of the store
_MIN_SILENCE_SECONDS = 5.0  # a process that was stopped, or had no processor, has polled again within this time
_CLOSED = re.compile(r"(closed|reset) by peer|broken pipe|remote process exit", re.IGNORECASE)
_NO_ANSWER = re.compile(
    r"timed out waiting \d+ms|collective operation timeout|no route to host|(network|host) is (unreachable|down)"
    r"|connection timed out",
    re.IGNORECASE,
)

_current: "Companions | None" = None  # the other processes of this one's run


class Companions:
    """The processes of a run, as one of them sees them.

    `seconds` is how long the store may be silent before this process ends: TIMEOUT_SECONDS, see `limit_silence`.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, seconds: float) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.peers: list[Peer] = []
        self.finished = threading.Event()
        self.watchdog = Watchdog(seconds, self._exit_cut_off)
        self.gpu_watchdog = CollectiveWatchdog(seconds + RESPONSE_SECONDS, self._exit_stuck)  # an error comes first
        self.has_reported = False  # this process or another one has printed which ranks are lost
        self._siblings: list[Peer] = []
        announce(store, rank)

    def meet(self) -> list[Peer]:
        """Reads the names of all processes, which are then known without the store. A collective call."""
        peers = read_peers(self.store, range(self.world_size))
        self._siblings = [peer for peer in peers if peer.rank != self.rank and peer.is_visible()]
        self.peers = peers
        return peers

    def exit_on_failure(self, store: dist.Store) -> None:
        """Exits when another process has failed. A process that waits for its GPU does not handle signals."""
        failed = False
        while not failed and not self.finished.wait(POLL_SECONDS):
            ended = self.ended_siblings()  # before the counter is read: a process increments it before it ends
            try:
                failed = store.check([_FAILURES])
                self.watchdog.reset()
                if failed:
                    self._respond(store)
                elif ended:
                    self.record_ended(ended)
            except dist.DistError:  # the process that owns the store has ended
                failed = True
                self.record_ended(self.ended_siblings())
        self.watchdog.stop()
        if not self.finished.wait(FORCE_SECONDS):
            exit_now(1)

    def _respond(self, store: dist.Store) -> None:
        """Tells the failed process that this one lives, and which collectives it has started."""
        key = f"{_ALIVE} {self.rank}"
        store.set(key, "")  # first: reading the record may block in the driver of a GPU that hangs
        run_briefly(lambda: store.set(key, json.dumps(started_collectives())), seconds=RESPONSE_SECONDS)
        if store.check([_TIMED_OUT]):
            run_briefly(lambda: write_dump(self.rank), seconds=RESPONSE_SECONDS)

    def ended_siblings(self) -> list[Peer]:
        return [peer for peer in self._siblings if peer.has_ended()]

    def record_ended(self, ended: list[Peer]) -> None:
        """At once: after the death of a rank, mpirun leaves the others a second."""
        if ended and not self.finished.is_set():
            self._siblings = []
            run_briefly(lambda: record_failure_at_once(ended_message(ended)), seconds=0)

    def find_lost_ranks(self, timed_out: bool) -> str | None:
        """A message that names the ranks that do not respond; kills those of this launcher.

        A healthy process has given up waiting, as this one has. If all have given up after a timeout, the rank that has
        started the fewest collectives is named; otherwise the first process to fail reports the cause.
        """
        message, lost = self._describe_lost_ranks(timed_out)
        if message and timed_out and (folder := recorder_folder()):
            message += f"; the last collectives of the ranks: {folder}"
        siblings = [peer for peer in lost if is_sibling(peer)]
        if message and siblings:
            self._report(message)  # first: the launcher only sees that a process was killed
            for peer in siblings:
                os.kill(peer.pid, signal.SIGKILL)
        return message

    def _report(self, message: str) -> None:
        """Prints the message, once for all processes of the run."""
        self.has_reported = True
        with suppress(dist.DistError):
            if self.store.add(_REPORTED, 1) > 1:
                return
        print(f"error: {message}", file=sys.stderr, flush=True)
        _log(message)
        silence_launcher()
        run_briefly(lambda: record_failure_at_once(message), seconds=RESPONSE_SECONDS)

    def _describe_lost_ranks(self, timed_out: bool) -> tuple[str | None, list[Peer]]:
        """The message, and the ranks that do not respond."""
        time.sleep(RESPONSE_SECONDS)
        try:
            peers = self.peers or announced_peers(self.store, self.world_size)
            waiting = set(ranks_without(self.store, _GAVE_UP, [peer.rank for peer in peers]))
            others = [peer for peer in peers if peer.rank in waiting]
            silent = set(ranks_without(self.store, _ALIVE, sorted(waiting)))
            dead = [peer for peer in others if peer.rank in silent]
            late = self._late_ranks(peers) if timed_out else []
            others = [peer for peer in others if peer in late] or others  # a rank that waits, too, gives up later
        except dist.DistError:
            return "rank 0 or the launcher ended without an error message; possible cause: out of host memory", []
        if dead:
            return lost_message(dead, peers, timed_out), dead
        if others:
            return f"{join_names(others)} does not respond; check its file system", others
        if late:
            return f"{join_names(late)} did not arrive at a collective operation that the other ranks wait in", []
        if timed_out:
            hosts = " and ".join(dict.fromkeys(peer.host for peer in peers))
            cut = f"the network of {hosts} may be cut or block a port"
            return f"all ranks wait in the same collective operation; {cut}", []
        return None, []

    def give_up(self, timed_out: bool) -> bool:
        """Tells the other processes to exit. Returns whether this process is the first one to fail."""
        try:
            if timed_out:
                self.store.set(_TIMED_OUT, "")
            is_first = self.store.add(_FAILURES, 1) == 1
            self.store.set(f"{_GAVE_UP} {self.rank}", "")
            return is_first
        except dist.DistError:  # the process that owns the store has ended
            return False

    def _late_ranks(self, peers: list[Peer]) -> list[Peer]:
        """Those that have started fewer collectives than others, of the ranks that have told their numbers."""
        silent = set(ranks_without(self.store, _ALIVE, [peer.rank for peer in peers]))
        ranks = [peer.rank for peer in peers if peer.rank not in silent]
        texts = self.store.multi_get([f"{_ALIVE} {rank}" for rank in ranks]) if ranks else []
        behind = ranks_behind({rank: json.loads(text) for rank, text in zip(ranks, texts, strict=True) if text})
        return [peer for peer in peers if peer.rank in behind]

    def _exit_cut_off(self) -> None:
        """Called by the watchdog. Touches no store, and waits for no file: both may be behind the cut."""
        message = cut_off_message(self.peers, self.watchdog.limit_seconds)
        if self.peers:
            host = self.peers[self.rank].host
            before = sum(peer.host == host for peer in self.peers[: self.rank])
            time.sleep(min(0.5 * before, 2.0))  # the first of this host prints; the launcher terminates the others
        run_briefly(
            lambda: print(f"error: {message}", file=sys.stderr, flush=True),
            lambda: _log(message),
            lambda: record_failure_at_once(message),
            lambda: write_dump(self.rank),
            seconds=RESPONSE_SECONDS,
        )
        if self.peers and self.rank != 0 and is_sibling(self.peers[0]):
            os.kill(self.peers[0].pid, signal.SIGKILL)  # last: torch logs the end of its connections
        exit_now(1)

    def _exit_stuck(self) -> None:
        """Called by the watchdog of the GPU, as the main thread may be blocked: it cannot receive an error."""
        self.store = self.store.clone()  # the main thread may wait for an answer to this one
        is_first = self.give_up(timed_out=True)
        message = self.find_lost_ranks(timed_out=True)
        if is_first and not self.has_reported:
            self._report(message)
        run_briefly(lambda: record_run_end("failed", message=message), seconds=RESPONSE_SECONDS)
        if not is_first:
            time.sleep(LAUNCHER_SECONDS)  # the launcher terminates the others when the first process ends
        exit_now(1)


@contextmanager
def abort_together(store: dist.Store, seconds: float) -> Iterator[Companions]:
    """If the block raises in one process, all other processes exit within seconds.

    So does a process whose store is silent for `seconds`, until `limit_silence` gives another limit.
    """
    global _current
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    companions = _current = Companions(store, rank, world_size, seconds)
    watcher = threading.Thread(target=companions.exit_on_failure, args=(store.clone(),), daemon=True)
    watcher.start()
    companions.watchdog.start()
    companions.gpu_watchdog.start()
    try:
        yield companions
    except BaseException as error:
        _signal_failure(companions, error)
        raise
    companions.finished.set()
    companions.watchdog.stop()
    companions.gpu_watchdog.stop()
    watcher.join(RESPONSE_SECONDS)


def limit_silence(seconds: float) -> None:
    """Ends this process when the store has not answered, or the GPU has waited, for `seconds`, at least 5."""
    if _current:
        limit = max(seconds, _MIN_SILENCE_SECONDS)
        _current.watchdog.limit_seconds, _current.gpu_watchdog.limit_seconds = limit, limit + RESPONSE_SECONDS


def _signal_failure(companions: Companions, error: BaseException) -> None:
    """Tells the other processes to exit. Returns if this process failed first and knows the cause; exits otherwise."""
    companions.gpu_watchdog.stop()
    terminated = threading.Event()
    for number in TERMINATION_SIGNALS:  # a signal of the launcher must not stop the diagnosis
        signal.signal(number, lambda *_: terminated.set())
    peer_failed = is_peer_failure(error)
    timed_out = peer_failed and _NO_ANSWER.search(str(error)) is not None
    is_first = companions.give_up(timed_out)
    if not isinstance(error, Exception):
        return
    if peer_failed:
        time.sleep(_EXIT_SECONDS)
        companions.record_ended(companions.ended_siblings())
    if is_first and not peer_failed:
        if companions.rank == 0:
            time.sleep(2 * POLL_SECONDS)  # this process may own the store; the others must poll it first
        return
    message = companions.find_lost_ranks(timed_out) if peer_failed else None
    if message:
        record_run_end("failed", message=message)
    if not timed_out or companions.has_reported:  # else the launcher had the time of the timeout
        terminated.wait(LAUNCHER_SECONDS)
    if is_first and message and not (terminated.is_set() or companions.has_reported):
        raise UserError(message) from error
    raise SystemExit(1)


def _log(message: str) -> None:
    logging.getLogger(RANK_LOG).info(f"error: {message}")


def is_peer_failure(error: BaseException) -> bool:
    """Whether the error only reports that another process has ended or does not respond."""
    text = str(error)
    return isinstance(error, RuntimeError) and bool(_CLOSED.search(text) or _NO_ANSWER.search(text))
