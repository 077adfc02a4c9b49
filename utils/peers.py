"""The processes of a run, known to each other by rank, host and process id, and whether one of them has ended."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

_PROCESS = "process"  # key of a process in the store
_ENDED_STATES = ("Z", "X")
_STOPPED_STATES = ("T", "t")


@dataclass(frozen=True)
class Peer:
    """A process of a run.

    start_time: of the process, in clock ticks since the host started; "" where there is no /proc.
    """

    rank: int
    host: str
    pid: int
    start_time: str

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    def is_visible(self) -> bool:
        """Whether this process sees the peer: it is on this host, and in no other container."""
        return bool(self.start_time) and self.host == socket.gethostname() and _stat(self.pid)[1] == self.start_time

    def is_stopped(self) -> bool:
        """Whether a visible peer is stopped by a signal or a debugger."""
        return self.is_visible() and _stat(self.pid)[0] in _STOPPED_STATES

    def has_ended(self) -> bool:
        """Whether a peer that was visible has ended; another process may have its id now."""
        state, start_time = _stat(self.pid)
        return state in _ENDED_STATES or start_time != self.start_time


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, ...; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _stat(pid: int) -> tuple[str, str]:
    """The state and the start time of a process; empty texts if there is none."""
    fields = _fields(pid)
    return (fields[0], fields[19]) if fields else ("", "")


def announce(store: dist.Store, rank: int) -> None:
    """Writes this process to the store."""
    store.set(f"{_PROCESS} {rank}", f"{os.getpid()} {_stat(os.getpid())[1] or '-'} {socket.gethostname()}")


def read_peers(store: dist.Store, ranks: Sequence[int]) -> list[Peer]:
    """The processes of these ranks; waits until each has announced itself."""
    texts = store.multi_get([f"{_PROCESS} {rank}" for rank in ranks]) if ranks else []
    return [_parse(rank, text.decode()) for rank, text in zip(ranks, texts, strict=True)]


def announced_peers(store: dist.Store, world_size: int) -> list[Peer]:
    """The processes that have announced themselves so far."""
    absent = set(ranks_without(store, _PROCESS, range(world_size)))
    return read_peers(store, [rank for rank in range(world_size) if rank not in absent])


def ranks_without(store: dist.Store, name: str, ranks: Sequence[int]) -> list[int]:
    """The ranks without a key `NAME RANK` in the store.

    One request if there are none, and a few for each: a thousand ranks may ask at the same time.
    """
    if not ranks or store.check([f"{name} {rank}" for rank in ranks]):
        return []
    if len(ranks) == 1:
        return list(ranks)
    middle = len(ranks) // 2
    return ranks_without(store, name, ranks[:middle]) + ranks_without(store, name, ranks[middle:])


def _parse(rank: int, text: str) -> Peer:
    pid, start_time, host = text.split(maxsplit=2)
    return Peer(rank, host, int(pid), start_time.strip("-"))


def is_sibling(peer: Peer) -> bool:
    """Whether the launcher of this process started it on this host."""
    return peer.is_visible() and int(_fields(peer.pid)[1]) == os.getppid()


def join_names(peers: Sequence[Peer]) -> str:
    return " and ".join(map(str, peers))


def ended_message(ended: Sequence[Peer]) -> str:
    return f"{join_names(ended)} ended without an error message; possible cause: out of host memory"


def lost_message(lost: Sequence[Peer], peers: Sequence[Peer], cut_is_possible: bool) -> str:
    """One line on the ranks that do not respond. Those of whole other hosts may be behind a cut in the network.

    cut_is_possible: no connection was closed, which the end of a process does.
    """
    own, lost_ranks = socket.gethostname(), {peer.rank for peer in lost}
    hosts = sorted({peer.host for peer in lost})
    if all(peer.host == own and peer.start_time and peer.has_ended() for peer in lost):
        return ended_message(lost)
    if all(peer.is_stopped() for peer in lost):
        return f"{join_names(lost)} is stopped (SIGSTOP)"
    whole = own not in hosts and all(peer.rank in lost_ranks for peer in peers if peer.host in hosts)
    if cut_is_possible and whole:
        return (
            f"{own} has no answer from {join_names(lost)}: the network to {' and '.join(hosts)} may be cut, or "
            f"{'that host is' if len(hosts) == 1 else 'those hosts are'} down or stopped"
        )
    return f"{join_names(lost)} ended without an error message or is stopped; possible cause: out of host memory"


def cut_off_message(peers: Sequence[Peer], seconds: float) -> str:
    """One line on a key-value store that does not answer; rank 0 or its launcher, on the same host, owns it.

    peers: empty if they did not announce themselves yet.
    """
    own = socket.gethostname()
    if not peers:
        return f"{own}: the host of rank 0 has not answered for {seconds:.0f} s; the network to it may be cut"
    host = peers[0].host
    silent = f"for {seconds:.0f} s (TIMEOUT_SECONDS)"
    if host == own:
        owner = f"the launcher of {peers[0]}" if peers[0].pid == os.getpid() else f"{peers[0]} or its launcher"
        return f"{owner} has not answered {silent}; it may be stopped"
    lost = [peer for peer in peers if peer.host == host]
    return f"{own} has no answer from {host}, the host of {join_names(lost)}, {silent}: the network may be cut"
