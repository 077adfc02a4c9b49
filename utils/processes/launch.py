"""Finds the launcher that has started this process, and its rank; the store of ranks on one host.

torchrun, srun and mpirun pass the rank in different environment variables. `torchrun_variables` translates them to
torchrun's; no other module depends on the launcher. torch is imported only where the store is opened: its import is
slow.
"""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

from utils.errors import UserError
from utils.files import atomic_write
from utils.signals import handle_signals

if TYPE_CHECKING:
    import torch.distributed as dist

LAUNCHER_PID = "AMPVIT_LAUNCHER_PID"  # environment variable of the processes that `launch_ranks` starts
SHUTDOWN_SECONDS = 120  # time to save a checkpoint after a signal, before the processes are killed
LOOPBACK = ("127.0.0.1", "::1", "localhost")  # values of MASTER_ADDR: all ranks are on one host

# rank, world size, local rank, local world size
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")  # Intel MPI as well
_LAUNCHERS = (_TORCHRUN, _OPEN_MPI, _MPICH, _SRUN)
# Counts of tasks or nodes, also of submitit, SkyPilot and PaddlePaddle, which may start torchrun or this script several
# times; the last one is an option of torchrun.
_OTHER_COUNTS = ("SUBMITIT_LOCAL_NTASKS", "SKYPILOT_NUM_NODES", "PADDLE_TRAINERS_NUM")
_OUTER_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", *_OTHER_COUNTS)
_TORCHRUN_NODES = "PET_NNODES"


def detect_launcher() -> str | None:
    """'torchrun', 'srun' or 'mpirun'; None if this script is to start the processes of this host itself.

    The order matters: under Slurm, mpirun starts its processes through srun. An srun of a single task (an interactive
    shell, or one task with all GPUs) and a batch script, which has no step, count as started without a launcher.
    Raises UserError: a variable has no possible value; RANK or WORLD_SIZE is set, but it is unknown which of the
    processes on this host this one is; or another program started this script, or torchrun, several times.
    """
    _check_numbers()
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= environ.keys():
        if _is_one_torchrun():
            _refuse_several(
                _OUTER_COUNTS,
                "each torchrun would train alone on its host; "
                "give torchrun --nnodes, or leave it out (docs/clusters.md); unset {} for independent runs",
            )
        return "torchrun"
    launcher = None
    count = "1"
    if mpi := _mpi_variables():
        launcher = "mpirun"
        count = environ.get(mpi[1], "1")
    elif int(environ.get(_SRUN[1], "1")) > 1:
        launcher = "srun"
        count = environ[_SRUN[1]]
    elif "RANK" in environ and environ.get("WORLD_SIZE") == "1":
        launcher = "torchrun"
    if environ.get("WORLD_SIZE", count) != count or (launcher is None and "RANK" in environ):
        # A PyTorchJob of Kubernetes sets RANK to the pod, WORLD_SIZE to pods x processes (kubeflow/trainer#1840).
        raise UserError(
            "RANK or WORLD_SIZE without LOCAL_RANK: this process cannot know its rank; "
            "start torchrun on every host or pod, or unset RANK and WORLD_SIZE to train on this host alone"
        )
    if launcher in (None, "torchrun"):
        _refuse_several(
            (*_OTHER_COUNTS, _TORCHRUN_NODES),
            "every node or process would train apart; "
            "start torchrun on each host (docs/clusters.md), or unset {} to train on this host alone",
        )
    return launcher


def _refuse_several(counts: Iterable[str], problem: str) -> None:
    """Raises UserError: one of these variables counts several tasks or nodes; {} in `problem` stands for its name."""
    for name in counts:
        if environ.get(name, "1") != "1":
            raise UserError(f"{name} is {environ[name]!r}: {problem.format(name)}")


def _is_one_torchrun() -> bool:
    """Whether all ranks of torchrun or deepspeed are on one host: others, which count tasks or nodes, may start more.

    Not if torchrun may start with fewer nodes (--nnodes=MIN:MAX): by the variable that it then needs, or the option.
    """
    is_elastic = environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1" or ":" in environ.get(_TORCHRUN_NODES, "")
    is_by_launcher = "TORCHELASTIC_RUN_ID" in environ or "CROSS_SIZE" in environ  # deepspeed's number of hosts
    return is_by_launcher and not is_elastic and _local_world_size() == environ["WORLD_SIZE"]


