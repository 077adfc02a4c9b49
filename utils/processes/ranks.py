"""The ranks of a run: their connection to its key-value store, their processes, and their messages to each other.

Each wait for the store has a limit, and prints a line after ten seconds.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

import torch.distributed as dist

from utils.errors import Unavailable
from utils.processes.launch import read_stat
from utils.processes.launcher import LOOPBACK
from utils.threads import DaemonPool, wait_for

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

    waits = f"rank {rank} waits for rank 0 at {address}:{port} (MASTER_ADDR, MASTER_PORT), at most {limit_seconds:g} s"
    thread = DaemonPool(1)  # torch waits without a limit for an answer
    store = thread.submit(connect)
    own_limit = limit_seconds + 3 * _ATTEMPT_SECONDS  # `connect` reaches its limit first
    if not wait_for(store.done, own_limit, (lambda: waits) if place["LOCAL_RANK"] == "0" else None):
        problem = f"another program listens at {address}:{port}: it does not answer rank {rank} as rank 0 does"
    elif isinstance(error := store.exception(), OSError | dist.DistError):
        reason = getattr(error, "strerror", None) or str(error).rpartition("message: ")[2]
        problem = f"rank {rank} cannot {'open' if is_server else 'connect to'} {address}:{port} ({reason})"
    else:
        return dist.PrefixStore(f"attempt {attempt}", store.result())
    raise Unavailable(f"MASTER_ADDR, MASTER_PORT: {problem}; set them to the host of rank 0 and a free port on it")


_MESSAGES = "messages"  # a key of the store


class Message(StrEnum):
    """A rank that leaves the run sends FAILS (its own error) or LOST_A_RANK. The others answer WAITS (the GPU is
    blocked in a collective operation) or RUNS."""

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
