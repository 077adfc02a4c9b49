"""Detects the launcher of this process, and starts a script once per device.

torchrun, srun and mpirun pass the rank in different environment variables. `torchrun_variables` translates them to
torchrun's; no other module depends on the launcher. torch is imported only in `launch_processes`, because its import is
slow.
"""

import ctypes
import logging
import os
import re
import signal
import sys
import zlib
from collections.abc import Mapping
from typing import Any

from utils.errors import UserError
from utils.signals import TERMINATION_SIGNALS

_PARENT_PID = "AMPVIT_PARENT_PID"  # environment variable of the processes that `launch_processes` starts
_SHUTDOWN_SECONDS = 120  # time to save a checkpoint after a signal, before the processes are killed

_TORCHRUN_DEFAULTS = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
# rank, world size, local rank, local world size
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")  # Intel MPI as well


def detect_launcher(env: Mapping[str, str] = os.environ) -> str | None:
    """'torchrun', 'srun' or 'mpirun'; None if the process was started without a launcher.

    The order matters: under Slurm, mpirun starts its processes through srun. An srun of a single task (an interactive
    shell, or one task with all GPUs) and a batch script, which has no step, count as started without a launcher.
    """
    if "RANK" in env and "WORLD_SIZE" in env:
        return "torchrun"
    if _OPEN_MPI[0] in env or (_MPICH[0] in env and _MPICH[2] in env):
        return "mpirun"
    return "srun" if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1 else None


def torchrun_variables(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a launched process.

    MASTER_ADDR and MASTER_PORT in the environment have priority.

    Raises:
        UserError: the address of the main process is unknown.
    """
    launcher = detect_launcher(env)
    if launcher == "torchrun":
        return {name: env.get(name, default) for name, default in _TORCHRUN_DEFAULTS.items()}
    if launcher == "srun":
        rank, world_size, local_rank = (env[f"SLURM_{name}"] for name in ("PROCID", "STEP_NUM_TASKS", "LOCALID"))
        local_world_size = _tasks_on_this_node(env)
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST")
        job = f"{env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}"
    else:
        *names, local_world_size_name = _OPEN_MPI if _OPEN_MPI[0] in env else _MPICH
        rank, world_size, local_rank = (env[name] for name in names)
        local_world_size = env.get(local_world_size_name, world_size)
        nodes = env.get("SLURM_NODELIST")
        job = env.get("PMIX_NAMESPACE") or env.get("SLURM_JOB_ID") or str(os.getuid())
    return {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_world_size,
        "MASTER_ADDR": env.get("MASTER_ADDR") or _master_address(nodes, one_host=local_world_size == world_size),
        # Below the range of ephemeral ports.
        "MASTER_PORT": env.get("MASTER_PORT") or str(20000 + zlib.crc32(job.encode()) % 10000),
    }


def torchrun_processes(env: Mapping[str, str] = os.environ) -> int | None:
    """The number of processes that torchrun started, if all are on this host; None without torchrun."""
    started_by_torchrun = "TORCHELASTIC_RUN_ID" in env and _PARENT_PID not in env
    one_host = env.get("LOCAL_WORLD_SIZE") == env.get("WORLD_SIZE")
    return int(env["WORLD_SIZE"]) if started_by_torchrun and one_host else None


def _master_address(nodes: str | None, one_host: bool) -> str:
    if one_host:
        return "127.0.0.1"
    if nodes:
        return first_host(nodes)
    raise UserError("MASTER_ADDR: not set; set it to the name of the host that runs rank 0 (mpirun -x MASTER_ADDR=...)")


def first_host(nodelist: str) -> str:
    """The first host of Slurm's node list: 'node03' for 'node[03-05,9],x'."""
    first_item = re.match(r"(?:\[[^\]]*\]|[^,\[])+", nodelist).group()
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first_item)


def _tasks_on_this_node(env: Mapping[str, str]) -> str:
    """The number of tasks on this node. Slurm abbreviates the counts of all nodes: '2(x3),1' is 2, 2, 2 and 1."""
    counts = env.get("SLURM_STEP_TASKS_PER_NODE", env["SLURM_STEP_NUM_TASKS"])
    per_node = [
        count for count, repeats in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts) for _ in range(int(repeats or 1))
    ]
    return per_node[int(env.get("SLURM_NODEID", 0))]


def exit_with_launcher() -> None:
    """Makes a launched process exit with its launcher, and at once on a signal until it joins the process group.

    Call it before torch is imported: a Python signal handler runs only after the import, and after torch's rendezvous
    with the other processes.
    """
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.environ.get(_PARENT_PID, str(os.getppid())) != str(os.getppid()):
        raise SystemExit(1)  # the launcher was killed before prctl was called


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
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // num_processes)))
    os.environ[_PARENT_PID] = str(os.getpid())
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
    try:
        elastic_launch(config, sys.executable)("-u", script, *arguments)
    except ChildFailedError as error:
        return _failure_status(error.failures)
    except SignalException as error:
        return 128 + error.sigval
    return 0


def _failure_status(failures: dict[int, Any]) -> int:
    """The exit status of the process that failed first. torch's agent terminates the others with SIGTERM."""
    rank = min(failures, key=lambda rank: (failures[rank].exitcode == -signal.SIGTERM, failures[rank].timestamp))
    status = failures[rank].exitcode
    if status > 0:
        return status
    hint = "; possible cause: out of host memory" if status == -signal.SIGKILL else ""
    name = failures[rank].signal_name()
    print(f"error: the process of rank {rank} was terminated by {name}{hint}", file=sys.stderr, flush=True)
    return 128 - status