def _local_world_size() -> str | None:
    """The number of ranks on this host, in the variable of torchrun or deepspeed; None if no variable tells it."""
    world_size = environ.get("WORLD_SIZE", "1")
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
        count = environ.get(name, "")
        if count.isdecimal() and int(environ.get("LOCAL_RANK", 0)) < int(count) <= int(world_size):
            return count
    return None


def _check_numbers() -> None:
    for names in _LAUNCHERS:
        for name in names:
            if not environ.get(name, "0").isdecimal():
                raise UserError(f"{name} is {environ[name]!r}: must be a number; launchers set it, otherwise unset it")
        rank, count, *_ = names
        if int(environ.get(rank, 0)) >= int(environ.get(count, sys.maxsize)):
            raise UserError(f"{rank} is {environ.get(rank, 0)}: must be below {count}, {environ[count]}")


def _mpi_variables() -> tuple[str, ...]:
    """The variables of the mpirun that started this process; none if no mpirun did."""
    if _OPEN_MPI[0] in environ:
        return _OPEN_MPI
    return _MPICH if {_MPICH[0], _MPICH[2]} <= environ.keys() else ()


def rank_of_process() -> int:
    """The rank in a launcher's variables, before the process has joined its group; 0 if there is none."""
    for rank, *_ in _LAUNCHERS:
        if environ.get(rank, "").isdecimal():
            return int(environ[rank])
    return 0


def check_is_alone() -> None:
    """Raises UserError if this process, or this node, is one of several that a launcher started."""
    _check_numbers()
    _refuse_several(
        ("WORLD_SIZE", *_OUTER_COUNTS, _TORCHRUN_NODES),
        "a launcher started several processes, this script uses one; use main_multi_gpu.py, or unset {}",
    )


def torchrun_variables() -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a launched process.

    LOCAL_WORLD_SIZE is missing if the launcher does not tell it. MASTER_ADDR and MASTER_PORT in the environment have
    priority. Raises UserError as `detect_launcher`, and if the address of the main process is unknown, or no address or
    port.
    """
    launcher = detect_launcher()
    port = environ.get("MASTER_PORT", "29500")
    if not (port.isdecimal() and 0 < int(port) < 2**16):
        raise UserError(f"MASTER_PORT is {port!r}: must be a free port on the host of rank 0, 1 to 65535")
    if re.search(r"[\s/@]", environ.get("MASTER_ADDR", "")):  # its value may contain a password
        raise UserError("MASTER_ADDR: must be the host of rank 0 alone")
    if launcher == "torchrun":
        defaults = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        place = {name: environ.get(name, default) for name, default in defaults.items()}
        if local_world_size := _local_world_size():
            place["LOCAL_WORLD_SIZE"] = local_world_size
        return place
    numbers, nodes, job = _place_by_srun() if launcher == "srun" else _place_by_mpirun()
    # The first host of Slurm's list: 'node03' of 'node[03-05,9],x'
    first = re.sub(r",(?![^\[]*\]).*", "", nodes)
    host = re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first)
    is_one_host = len(numbers) < len(_TORCHRUN) or numbers[3] == numbers[1]
    address = environ.get("MASTER_ADDR") or ("127.0.0.1" if is_one_host else host)
    if not address:
        raise UserError("MASTER_ADDR: not set; set it to the host of rank 0 (mpirun -x MASTER_ADDR=...)")
    return dict(zip(_TORCHRUN, numbers, strict=False)) | {
        "MASTER_ADDR": address,
        "MASTER_PORT": environ.get("MASTER_PORT", str(20000 + zlib.crc32(job.encode()) % 10000)),  # no ephemeral port
    }


def _place_by_srun() -> tuple[list[str], str, str]:
    """The values of the variables `_TORCHRUN`, the list of hosts, empty if unknown, and a name of the job."""
    _require_variables((*_SRUN, "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"), "srun")
    repeated = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ["SLURM_STEP_TASKS_PER_NODE"])  # '2(x3),1' is 2, 2, 2 and 1
    per_node = [count for count, repeats in repeated for _ in range(int(repeats or 1))]
    node = environ["SLURM_NODEID"]
    if not node.isdecimal() or int(node) >= len(per_node):
        raise UserError(f"SLURM_NODEID is {node!r}: must be a node of SLURM_STEP_TASKS_PER_NODE; srun sets both")
    numbers = [*(environ[name] for name in _SRUN), per_node[int(node)]]
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    return numbers, nodes, f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"


def _place_by_mpirun() -> tuple[list[str], str, str]:
    """As `_place_by_srun`; the last value is missing if the number of ranks on this host is unknown."""
    variables = _mpi_variables()
    _require_variables(variables[:3], "mpirun")
    numbers = [environ[name] for name in variables if name in environ]
    job = environ.get("PMIX_NAMESPACE", environ.get("SLURM_JOB_ID", str(os.getuid())))
    return numbers, environ.get("SLURM_NODELIST", ""), job


def _require_variables(names: Iterable[str], launcher: str) -> None:
    for name in names:
        if name not in environ:
            raise UserError(f"{name}: not set; start this script with {launcher}, which sets it")


def exit_with_launcher() -> None:
    """Makes a launched process exit with its launcher, and at once on a signal until it joins the process group.

    Call it before torch is imported: a Python signal handler runs only after the import, and after torch's rendezvous
    with the other processes.
    """
    handle_signals(signal.SIG_DFL)
    environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's warnings of a lost store are C++ stacks
    end_with_parent()
    if environ.get(LAUNCHER_PID, str(os.getppid())) != str(os.getppid()):  # it had ended before: no signal comes
        os.kill(os.getpid(), signal.SIGTERM)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Makes this process receive a signal when the process that started it ends, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def loopback_listener(address: str, port: int = 0) -> socket.socket:
    """A socket that only processes of this host reach; torch's own listens on all interfaces.

    address: of `LOOPBACK`. port: 0 for a free one.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def open_loopback_store(listener: socket.socket, limit_seconds: float = 60) -> "dist.TCPStore":
    """The key-value store behind a socket of `loopback_listener`; a thread answers."""
    import torch.distributed as dist

    address, port, *_ = listener.getsockname()
    timeout = timedelta(seconds=limit_seconds)
    descriptor = listener.detach()
    return dist.TCPStore(address, port, None, True, timeout, wait_for_workers=False, master_listen_fd=descriptor)


