"""Runs entry scripts in forks of a process that has imported their modules: a script then starts in milliseconds.

A fork runs the script as `python SCRIPT` does, in a session of its own. As a program, this file is the process that
forks; it keeps a single thread, since a fork copies only one.
"""

import atexit
import contextlib
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE")
_status = 0


def script_environment() -> dict[str, str]:
    """This process's environment without a launcher's variables, for a script of one thread on the CPU."""
    inherited = {key: value for key, value in os.environ.items() if key not in _LAUNCHER_VARIABLES}
    return inherited | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class ForkedScript:
    """A running script, with the part of the interface of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid, self.returncode = pid, None
        self._connection = connection

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._connection.poll(timeout):
                raise subprocess.TimeoutExpired("a forked script", timeout)
            self.returncode = self._connection.recv()
        return self.returncode


class Interpreter:
    """A process that forks to run one script at a time.

    modules: names of the modules that it imports at its start.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._connection, theirs = Pipe()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, env=script_environment(), pass_fds=[theirs.fileno()])
        theirs.close()
        self._connection.send(list(modules))

    def start(self, script: str, argv: Sequence[str], printed: Path, environment: dict[str, str]) -> ForkedScript:
        """Starts a script in the folder of `printed`, the file for its output."""
        request = {"argv": [str(ROOT / script), *argv], "printed": str(printed), "environment": environment}
        self._connection.send(request)
        return ForkedScript(self._connection.recv(), self._connection)

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


def _serve(connection: Connection) -> dict[str, Any]:
    """Forks for each request. Returns in the forks only, with the request."""
    while True:
        try:
            request = connection.recv()
        except EOFError:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            connection.close()
            return request
        connection.send(pid)
        _, status = os.waitpid(pid, 0)
        connection.send(os.waitstatus_to_exitcode(status))


def _become(request: dict[str, Any]) -> None:
    """Makes this process look like a new one that runs the script of the request."""
    os.setsid()
    printed = Path(request["printed"])
    with open(os.devnull, "rb") as nothing, open(printed, "wb") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(printed.parent)
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = request["argv"]


def _import(modules: Sequence[str]) -> None:
    for name in modules:
        with contextlib.suppress(Exception):  # some names are no modules of files
            importlib.import_module(name)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"the imported modules have started {threads - 1} threads")
    gc.freeze()  # no fork has to copy the memory of these modules to collect or free their objects


def _skip_teardown() -> None:
    """Ends the process before the interpreter frees its modules, for which a fork would have to copy their memory."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_status)


if __name__ == "__main__":
    atexit.register(_skip_teardown)  # first, so that it runs last; not in the catalogue, which imports this module
    sys.path[0] = str(ROOT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the caller, and the end of its requests this process
    own = Connection(int(sys.argv[1]))
    _import(own.recv())
    _become(_serve(own))
    try:
        _status = 1  # of an exception that is not caught
        runpy.run_path(sys.argv[0], run_name="__main__")
        _status = 0
    except SystemExit as end:
        _status = end.code
