"""Finds the launcher of this process, and its rank.

torchrun, srun and mpirun pass the rank in different environment variables. `torchrun_variables` translates them to
torchrun's; no other module depends on the launcher.
"""

import os
import re
import sys
import zlib
from collections.abc import Mapping

from utils.errors import UserError

# Environment variables of the processes that `utils.processes.launch` starts: a process, and an open file.
PARENT_PID, KEY_PIPE = "AMPVIT_PARENT_PID", "AMPVIT_KEY_PIPE"
LOOPBACK = ("127.0.0.1", "::1", "localhost")  # values of MASTER_ADDR: all ranks are on one host
# Variables of SkyPilot, of torchrun's options and of PaddlePaddle, and their values where this process is the only one.
_ALONE = {"SKYPILOT_NUM_NODES": "1", "PET_NNODES": "1", "PET_NODE_RANK": "0"}
_ALONE |= {"PADDLE_TRAINERS_NUM": "1", "PADDLE_TRAINER_ID": "0"}
# rank, world size, local rank, local world size
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")  # Intel MPI as well
_LAUNCHERS = (_TORCHRUN, _OPEN_MPI, _MPICH, _SRUN)


def detect_launcher(env: Mapping[str, str] = os.environ) -> str | None:
    """'torchrun', 'srun' or 'mpirun'; None if this script is to start the processes of this host itself.

    The order matters: under Slurm, mpirun starts its processes through srun. An srun of a single task (an interactive
    shell, or one task with all GPUs) and a batch script, which has no step, count as started without a launcher.

    Raises:
        UserError: a variable has no possible value; RANK or WORLD_SIZE is set, but it is unknown which of the
            processes on this host this one is; or SkyPilot, Kubeflow or PaddlePaddle started this script several times.
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
    for name, alone in _ALONE.items():
        if launcher is None and env.get(name, alone) != alone:
            raise UserError(
                f"{name} is {env[name]!r}: every node or process would train apart; start torchrun on each host "
                f"(docs/clusters.md), or unset {name} to train on this host alone"
            )
    return launcher


def _check_numbers(env: Mapping[str, str]) -> None:
    for names in _LAUNCHERS:
        for name in names:
            if not env.get(name, "0").isdecimal():
                raise UserError(f"{name} is {env[name]!r}: must be a number; launchers set it, otherwise unset it")
        for rank, count in zip(names[::2], names[1::2], strict=False):  # srun gives no local count
            if int(env.get(count, 1)) == 0:
                raise UserError(f"{count} is 0: must be at least 1; launchers set it, otherwise unset it")
            if int(env.get(names[-1], 1)) > int(env.get(names[1], sys.maxsize)) and names is not _SRUN:
                raise UserError(f"{names[-1]} is {env[names[-1]]}: must be at most {names[1]}, {env[names[1]]}")
            if int(env.get(rank, 0)) >= int(env.get(count, sys.maxsize)):
                raise UserError(f"{rank} is {env[rank]}: must be below {count}, {env[count]}; ranks begin at 0")


def _mpi_variables(env: Mapping[str, str]) -> tuple[str, ...] | None:
    if _OPEN_MPI[0] in env:
        if missing := next((name for name in _OPEN_MPI[1:3] if name not in env), None):
            raise UserError(f"{_OPEN_MPI[0]} without {missing}: start this script with mpirun, which sets both")
        return _OPEN_MPI
    return _MPICH if _MPICH[0] in env and _MPICH[2] in env else None


def rank_of_process(env: Mapping[str, str] = os.environ) -> int:
    """The rank in a launcher's variables, before the process has joined its group; 0 if there is none."""
    rank = next((env[names[0]] for names in _LAUNCHERS if names[0] in env), "")
    return int(rank) if rank.isdecimal() else 0


def check_is_alone(env: Mapping[str, str] = os.environ) -> None:
    """Raises UserError if this process, or this node, is one of several that a launcher started."""
    _check_numbers(env)
    alone = _ALONE | {"RANK": "0"} | {names[1]: "1" for names in _LAUNCHERS}
    for name, value in alone.items():
        if env.get(name, value) != value:
            raise UserError(
                f"{name} is {env[name]!r}: a launcher started several processes, this script uses one; use "
                f"main_multi_gpu.py, or unset {name}"
            )


def check_local_rank(given: int | None, env: Mapping[str, str] = os.environ) -> None:
    """Raises UserError if the flag --local-rank, of torch's former launcher, contradicts LOCAL_RANK."""
    launched = env.get("LOCAL_RANK", "0")
    if given is not None and str(given) != launched:
        raise UserError(f"--local-rank {given}: LOCAL_RANK is {launched}; leave the flag to the launcher")


def torchrun_variables(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a launched process.

    MASTER_ADDR and MASTER_PORT in the environment have priority. Raises UserError as `detect_launcher`, and if the
    address of the main process is unknown, or no address or port.
    """
    launcher, port = detect_launcher(env), env.get("MASTER_PORT", "29500")
    if not (port.isdecimal() and 0 < int(port) < 2**16):
        raise UserError(f"MASTER_PORT is {port!r}: must be a free port on the host of rank 0, 1 to 65535")
    if re.search(r"[\s/@]|^$", env.get("MASTER_ADDR", "localhost")):  # its value may contain a password
        raise UserError("MASTER_ADDR: must be the host of rank 0 alone, or not set where all ranks are on one host")
    if launcher == "torchrun":
        defaults = dict(zip(_TORCHRUN, ("0", "1", "0", "1"), strict=True))
        defaults |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
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
        "MASTER_PORT": env.get("MASTER_PORT", str(20000 + zlib.crc32(job.encode()) % 10000)),
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
