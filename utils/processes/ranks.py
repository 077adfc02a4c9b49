"""The processes of the ranks of a run, and their messages to each other."""

import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from utils.threads import run_briefly

Counts = dict[str, int]  # collective operations that a rank has started, by process group
RESPONSE_SECONDS = 2.0  # a live rank answers within this time
_LEAVING, _TIMED_OUT = "ranks that leave", "timed out"  # keys of the store; others end in a rank
_ENDED_STATES = ("Z", "X")
_STOPPED_STATES = ("T", "t")


@dataclass(frozen=True)
class RankProcess:
    """The process of a rank.

    start_time: in clock ticks since the host started; "" where there is no /proc.
    """

    rank: int
    host: str
    pid: int
    start_time: str

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    def is_visible(self) -> bool:
        """Returns whether this process sees the other one: it is on this host, and in no other container."""
        return bool(self.start_time) and self.host == socket.gethostname() and _stat(self.pid)[1] == self.start_time

    def is_stopped(self) -> bool:
        """Returns whether a visible process is stopped by a signal or a debugger."""
        return self.is_visible() and _stat(self.pid)[0] in _STOPPED_STATES

    def has_ended(self) -> bool:
        """Returns whether a process that was visible has ended; another one may have its id now."""
        state, start_time = _stat(self.pid)
        return state in _ENDED_STATES or start_time != self.start_time

    def is_local_and_ended(self) -> bool:
        return self.host == socket.gethostname() and bool(self.start_time) and self.has_ended()

    def has_same_launcher(self) -> bool:
        """Returns whether the launcher of this process started it on this host."""
        return self.is_visible() and int(_fields(self.pid)[1]) == os.getppid()


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


class RunStore:
    """Messages between the ranks of a run through their key-value store, which rank 0 or its launcher owns.

    Methods raise dist.DistError if the owner has ended.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size

    def clone(self) -> "RunStore":
        """A second connection, for another thread: a call blocks all other calls of the same object."""
        return RunStore(self.store.clone(), self.rank, self.world_size)

    def announce(self) -> None:
        start_time = _stat(os.getpid())[1] or "-"
        self.store.set(f"process {self.rank}", f"{os.getpid()} {start_time} {socket.gethostname()}")

    def processes(self) -> list[RankProcess]:
        """The processes of all ranks; waits until each has announced itself."""
        texts = self.store.multi_get([f"process {rank}" for rank in range(self.world_size)])
        return [_parse(rank, text.decode()) for rank, text in enumerate(texts)]

    def leave(self, timed_out: bool) -> bool:
        """Announces that this rank leaves the run; returns whether it is the first one."""
        if timed_out:
            self.store.set(_TIMED_OUT, "")
        is_first = self.store.add(_LEAVING, 1) == 1
        self.store.set(f"left {self.rank}", "")
        return is_first

    def is_ending(self) -> bool:
        """Returns whether a rank has left."""
        return self.store.check([_LEAVING])

    def answer(self, counts: Callable[[], Counts]) -> bool:
        """Announces that this rank is alive, then its counts; returns whether a rank has left after a timeout."""
        key = f"answer {self.rank}"
        self.store.set(key, "{}")  # first: reading the counts may block in the driver of a GPU that hangs
        run_briefly(lambda: self.store.set(key, json.dumps(counts())), seconds=RESPONSE_SECONDS)
        return self.store.check([_TIMED_OUT])

    def answers(self) -> dict[int, Counts]:
        """The counts of each live rank, by rank."""
        silent = set(self.without("answer"))
        ranks = [rank for rank in range(self.world_size) if rank not in silent]
        texts = self.store.multi_get([f"answer {rank}" for rank in ranks]) if ranks else []
        return {rank: json.loads(text) for rank, text in zip(ranks, texts, strict=True)}

    def is_first_report(self) -> bool:
        return self.store.add("reported", 1) == 1

    def without(self, name: str, ranks: Sequence[int] | None = None) -> list[int]:
        """The ranks, of all or of these, without a key `NAME RANK`.

        One request if there are none, and a few for each: a thousand ranks may ask at the same time.
        """
        ranks = range(self.world_size) if ranks is None else ranks
        if not ranks or self.store.check([f"{name} {rank}" for rank in ranks]):
            return []
        if len(ranks) == 1:
            return list(ranks)
        middle = len(ranks) // 2
        return self.without(name, ranks[:middle]) + self.without(name, ranks[middle:])


def _parse(rank: int, text: str) -> RankProcess:
    pid, start_time, host = text.split(maxsplit=2)
    return RankProcess(rank, host, int(pid), start_time.strip("-"))