def report_lost_rank(message: str, timed_out: bool) -> None:
    """Leaves the error of a lost connection to the launcher of this process, in the file of torch's elastic launchers.

    timed_out: another rank has not answered, though its connection is open.
    """
    if path := environ.get("TORCHELASTIC_ERROR_FILE"):
        content = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            atomic_write(Path(path), json.dumps({"message": content, "timed_out": timed_out}))


def report_end() -> None:
    """Tells the launcher of this process that it has printed how it ends: removes the empty file for a lost connection,
    which works on a full disk, too."""
    path = Path(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    with suppress(OSError):
        if has_launcher() and not path.stat().st_size:
            path.unlink()


def has_launcher() -> bool:
    """Whether the process that has called `launch_ranks` watches this one: it prints how the run ends."""
    return environ.get(LAUNCHER_PID) == str(os.getppid())


def stop_processes(processes: list[subprocess.Popen[bytes]]) -> None:
    """Sends SIGTERM to processes that lead a group; kills the ones, and their workers, that have not saved in time."""
    send_to_groups([process.pid for process in processes if process.poll() is None], signal.SIGTERM)
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    for process in processes:
        with suppress(subprocess.TimeoutExpired):  # it waits for a device or a disk
            process.wait(max(0.0, deadline - time.monotonic()))
        send_to_groups([process.pid], signal.SIGKILL)  # at once: another process may get its number


def send_to_groups(groups: Iterable[int], number: int) -> None:
    """Sends a signal to the processes of these groups, as far as there are any."""
    for group in groups:
        with suppress(OSError):
            os.killpg(group, number)


@contextmanager
def inherited_import_path(**variables: str) -> Iterator[None]:
    """Gives Python processes that start in the block the import path of this one.

    They are started with `python -c`, which imports from the working folder first: its files may have the names of
    modules. Python 3.11 to 3.13 do not give the path to the fork server. variables: more of their environment.
    """
    variables |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    before = {name: environ[name] for name in variables if name in environ}
    environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del environ[name]
        environ.update(before)
