"""Starts a script once per device, and ends the processes with their launcher.

torch is imported only where processes are started, because its import is slow.
"""

import contextlib
import ctypes
import math
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from utils.errors import Unavailable
from utils.files import TemporaryFolder
from utils.processes.launcher import KEY_PIPE, PARENT_PID
from utils.signals import SIGNAL_NAMES, handle_signals

_REPORT = "AMPVIT_REPORT"  # environment variable: a file, created by the process that prints the error
SHUTDOWN_SECONDS = 120  # time to save a checkpoint after a signal, before the processes are killed
_TERMINATION_SECONDS = 30  # the same after the failure of one of them
_POLL_SECONDS = 0.1


def exit_with_launcher() -> None:
    """Makes a launched process exit with its launcher, and at once on a signal until it joins the process group.

    Call it before torch is imported: a Python signal handler runs only after the import, and after torch's rendezvous
    with the other processes.
    """
    handle_signals(signal.SIG_DFL)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's warnings of a lost store are C++ stacks
    end_with_parent()
    if os.environ.get(PARENT_PID, str(os.getppid())) != str(os.getppid()):
        raise SystemExit(1)  # the launcher was killed before prctl was called


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Makes this process receive a signal when the process that started it ends, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def launch_processes(script: str, argv: list[str], num_processes: int) -> int:
    """Runs `python script argv` in `num_processes` processes on this host and returns their exit status.

    If one fails, the others are terminated. The termination signals are forwarded; the status is 128 + the number of
    one that came first. The launcher itself prints only the death of a process by a signal. It reads nothing that
    another program can send: torch's own agent unpickles the content of its key-value store. Call it last: its signal
    handlers remain.
    """
    import torch

    from utils.processes.ranks import open_loopback_store

    received: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []
    store = open_loopback_store("127.0.0.1")
    folder = TemporaryFolder("launch")
    os.environ[_REPORT] = os.path.join(folder.name, "reported")
    variables = os.environ | {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // num_processes))),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),  # as torchrun
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_processes)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the launcher, not rank 0, owns the store
        PARENT_PID: str(os.getpid()),
    }
    key = secrets.token_bytes(32)
    handle_signals(lambda number, frame: received.append(number))
    try:
        for rank in map(str, range(num_processes)):
            command = [sys.executable, "-u", script, *argv]
            try:
                pipe, end = os.pipe()  # an environment stays in /proc, and child processes inherit it
                os.write(end, key)
                os.close(end)
                of_rank = variables | {"RANK": rank, "LOCAL_RANK": rank, KEY_PIPE: str(pipe)}
                processes.append(subprocess.Popen(command, env=of_rank, start_new_session=True, pass_fds=[pipe]))
                os.close(pipe)
            except OSError as error:
                problem = f"-ngpus: rank {rank} cannot start ({error.strerror})"
                raise Unavailable(f"{problem}; raise ulimit -u and -n, or lower -ngpus") from error
        return _wait(processes, received)
    finally:
        stop_processes(processes, signal.SIGKILL, _TERMINATION_SECONDS)
        folder.cleanup()


def receive_key() -> bytes:
    """The key of the ranks that `launch_processes` has started, for the first call; empty without it.

    Call it after the server of workers is forked, which would have the key in its memory.
    """
    if not (pipe := os.environ.pop(KEY_PIPE, "")):
        return b""
    with open(int(pipe), "rb") as opened:
        return opened.read()


def _wait(processes: list[subprocess.Popen[bytes]], received: list[int]) -> int:
    """The exit status: of the first failure, or of a signal that came before it, unless all have ended with 0."""
    ended: dict[int, int] = {}  # statuses by rank, in the order of their ends
    num_sent, deadline, interrupted = 0, math.inf, False
    while len(ended) < len(processes) and time.monotonic() < deadline:
        for number in received[num_sent:]:
            _send(processes, number)
            num_sent += 1
        for rank, process in enumerate(processes):
            if rank not in ended and process.poll() is not None:
                ended[rank] = process.returncode
        if deadline == math.inf and (num_sent or any(ended.values())):
            interrupted = num_sent > 0
            if not interrupted:
                _send(processes, signal.SIGTERM)
            deadline = time.monotonic() + (SHUTDOWN_SECONDS if interrupted else _TERMINATION_SECONDS)
        time.sleep(_POLL_SECONDS)
    interrupted = interrupted and (len(ended) < len(processes) or any(ended.values()))
    return 128 + received[0] if interrupted else _failure_status(ended)


def stop_processes(processes: list[subprocess.Popen[bytes]], number: int, limit_seconds: float) -> None:
    """Sends a signal to processes that lead a group; kills the ones, and their workers, that are left at the limit."""
    _send(processes, number)
    deadline = time.monotonic() + limit_seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a device or a disk
            process.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _send(processes: list[subprocess.Popen[bytes]], number: int) -> None:
    """Sends a signal to the processes that have not ended, and to the processes that they have started."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)


def claim_error_line() -> bool:
    """Returns whether this process is to print why the run ends: the first one that asks under `launch_processes`."""
    try:
        os.close(os.open(os.environ.get(_REPORT, ""), os.O_CREAT | os.O_EXCL))
    except OSError as error:  # without a launcher, or if the system has deleted old temporary folders, it prints
        return not isinstance(error, FileExistsError)
    return True


def _failure_status(ended: dict[int, int]) -> int:
    """The exit status of the process that failed first; the launcher terminates the others with SIGTERM. 0: none has.

    ended: the statuses by rank, in the order of their ends.
    """
    failed = sorted((rank for rank in ended if ended[rank]), key=lambda rank: ended[rank] == -signal.SIGTERM)
    status = ended[failed[0]] if failed else 0
    if status >= 0:
        return status
    hint = "; possible cause: out of host memory" if status == -signal.SIGKILL else ""
    name = SIGNAL_NAMES.get(-status, f"signal {-status}")
    if claim_error_line():
        print(f"error: the process of rank {failed[0]} was terminated by {name}{hint}", file=sys.stderr, flush=True)
    return 128 - status


def read_stat(pid: int | str) -> tuple[str, str, str]:
    """State, parent and start time (in clock ticks since the host started); empty texts if there is no such process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
        return fields[0], fields[1], fields[19]
    return "", "", ""


@contextmanager
def inherited_import_path(**variables: str) -> Iterator[None]:
    """Gives Python processes that start in the block the import path of this one.

    They are started with `python -c`, which imports from the working folder first: its files are data, and may have the
    names of modules. Python 3.11 to 3.13 do not give the path to the fork server, which ignores that a module is
    missing.

    variables: other environment variables for the processes.
    """
    variables |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ |= variables
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ |= before
