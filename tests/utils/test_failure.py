"""Processes that end, and a key-value store that does not answer, seen from one process."""

import json
import os
import re
import socket
import subprocess
import threading
import time

import pytest
import torch.distributed as dist

from utils import failure
from utils.failure import Companions, is_peer_failure
from utils.flight_recorder import CollectiveWatchdog
from utils.peers import Peer, announce, cut_off_message, lost_message, ranks_without, read_peers
from utils.status import RunStatus, read_status

LIMIT_SECONDS = 30
HERE = socket.gethostname()


def announce_child(store: dist.Store, rank: int) -> subprocess.Popen:
    """A sleeping process that announces itself as `rank`."""
    child = subprocess.Popen(["sleep", "600"])
    with open(f"/proc/{child.pid}/stat") as file:
        start_time = file.read().rpartition(")")[2].split()[19]
    store.set(f"process {rank}", f"{child.pid} {start_time} {HERE}")
    return child


def test_death_of_a_rank_is_recorded_while_the_main_thread_is_busy(tmp_path):
    """mpirun kills the other ranks about a second after the death of one."""
    RunStatus(tmp_path, 2).begin()
    store = dist.HashStore()
    child = announce_child(store, 1)
    companions = Companions(store, 0, 2, seconds=600)
    assert [peer.pid for peer in companions.meet()] == [os.getpid(), child.pid]
    watcher = threading.Thread(target=companions.exit_on_failure, args=(store,))
    watcher.start()
    assert read_status(tmp_path)["state"] == "running"
    child.kill()
    child.wait()
    deadline = time.monotonic() + LIMIT_SECONDS
    while read_status(tmp_path)["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.05)
    companions.finished.set()
    watcher.join()
    status = read_status(tmp_path)
    assert status["state"] == "failed"
    assert status["message"].startswith(f"rank 1 (process {child.pid} on {HERE}) ended without an error message")


def test_a_process_of_another_container_is_not_watched():
    """Its id means another process here, or none."""
    store = dist.HashStore()
    announce(store, 0)
    store.set("process 1", f"{os.getpid()} 1 {HERE}")
    store.set("process 2", f"{os.getpid()} - another-host")
    own, *others = read_peers(store, range(3))
    assert own.is_visible() and not own.has_ended()
    assert [peer.is_visible() for peer in others] == [False, False]


@pytest.mark.parametrize(
    ("started", "message"),
    [
        (
            {0: {"gloo 0": 7, "gloo 1": 3}, 1: {"gloo 0": 6, "gloo 1": 3}},
            r"^rank 1 \(.*\) did not arrive at a collective",
        ),
        ({0: {"gloo 0": 7}, 1: {"gloo 0": 7}}, r"^all ranks wait in the same collective .* network of .* may be cut"),
        ({0: {}, 1: {}}, r"^all ranks wait in the same collective"),  # torch does not say
    ],
)
def test_all_ranks_time_out(monkeypatch, started, message):
    monkeypatch.setattr(failure, "RESPONSE_SECONDS", 0.0)
    store = dist.HashStore()
    companions = Companions(store, 0, 2, seconds=600)
    store.set("process 1", f"1 - {HERE}")
    companions.meet()
    for rank, counts in started.items():
        store.set(f"gave up {rank}", "")
        store.set(f"alive {rank}", json.dumps(counts))
    assert re.search(message, companions.find_lost_ranks(timed_out=True))
    assert companions.find_lost_ranks(timed_out=False) is None


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
            store.set(f"alive {rank}", "")
    assert ranks_without(store, "alive", range(1000)) == sorted(lost)
    assert store.requests < 50
    assert ranks_without(store, "gave up", []) == []


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
    monkeypatch.setattr("utils.flight_recorder.collective_numbers", lambda backend: next(steps)[0])
    watchdog, silences = CollectiveWatchdog(600, print), []
    for _ in sequence:
        watchdog.tick(2.0)
        silences.append(watchdog.seconds)
    assert silences == [seconds for _, seconds in sequence]


def test_messages_name_hosts_and_ranks():
    own = Peer(0, HERE, os.getpid(), "")
    near, far, far2 = Peer(1, HERE, 11, ""), Peer(2, "node2", 12, ""), Peer(3, "node2", 13, "")
    peers = [own, near, far, far2]
    cut = lost_message([far, far2], peers, cut_is_possible=True)
    names = "rank 2 (process 12 on node2) and rank 3 (process 13 on node2)"
    assert cut == f"{HERE} has no answer from {names}: the network to node2 may be cut, or that host is down or stopped"
    memory = "ended without an error message or is stopped; possible cause: out of host memory"
    assert lost_message([far], peers, cut_is_possible=True).endswith(memory)  # another rank of that host answers
    assert lost_message([far, far2], peers, cut_is_possible=False).endswith(memory)  # its connections were closed
    behind_the_cut = cut_off_message([far, far2, own], 20)
    assert behind_the_cut == (
        f"{HERE} has no answer from node2, the host of {names}, for 20 s (TIMEOUT_SECONDS): the network may be cut"
    )
    assert "the network to it may be cut" in cut_off_message([], 600)
    assert cut_off_message([own, near], 600).startswith(f"the launcher of rank 0 (process {os.getpid()} on {HERE}) has")
    assert cut_off_message([near, own], 600).startswith(f"rank 1 (process 11 on {HERE}) or its launcher has not")


@pytest.mark.parametrize(
    "text",
    [
        "Connection closed by peer [127.0.0.1]:1234",
        "Timed out waiting 3000ms for recv operation to complete",
        "writev [10.0.0.1]:1: No route to host",
        "connect: Network is unreachable",
    ],
)
def test_errors_of_the_connection_are_told_from_others(text):
    assert is_peer_failure(RuntimeError(text))
    assert not is_peer_failure(ValueError(text))
    assert not is_peer_failure(RuntimeError("a bug"))
