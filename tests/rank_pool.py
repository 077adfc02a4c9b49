"""Ranks for tests: their processes start once, and call functions of the tests."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rank import run_commands

_TIMEOUT_SECONDS = 300
_OF_LAUNCHERS = "RANK WORLD_SIZE LOCAL_ MASTER_ TORCHELASTIC_ PET_ SLURM_ OMPI_ PMI_ MPI_ AMPVIT_"


def environment(gpus: str = "") -> dict[str, str]:
    """The environment of a user who starts a script on these GPUs, separated by commas, without a launcher."""
    of_launchers = tuple(_OF_LAUNCHERS.split())
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(of_launchers)}
    return inherited | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": gpus}


def reset_signals():
    """Makes the processes that this one starts end by Ctrl-C and by a closed terminal.

    nohup and a shell's `&` start a program with these signals ignored, and its child processes inherit this. They do
    not inherit a handler: a handler that does nothing ignores the signals in this process only.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


class RankPool:
    """`count` ranks of one process group. They start with the first call, and again after a failure."""

    def __init__(self, count: int, gpus: str = ""):
        self._count = count
        self._gpus = gpus
        self._processes: list[subprocess.Popen] = []
        self._connections: list[Connection] = []

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Calls `function(context, *arguments)` on every rank; returns the results in the order of ranks.

        The ranks import the function by its name. An exception of one rank ends all of them.
        """
        if not self._connections:
            self._start()
        request = pickle.dumps((sys.path, pickle.dumps((function, arguments))))
        results: dict[Connection, Any] = {}
        try:
            for connection in self._connections:
                connection.send_bytes(request)
            while waiting := [connection for connection in self._connections if connection not in results]:
                ready = wait(waiting, _TIMEOUT_SECONDS)
                assert ready, "the ranks do not answer"
                results |= {connection: pickle.loads(connection.recv_bytes()) for connection in ready}
        except (EOFError, OSError, AssertionError) as error:
            self.close()
            self._log.seek(0)
            raise AssertionError(self._log.read()) from error
        return [results[connection] for connection in self._connections]

    def run(self, *commands: Iterable[str]):
        """Runs the commands of an entry script one after the other."""
        self(run_commands, list(map(list, commands)))

    def close(self):
        """Ends the ranks."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []
        self._connections = []

    def _start(self):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # the ranks write to it
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        group = f"WORLD_SIZE={self._count} LOCAL_WORLD_SIZE={self._count} MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
        for rank in range(self._count):
            variables = f"RANK={rank} LOCAL_RANK={rank} {group}"
            own, other = Pipe()
            with other:
                process = subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("rank.py")), str(other.fileno())],
                    cwd=Path(__file__).parents[1],
                    env=environment(self._gpus) | dict(word.split("=") for word in variables.split()),
                    stdout=self._log,
                    stderr=self._log,
                    pass_fds=[other.fileno()],
                )
            self._processes.append(process)
            self._connections.append(own)
