"""The start of a rank: it waits for the store and for the other ranks with a limit, and says for what."""

import os
import socket

import pytest
import torch.distributed as dist

from utils import threads
from utils.errors import UserError
from utils.processes import ranks
from utils.processes.ranks import RunStore, connect_store

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(threads, "_QUIET_SECONDS", 0.3)
    monkeypatch.setattr(ranks, "_ATTEMPT_SECONDS", 0.3)


def place(port: int, rank: int = 1) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": "0", "MASTER_ADDR": HERE, "MASTER_PORT": str(port)}


def test_ranks_share_the_store_of_rank_0_which_no_other_host_reaches():
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    stores = [connect_store(place(port, rank), limit_seconds=60) for rank in (0, 1)]
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"
    with pytest.raises(OSError):  # another address of this host
        socket.create_connection(("127.0.0.2", port), timeout=1)


def test_another_program_on_the_port_is_named(capsys):
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=rf"MASTER_PORT: another program listens at {HERE}:{port}"):
            connect_store(place(port), limit_seconds=1)
        with pytest.raises(UserError, match=rf"rank 0 cannot open {HERE}:{port} \(Address already in use\)"):
            connect_store(place(port, rank=0), limit_seconds=1)
    assert f"rank 1 waits for rank 0 at {HERE}:{port}" in capsys.readouterr().err


def test_an_address_without_a_listener_is_named(capsys):
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UserError, match=rf"rank 1 cannot connect to {HERE}:{port} \(Connection refused\)"):
        connect_store(place(port), limit_seconds=1)
    assert capsys.readouterr().err.count("rank 1 waits") == 1


def test_a_rank_that_does_not_start_is_named(capsys):
    store = dist.HashStore()
    for rank in (0, 2):
        RunStore(store, rank, 3).announce()
    with pytest.raises(UserError, match=r"WORLD_SIZE is 3: rank 0 waits for rank 1, for 1 s now"):
        RunStore(store, 0, 3).processes(limit_seconds=1)
    assert capsys.readouterr().err.startswith("WORLD_SIZE is 3: rank 0 waits for rank 1, at most 1 s")
    RunStore(store, 1, 3).announce()
    assert [one.pid for one in RunStore(store, 0, 3).processes(limit_seconds=1)] == [os.getpid()] * 3


@pytest.mark.parametrize(("shared", "counts_matter"), [("True", True), ("False", False)])
def test_agents_that_joined_at_different_times_share_a_store(monkeypatch, shared, counts_matter):
    """An agent that joined an elastic run later has counted fewer restarts than the others."""
    store = dist.HashStore()
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: store)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: socket.socket())
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    connect_store(place(1), 60).set("host", "a")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert connect_store(place(1), 60).check(["host"]) != counts_matter
