"""Ranks that end, and a key-value store that does not answer, seen from one rank."""

import os
import socket
import subprocess
import threading

import pytest
import torch.distributed as dist

from utils.processes.diagnosis import cut_off_message, diagnose
from utils.processes.failure import Membership, State, leaving_state
from utils.processes.flight_recorder import CollectiveWatchdog
from utils.processes.ranks import RankProcess, RunStore
from utils.status import RunStatus, read_status

LIMIT_SECONDS = 30
HERE = socket.gethostname()
OWN = RankProcess(0, HERE, os.getpid(), "")
NEAR, FAR, FAR2 = RankProcess(1, HERE, 11, ""), RankProcess(2, "node2", 12, ""), RankProcess(3, "node2", 13, "")


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def announce_child(store: dist.Store, rank: int, child: subprocess.Popen) -> None:
    with open(f"/proc/{child.pid}/stat") as file:
        start_time = file.read().rpartition(")")[2].split()[19]
    store.set(f"process {rank}", f"{child.pid} {start_time} {HERE}")


def test_death_of_a_rank_is_recorded_while_the_main_thread_is_busy(tmp_path, monkeypatch, child):
    """mpirun kills the other ranks about a second after the death of one."""
    recorded = threading.Event()
    status = RunStatus(tmp_path, 2)
    status.begin()
    monkeypatch.setattr(status, "merge", lambda facts, merge=status.merge: merge(facts) or recorded.set())
    store = dist.HashStore()
    announce_child(store, 1, child)
    membership = Membership(RunStore(store, 0, 2), seconds=600)
    membership.start()
    membership.meet()
    assert [one.pid for one in membership.ranks] == [os.getpid(), child.pid]
    assert read_status(tmp_path)["state"] == "running"
    child.kill()
    child.wait()
    assert recorded.wait(LIMIT_SECONDS)
    membership.stop()
    status = read_status(tmp_path)
    assert status["state"] == "failed"
    assert status["message"].startswith(f"rank 1 (process {child.pid} on {HERE}) ended without an error message")


def test_no_thread_uses_the_store_after_the_end():
    """Such a thread would abort the process at Python's exit."""
    before = set(threading.enumerate())
    membership = Membership(RunStore(dist.HashStore(), 0, 1), seconds=600)
    membership.start()
    membership.meet()
    assert len(set(threading.enumerate()) - before) == 3
    membership.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_SECONDS)
    assert set(threading.enumerate()) <= before


def test_a_process_of_another_container_is_not_watched():
    """Its id means another process here, or none."""
    store = dist.HashStore()
    RunStore(store, 0, 3).announce()
    store.set("process 1", f"{os.getpid()} 1 {HERE}")
    store.set("process 2", f"{os.getpid()} - another-host")
    own, *others = RunStore(store, 0, 3).processes()
    assert own.is_visible() and not own.has_ended()
    assert [one.is_visible() for one in others] == [False, False]


EVERYONE, BOTH = {0, 1, 2, 3}, {"gloo 0": 7}


@pytest.mark.parametrize(
    ("left", "answers", "timed_out", "words", "killed"),
    [
        ({0, 1}, {0: {}, 1: {}}, True, ("rank 2", "rank 3", "network to node2"), [FAR, FAR2]),
        ({0, 1, 3}, {0: {}, 1: {}, 3: {}}, True, ("rank 2", "out of host memory"), [FAR]),  # its host answers
        ({0, 1}, {0: {}, 1: {}}, False, ("rank 2", "rank 3", "out of host memory"), [FAR, FAR2]),  # closed connections
        (
            {0, 2, 3},
            {rank: {} for rank in EVERYONE},
            True,
            ("rank 1", "does not respond; check its file system"),
            [NEAR],
        ),
        ({0, 2, 3}, {rank: {} for rank in EVERYONE}, False, ("rank 1", "does not respond"), [NEAR]),
        (EVERYONE, {0: BOTH, 1: {"gloo 0": 6}, 2: BOTH}, True, ("rank 1", "did not arrive at a collective"), []),
        (EVERYONE, {0: BOTH, 1: BOTH}, True, ("all ranks wait", HERE, "node2", "may be cut"), []),
        (EVERYONE, {0: {}, 1: {}}, True, ("all ranks wait",), []),  # torch does not say
    ],
)
def test_lost_ranks_are_named(left, answers, timed_out, words, killed):
    message, to_kill = diagnose([OWN, NEAR, FAR, FAR2], left, answers, timed_out)
    assert all(word in message for word in words) and to_kill == killed
    named = {rank for rank in range(4) if f"rank {rank} " in message}
    assert named == {one.rank for one in killed} or not killed


def test_a_rank_that_reports_a_cause_is_not_lost():
    assert diagnose([OWN, NEAR], {0, 1}, {0: {}, 1: {}}, timed_out=False) == (None, [])


def test_a_store_that_does_not_answer_is_named_by_its_host():
    message = cut_off_message([FAR, FAR2, OWN], 20)
    assert all(word in message for word in (f"{HERE} has no answer", "node2", "rank 2", "rank 3", "20 s", "TIMEOUT_"))
    assert "the network to it may be cut" in cut_off_message([], 600)
    assert cut_off_message([OWN, NEAR], 600).startswith(f"the launcher of {OWN} has")
    assert cut_off_message([NEAR, OWN], 600).startswith(f"{NEAR} or its launcher has not")


def test_a_thousand_ranks_ask_the_store_a_few_times():
    class CountingStore(dist.HashStore):
        requests = 0

        def check(self, keys: list[str]) -> bool:
            self.requests += 1
            return super().check(keys)

    store = CountingStore()
    lost = {3, 700}
    for rank in range(1000):
        if rank not in lost:
            store.set(f"answer {rank}", "")
    assert RunStore(store, 0, 1000).without("answer") == sorted(lost)
    assert store.requests < 50


def test_waiting_for_one_collective_is_told_from_a_sequence_of_them(monkeypatch):
    """Numbers of started and ended operations of two groups, and how long the oldest has been the next one to end."""
    sequence = [
        ({}, 0),
        ({"all": (-1, -1), "few": (5, 5)}, 0),
        ({"all": (4, 2), "few": (5, 5)}, 0),
        ({"all": (4, 2), "few": (7, 6)}, 2),
        ({"all": (5, 3), "few": (7, 6)}, 2),  # one of the groups continues
        ({"all": (5, 3), "few": (9, 7)}, 2),
        ({"all": (9, 3), "few": (9, 7)}, 4),  # operations are still started
        ({"all": (9, 9), "few": (9, 7)}, 4),
        ({"all": (9, 9), "few": (9, 9)}, 0),
    ]
    steps = iter(sequence)
    monkeypatch.setattr("utils.processes.flight_recorder.collective_numbers", lambda backend: next(steps)[0])
    watchdog, waits = CollectiveWatchdog(600, print), []
    for _ in sequence:
        watchdog.tick(2.0)
        waits.append(watchdog.seconds)
    assert waits == [seconds for _, seconds in sequence]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("Connection closed by peer [127.0.0.1]:1234", State.LOST_RANK),
        ("Timed out waiting 3000ms for recv operation to complete", State.TIMED_OUT),
        ("writev [10.0.0.1]:1: No route to host", State.TIMED_OUT),
        ("connect: Network is unreachable", State.TIMED_OUT),
        ("a bug", State.FAILED),
    ],
)
def test_errors_of_the_connection_are_told_from_others(text, state):
    assert leaving_state(RuntimeError(text)) is state
    assert leaving_state(ValueError(text)) is State.FAILED
    assert leaving_state(SystemExit(text)) is State.INTERRUPTED
