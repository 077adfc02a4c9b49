"""Starts a script once per device, and ends the processes with their launcher.

torch is imported only where processes are started, because its import is slow.
"""

import ctypes
import logging
import os
import signal
import sys
import tempfile
from typing import Any

from utils.processes.launcher import PARENT_PID
from utils.signals import TERMINATION_SIGNALS, record_signals

_REPORT = "AMPVIT_REPORT"  # environment variable: a file, created by the process that prints the error
_SHUTDOWN_SECONDS = 120  # time to save a checkpoint after a signal, before the processes are killed


def exit_with_launcher() -> None:
    """Makes a launched process exit with its launcher, and at once on a signal until it joins the process group.

    Call it before torch is imported: a Python signal handler runs only after the import, and after torch's rendezvous
    with the other processes.
    """
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()
    if os.environ.get(PARENT_PID, str(os.getppid())) != str(os.getppid()):
        raise SystemExit(1)  # the launcher was killed before prctl was called


def end_with_parent() -> None:
    """Makes this process receive SIGTERM when the process that started it ends, on Linux."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def launch_processes(script: str, argv: list[str], num_processes: int) -> int:
    """Runs `python script argv` in `num_processes` processes on this host and returns their exit status.

    If one fails, the others are terminated. The termination signals are forwarded; the status is then 128 + the
    signal number. The launcher itself prints only the death of a process by a signal.
    """
    import torch
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    agent_log = logging.getLogger("torch.distributed.elastic")
    agent_log.addHandler(logging.NullHandler())
    agent_log.propagate = False
    os.environ[PARENT_PID] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // num_processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_SECONDS))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        max_restarts=0,
        run_id=f"ampvit-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        signals_to_handle=",".join(number.name for number in TERMINATION_SIGNALS),
    )
    arguments = [argument.replace("$", "$$") for argument in argv]  # the agent expands ${local_rank} in arguments
    with tempfile.TemporaryDirectory() as folder:
        os.environ[_REPORT] = os.path.join(folder, "reported")
        try:
            elastic_launch(config, sys.executable)("-u", script, *arguments)
        except ChildFailedError as error:
            return _failure_status(error.failures)
        except SignalException as error:
            record_signals()  # the agent's handler would raise the next one here
            return 128 + error.sigval
    return 0


def claim_error_line() -> bool:
    """Returns whether this process is to print why the run ends: the first one that asks under `launch_processes`."""
    try:
        os.close(os.open(os.environ.get(_REPORT, ""), os.O_CREAT | os.O_EXCL))
    except OSError as error:  # without a launcher, or if the system has deleted old temporary folders, it prints
        return not isinstance(error, FileExistsError)
    return True


def _failure_status(failures: dict[int, Any]) -> int:
    """The exit status of the process that failed first. torch's agent terminates the others with SIGTERM."""
    rank = min(failures, key=lambda rank: (failures[rank].exitcode == -signal.SIGTERM, failures[rank].timestamp))
    status = failures[rank].exitcode
    if status > 0:
        return status
    hint = "; possible cause: out of host memory" if status == -signal.SIGKILL else ""
    name = failures[rank].signal_name()
    if claim_error_line():
        print(f"error: the process of rank {rank} was terminated by {name}{hint}", file=sys.stderr, flush=True)
    return 128 - status
