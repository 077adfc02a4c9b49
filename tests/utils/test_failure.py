"""Seen from one rank: its start, ranks that end, and a key-value store that does not answer."""

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from utils import distributed, status, threads
from utils.distributed import connect_store
from utils.errors import UserError
from utils.processes import failure
from utils.processes.failure import (
    Membership,
    Message,
    RankProcess,
    RunStore,
    describe_silent_store,
    diagnose,
    has_lost_connection,
)
from utils.signals import Interrupted

LIMIT_SECONDS = 30
HERE, LOOPBACK = socket.gethostname(), "127.0.0.1"
OWN = RankProcess(0, HERE, os.getpid(), "")
NEAR, FAR, FAR2 = RankProcess(1, HERE, 11, ""), RankProcess(2, "node2", 12, ""), RankProcess(3, "node2", 13, "")
FAILS, LOST, WAITS, RUNS = (frozenset({message}) for message in Message)


def test_no_thread_uses_the_store_after_the_end():
    """Such a thread would abort the process at Python's exit."""
    before = set(threading.enumerate())
    membership = Membership(RunStore(dist.HashStore(), 0, 1), limit_seconds=600)
    membership.start()
    assert len(set(threading.enumerate()) - before) == 2
    membership.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_SECONDS)
    assert set(threading.enumerate()) <= before


def test_processes_of_this_host_are_recognized():
    """A process of another container with the same host name is never killed: its id means another process here."""
    store = dist.HashStore()
    child = subprocess.Popen(["sleep", "600"])
    start_time = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
    for rank, host, start in ((1, HERE, start_time), (2, HERE, "1"), (3, "another-host", "-")):
        store.set(f"process {rank}", f"{child.pid} {start} {host}")
    RunStore(store, 0, 4).announce()
    own, near, contained, far = RunStore(store, 0, 4).processes(limit_seconds=60)
    assert own.pid == os.getpid() and not own.has_ended() and own.has_same_launcher()
    assert [one.has_ended() for one in (near, far)] == [False, False]
    assert not any(one.has_same_launcher() for one in (near, contained, far))
    child.kill()
    child.wait()
    assert [one.has_ended() for one in (near, far)] == [True, False]


@pytest.mark.parametrize(
    ("messages", "words", "lost"),
    [
        ({0: LOST, 1: LOST}, "no answer from node2: the network may be cut", [FAR, FAR2]),
        ({0: LOST, 2: FAILS, 3: LOST}, "out of host memory", [NEAR]),
        ({0: LOST, 1: RUNS, 2: LOST, 3: LOST}, "does not respond", [NEAR]),
        (dict.fromkeys(range(4), LOST), f"network of {HERE} and node2 may be cut", []),
        ({0: LOST, 1: LOST, 2: FAILS, 3: LOST}, None, []),  # rank 2 reports a cause
    ],
)
def test_lost_ranks_are_named(messages, words, lost):
    message, to_kill = diagnose([OWN, NEAR, FAR, FAR2], messages)
    assert to_kill == lost and (words in message if words else message is None)
    assert {rank for rank in range(4) if f"rank {rank} " in (message or "")} == {one.rank for one in lost}


def test_the_owner_of_a_store_that_does_not_answer_is_named():
    message, lost = describe_silent_store([FAR, FAR2, OWN])
    assert all(word in message for word in ("no answer from node2", "rank 2", "rank 3")) and lost == [FAR, FAR2]
    assert describe_silent_store([])[1] == []
    message, lost = describe_silent_store([NEAR, OWN])
    assert message.startswith(f"{NEAR} or its launcher") and lost == []  # it is alive


def test_the_rank_that_records_a_loss_prints_how_to_resume(capsys, monkeypatch):
    membership = Membership(RunStore(dist.HashStore(), 0, 1), LIMIT_SECONDS)
    for resume, printed in (("again", "resume with: again\n"), (None, "")):
        monkeypatch.setattr(status, "on_run_end", lambda resume=resume, **values: resume)
        membership._report("rank 1 ended", [], is_printed=True)
        assert capsys.readouterr().err == f"error: rank 1 ended\n{printed}"


def test_messages_of_ranks_and_the_first_that_has_left():
    store = dist.HashStore()
    first, other = RunStore(store, 700, 1000), RunStore(store, 3, 1000)
    assert not first.is_ending()
    first.send(Message.FAILS)
    other.send(Message.WAITS)
    other.send(Message.LOST_A_RANK)
    assert other.is_ending() and list(other.messages().items()) == [(700, FAILS), (3, LOST | WAITS)]


