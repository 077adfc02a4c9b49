"""Finds the launcher of this process, and its rank.

torchrun, srun and mpirun pass the rank in different environment variables. `torchrun_variables` translates them to
torchrun's; no other module depends on the launcher.
"""

import os
import re
import zlib
from collections.abc import Mapping

from utils.errors import UserError

PARENT_PID = "AMPVIT_PARENT_PID"  # environment variable of the processes that `utils.processes.launch` starts
_NODES = ("SKYPILOT_NUM_NODES", "PET_NNODES")  # of SkyPilot; of Kubeflow, for torchrun
# rank, world size, local rank, local world size
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")  # Intel MPI as well
_NUMBERS = (*_TORCHRUN, *_SRUN, *_OPEN_MPI, *_MPICH)


def detect_launcher(env: Mapping[str, str] = os.environ) -> str | None:
    """'torchrun', 'srun' or 'mpirun'; None if this script is to start the processes of this host itself.

    The order matters: under Slurm, mpirun starts its processes through srun. An srun of a single task (an interactive
    shell, or one task with all GPUs) and a batch script, which has no step, count as started without a launcher.

    Raises:
        UserError: a variable is not a number; RANK or WORLD_SIZE is set, but it is unknown which of the processes on
            this host this one is; or SkyPilot or Kubeflow started this script on several nodes.
    """
    _check_numbers(env)
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= env.keys():
        return "torchrun"
    launcher, count = None, "1"
    if mpi := _mpi_variables(env):
        launcher, count = "mpirun", env.get(mpi[1], "1")
    elif int(env.get(_SRUN[1], 1)) > 1:
        launcher, count = "srun", env[_SRUN[1]]
    elif "RANK" in env and env.get("WORLD_SIZE") == "1":
        return "torchrun"
    if env.get("WORLD_SIZE", count) != count or (launcher is None and "RANK" in env):
        found = " and ".join(name for name in ("RANK", "WORLD_SIZE") if name in env)
        # A PyTorchJob of Kubernetes sets RANK to the pod, WORLD_SIZE to pods x processes (kubeflow/trainer#1840).
        raise UserError(
            f"{found} without LOCAL_RANK: this process cannot know its rank; start torchrun on every host or pod, or, "
            "with one process on each, set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCAL_RANK=0; unset RANK and "
            "WORLD_SIZE to train on this host alone"
        )
    for name in _NODES:
        if launcher is None and env.get(name, "1") != "1":
            raise UserError(
                f"{name} is {env[name]}: every node would train apart; start torchrun on each (docs/clusters.md), or "
                f"unset {name} to train on this host alone"
            )
    return launcher


def _check_numbers(env: Mapping[str, str]) -> None:
    for name in _NUMBERS:
        if not env.get(name, "0").isdecimal():
            raise UserError(f"{name} is {env[name]!r}: must be a number; launchers set it, otherwise unset it")


def _mpi_variables(env: Mapping[str, str]) -> tuple[str, ...] | None:
    if _OPEN_MPI[0] in env:
        return _OPEN_MPI
    return _MPICH if _MPICH[0] in env and _MPICH[2] in env else None


def rank_of_process(env: Mapping[str, str] = os.environ) -> int:
    """The rank in a launcher's variables, before the process has joined its group; 0 if there is none."""
    rank = next((env[names[0]] for names in (_TORCHRUN, _OPEN_MPI, _MPICH, _SRUN) if names[0] in env), "")
    return int(rank) if rank.isdecimal() else 0


def several_were_started(env: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this process, or this node, is one of several that a launcher started.

    Raises:
        UserError: a variable is not a number.
    """
    _check_numbers(env)
    counts = (_TORCHRUN[1], _SRUN[1], _OPEN_MPI[1], _MPICH[1], *_NODES)
    return any(env.get(name, "1") != "1" for name in counts)


def torchrun_variables(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a launched process.

    MASTER_ADDR and MASTER_PORT in the environment have priority.

    Raises:
        UserError: the address of the main process is unknown.
    """
    launcher = detect_launcher(env)
    if launcher == "torchrun":
        defaults = dict(zip(_TORCHRUN, ("0", "1", "0", "1"), strict=True)) | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }
        return {name: env.get(name, default) for name, default in defaults.items()}
    if launcher == "srun":
        numbers = [*(env[name] for name in _SRUN), _tasks_on_this_node(env)]
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST")
        job = f"{env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}"
    else:
        variables = _mpi_variables(env)
        assert variables  # the launcher is mpirun
        *names, local_world_size = variables
        numbers = [*(env[name] for name in names), env.get(local_world_size, env[names[1]])]
        nodes = env.get("SLURM_NODELIST")
        job = env.get("PMIX_NAMESPACE") or env.get("SLURM_JOB_ID") or str(os.getuid())
    return dict(zip(_TORCHRUN, numbers, strict=True)) | {
        "MASTER_ADDR": env.get("MASTER_ADDR") or _master_address(nodes, one_host=numbers[3] == numbers[1]),
        # Below the range of ephemeral ports.
        "MASTER_PORT": env.get("MASTER_PORT") or str(20000 + zlib.crc32(job.encode()) % 10000),
    }


def _master_address(nodes: str | None, one_host: bool) -> str:
    if one_host:
        return "127.0.0.1"
    if nodes:
        return first_host(nodes)
    raise UserError("MASTER_ADDR: not set; set it to the name of the host that runs rank 0 (mpirun -x MASTER_ADDR=...)")


def first_host(nodelist: str) -> str:
    """The first host of Slurm's node list: 'node03' for 'node[03-05,9],x'."""
    first_item = re.match(r"(?:\[[^\]]*\]|[^,\[])+", nodelist)
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first_item[0] if first_item else nodelist)


def _tasks_on_this_node(env: Mapping[str, str]) -> str:
    """The number of tasks on this node. Slurm abbreviates the counts of all nodes: '2(x3),1' is 2, 2, 2 and 1."""
    counts = env.get("SLURM_STEP_TASKS_PER_NODE", env["SLURM_STEP_NUM_TASKS"])
    per_node = [
        count for count, repeats in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts) for _ in range(int(repeats or 1))
    ]
    return per_node[int(env.get("SLURM_NODEID", 0))]
