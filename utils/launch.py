"""Who started this process, and how a script starts itself once per device.

torchrun, srun and mpirun each tell a process its rank in variables of their own. `torchrun_variables` translates them
all into torchrun's, so that nothing else has to know the launcher. torch is imported where it is needed: detecting the
launcher costs nothing.
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

_PARENT_PID = "AMPVIT_PARENT_PID"  # in the environment of self-launched processes
_SAVE_SECONDS = 120  # given to processes that a signal reached, before they are killed

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
    """'torchrun', 'srun' or 'mpirun'; None for a process that was started plainly.

    The order matters: mpirun starts its processes through srun where there is Slurm. An srun of a single task counts
    as plain (an interactive shell, or one task given all GPUs), and so does a batch script, which has no step.
    """
    if "RANK" in env and "WORLD_SIZE" in env:
        return "torchrun"
    if _OPEN_MPI[0] in env or (_MPICH[0] in env and _MPICH[2] in env):
        return "mpirun"
    return "srun" if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1 else None


def torchrun_variables(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A launched process's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    A MASTER_ADDR or MASTER_PORT in the environment is kept. Raises `UserError` where the address cannot be told.
    """
    started_by = detect_launcher(env)
    if started_by == "torchrun":
        return {name: env.get(name, default) for name, default in _TORCHRUN_DEFAULTS.items()}
    if started_by == "srun":
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
        "MASTER_ADDR": env.get("MASTER_ADDR") or _master(nodes, one_host=local_world_size == world_size),
        # Below the range from which systems hand out ports by themselves.
        "MASTER_PORT": env.get("MASTER_PORT") or str(20000 + zlib.crc32(job.encode()) % 10000),
    }


def _master(nodes: str | None, one_host: bool) -> str:
    if one_host:
        return "127.0.0.1"
    if nodes:
        return first_host(nodes)
    raise UserError("MASTER_ADDR: not set; set it to the name of the host that runs rank 0 (mpirun -x MASTER_ADDR=...)")


def first_host(nodelist: str) -> str:
    """The first host of Slurm's compact list: 'node03' for 'node[03-05,9],x'."""
    first_item = re.match(r"(?:\[[^\]]*\]|[^,\[])+", nodelist).group()
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first_item)


def _tasks_on_this_node(env: Mapping[str, str]) -> str:
    """The step's tasks on this node; Slurm writes the counts of all nodes as '2(x3),1' for 2, 2, 2 and 1."""
    counts = env.get("SLURM_STEP_TASKS_PER_NODE", env["SLURM_STEP_NUM_TASKS"])
    per_node = [
        count for count, repeats in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts) for _ in range(int(repeats or 1))
    ]
    return per_node[int(env.get("SLURM_NODEID", 0))]


def exit_with_launcher() -> None:
    """Makes a launched process end with its launcher and, until it is connected, at once on a signal.

    Best called before torch is imported: Python's own answer to a signal may be lost in an import, and waits for torch,
    which waits for the other processes.
    """
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.environ.get(_PARENT_PID, str(os.getppid())) != str(os.getppid()):
        raise SystemExit(1)  # the launcher was killed before this process came here


def launch_processes(script: str, argv: list[str], num_processes: int) -> int:
    """Runs `python script argv` in `num_processes` processes on this machine and returns the exit status of them all.

    When one fails, the others are ended. SIGINT, SIGTERM and SIGUSR1 are passed on; the status is then 128 + the
    signal. Only the processes speak: this one is silent unless a process was killed and could not say why.
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
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SAVE_SECONDS))
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
        return _status_of_failure(error.failures)
    except SignalException as error:
        return 128 + error.sigval
    return 0


def _status_of_failure(failures: dict[int, Any]) -> int:
    """The exit status of the process that failed first; torch's agent has ended the others with SIGTERM."""
    rank = min(failures, key=lambda rank: (failures[rank].exitcode == -signal.SIGTERM, failures[rank].timestamp))
    status = failures[rank].exitcode
    if status > 0:
        return status
    hint = "; was host memory short?" if status == -signal.SIGKILL else ""
    name = failures[rank].signal_name()
    print(f"error: the process of rank {rank} was ended by {name}{hint}", file=sys.stderr, flush=True)
    return 128 - status