def test_waiting_for_one_collective_is_told_from_a_sequence_of_them(monkeypatch):
    """Numbers of started and ended operations of two groups, and how long the oldest has been the next one to end."""
    sequence = [
        ({}, 0),
        ({"all": (-1, -1), "few": (5, 5)}, 0),
        ({"all": (4, 2), "few": (5, 5)}, 0),
        ({"all": (4, 2), "few": (7, 6)}, 0.5),
        ({"all": (5, 3), "few": (7, 6)}, 0.5),  # one of the groups continues
        ({"all": (5, 3), "few": (9, 7)}, 0.5),
        ({"all": (9, 3), "few": (9, 7)}, 1),  # operations are still started
        ({"all": (9, 9), "few": (9, 7)}, 1),
        ({"all": (9, 9), "few": (9, 9)}, 0),
    ]
    membership, waits = Membership(RunStore(dist.HashStore(), 0, 1), limit_seconds=600), []
    numbers = iter(numbers for numbers, _ in sequence)

    def has_stopped(seconds: float) -> bool:
        waits.append(membership.gpu_wait_seconds)
        return len(waits) > len(sequence)

    monkeypatch.setattr(failure, "collective_numbers", lambda backend: next(numbers))
    monkeypatch.setattr(membership._stopped, "wait", has_stopped)
    membership._watch_gpu()
    assert waits[1:] == [seconds for _, seconds in sequence]


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("Connection closed by peer [127.0.0.1]:1234", True),
        ("Timed out waiting 3000ms for recv operation to complete", True),
        ("a bug", False),
    ],
)
def test_errors_of_the_connection_are_told_from_others(text, is_lost):
    signal_of_the_launcher = Interrupted(signal.SIGTERM)
    signal_of_the_launcher.__context__ = RuntimeError(text)  # raised while this error was handled
    assert has_lost_connection(RuntimeError(text)) == has_lost_connection(signal_of_the_launcher) == is_lost
    assert not has_lost_connection(ValueError(text)) and not has_lost_connection(SystemExit(text))


@pytest.fixture
def short_waits(monkeypatch):
    monkeypatch.setattr(threads, "_QUIET_SECONDS", 0.3)
    monkeypatch.setattr(distributed, "_ATTEMPT_SECONDS", 0.3)


def place(port: int, rank: int = 1) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": "0", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}


def test_ranks_share_the_store_of_rank_0_which_no_other_host_reaches():
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    stores = [connect_store(place(port, rank), limit_seconds=60) for rank in (0, 1)]
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"
    with pytest.raises(OSError):  # another address of this host
        socket.create_connection(("127.0.0.2", port), timeout=1)


@pytest.mark.usefixtures("short_waits")
def test_another_program_on_the_port_is_named(capsys):
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=rf"MASTER_PORT: another program listens at {LOOPBACK}:{port}"):
            connect_store(place(port), limit_seconds=1)
        with pytest.raises(UserError, match=rf"rank 0 cannot open {LOOPBACK}:{port} \(Address already in use\)"):
            connect_store(place(port, rank=0), limit_seconds=1)
    assert f"rank 1 waits for rank 0 at {LOOPBACK}:{port}" in capsys.readouterr().err


@pytest.mark.usefixtures("short_waits")
def test_an_address_without_a_listener_is_named(capsys):
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UserError, match=rf"rank 1 cannot connect to {LOOPBACK}:{port} \(Connection refused\)"):
        connect_store(place(port), limit_seconds=1)
    assert capsys.readouterr().err.count("rank 1 waits") == 1


@pytest.mark.usefixtures("short_waits")
def test_a_rank_that_does_not_start_is_named(capsys):
    store = dist.HashStore()
    for rank in (0, 2):
        RunStore(store, rank, 3).announce()
    with pytest.raises(UserError, match=r"WORLD_SIZE is 3: rank 0 waits for rank 1, for 1 s now"):
        RunStore(store, 0, 3).processes(limit_seconds=1)
    assert capsys.readouterr().err.startswith("WORLD_SIZE is 3: rank 0 waits for rank 1, at most 1 s")
    RunStore(store, 1, 3).announce()
    assert [one.pid for one in RunStore(store, 0, 3).processes(limit_seconds=1)] == [os.getpid()] * 3
