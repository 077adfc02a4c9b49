"""Connects a rank to the key-value store of the run: each wait has a limit, and prints a line after ten seconds."""

import os
import socket
from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist

from utils.errors import Unavailable
from utils.processes.launcher import LOOPBACK
from utils.threads import DaemonPool
from utils.waits import wait_for

_ATTEMPT_SECONDS = 3.0  # of a connection


def open_loopback_store(address: str, port: int = 0, limit_seconds: float = 60) -> dist.TCPStore:
    """A key-value store that only processes of this host reach; torch's own socket listens on all interfaces.

    address: of `LOOPBACK`. port: 0 for a free one.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        port, timeout = server.getsockname()[1], timedelta(seconds=limit_seconds)
        descriptor = server.detach()
        return dist.TCPStore(address, port, None, True, timeout, wait_for_workers=False, master_listen_fd=descriptor)


def connect_store(place: Mapping[str, str], limit_seconds: float) -> dist.Store:
    """The key-value store of all ranks, separate for each restart of the run. place: of `torchrun_variables`.

    torchrun's agents share one store over all restarts, unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set; then each
    start has its own. Agents that joined a run at different times have counted different numbers of restarts.

    Raises:
        Unavailable: the store cannot be opened, or another program has its port.
    """
    rank, address, port = place["RANK"], place["MASTER_ADDR"], int(place["MASTER_PORT"])
    has_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # of torchrun: one of them owns the store
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if has_agents else "0"
    is_server = rank == "0" and not has_agents

    def accepts() -> bool:
        socket.create_connection((address, port), timeout=_ATTEMPT_SECONDS).close()
        return True

    def connect() -> dist.Store:
        if not (is_server or wait_for(accepts, limit_seconds)):  # torch would log each attempt at length
            accepts()  # raises the reason
        if is_server and address in LOOPBACK:
            return open_loopback_store(address, port, limit_seconds)
        timeout = timedelta(seconds=limit_seconds)
        return dist.TCPStore(address, port, None, is_server, timeout, wait_for_workers=False, multi_tenant=True)

    def describe() -> str:
        return (
            f"rank {rank} waits for rank 0 at {address}:{port} (MASTER_ADDR, MASTER_PORT), at most {limit_seconds:g} s"
        )

    thread = DaemonPool(1)  # torch waits without a limit for an answer
    store = thread.submit(connect)
    own_limit = limit_seconds + 3 * _ATTEMPT_SECONDS  # `connect` reaches its limit first
    if not wait_for(store.done, own_limit, describe if place["LOCAL_RANK"] == "0" else None):
        problem = f"another program listens at {address}:{port}: it does not answer rank {rank} as rank 0 does"
    elif isinstance(error := store.exception(), OSError | dist.DistError):
        reason = getattr(error, "strerror", None) or str(error).rpartition("message: ")[2]
        problem = f"rank {rank} cannot {'open' if is_server else 'connect to'} {address}:{port} ({reason})"
    else:
        return dist.PrefixStore(f"attempt {attempt}", store.result())
    raise Unavailable(f"MASTER_ADDR, MASTER_PORT: {problem}; set them to the host of rank 0 and a free port on it")
