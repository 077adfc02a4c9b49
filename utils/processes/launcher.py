"""Finds the launcher of this process, and its rank.

torchrun, srun and mpirun pass the rank in different environment variables. `torchrun_variables` translates them to
torchrun's; no other module depends on the launcher. Kubernetes may start a script once per pod, with torchrun's options
as PET_ variables.
"""

import os
import re
import zlib
from collections.abc import Mapping

from utils.errors import UserError

PARENT_PID = "AMPVIT_PARENT_PID"  # environment variable of the processes that `utils.processes.launch` starts
_SKYPILOT = "SKYPILOT_NUM_NODES"
# rank, world size, local rank, local world size
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")  # Intel MPI as well
_NUMBERS = (*_TORCHRUN, *_SRUN, *_OPEN_MPI, *_MPICH)
# torchrun's options of one node. Kubeflow's TrainJob and PyTorchJob set them in every pod.
_NODE = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def detect_launcher(env: Mapping[str, str] = os.environ) -> str | None:
    """'torchrun', 'srun' or 'mpirun'; None if this script is to start the processes of this host itself.

    The order matters: under Slurm, mpirun starts its processes through srun. An srun of a single task (an interactive
    shell, or one task with all GPUs) and a batch script, which has no step, count as started without a launcher.

    Raises:
        UserError: a variable is not a number; RANK or WORLD_SIZE is set, but it is unknown which of the processes on
            this host this one is; or SkyPilot started this script on several nodes.
    """
    _check_numbers(env)
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= env.keys():
        return "torchrun"
    launcher, count = None, "1"
    if mpi := _mpi_variables(env):
        launcher, count = "mpirun", env.get(mpi[1], "1")
    elif int(env.get(_SRUN[1], 1)) > 1:
        launcher, count = "srun", env[_SRUN[1]]
    elif has_node_variables(env):  # a PyTorchJob sets RANK and WORLD_SIZE beside them
        return None
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
    if launcher is None and env.get(_SKYPILOT, "1") != "1":
        raise UserError(
            f"{_SKYPILOT} is {env[_SKYPILOT]}: every node would train apart; start torchrun on each "
            f"(docs/clusters.md), or unset {_SKYPILOT} to train on this host alone"
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
    counts = (_TORCHRUN[1], _SRUN[1], _OPEN_MPI[1], _MPICH[1], "PET_NNODES", _SKYPILOT)
    return any(env.get(name, "1") != "1" for name in counts)


def launcher_note(env: Mapping[str, str] = os.environ) -> str | None:
    """A line on ending a run early under Open MPI, which gives the processes one second between SIGTERM and SIGKILL."""
    if _OPEN_MPI[0] not in env:
        return None
    return (
        "mpirun: to end this run early, send SIGUSR1 to mpirun: all ranks save; after Ctrl-C or SIGTERM it kills them "
        "within 2 s, before a long step ends"
    )


def has_node_variables(env: Mapping[str, str] = os.environ) -> bool:
    """Returns whether torchrun's PET_ variables give the node of this process and the processes that it must start."""
    return any(name in env for name in _NODE)


def check_node_variables(env: Mapping[str, str] = os.environ) -> int:
    """The largest number of nodes in the PET_ variables.

    Raises:
        UserError: one is wrong or missing. torchrun would use a default, with which every node trains apart.
    """
    nodes = env.get("PET_NNODES", "")
    needed = ["PET_NNODES", "PET_NPROC_PER_NODE"]
    if nodes != "1":
        static = env.get("PET_RDZV_BACKEND", "static") == "static"
        needed += ["PET_NODE_RANK"] if static else []
        needed += ["PET_RDZV_ENDPOINT"] if not static or "PET_RDZV_ENDPOINT" in env else _NODE[3:]
    missing = [name for name in needed if name not in env]
    if missing:
        given = ", ".join(name for name in _NODE if name in env)
        raise UserError(f"not set: {', '.join(missing)}, but {given}: set all of {', '.join(needed)} on every node")
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", nodes):
        raise UserError(f"PET_NNODES is {nodes!r}: must be a number of nodes, or MIN:MAX")
    largest, rank = int(nodes.rpartition(":")[2]), env.get("PET_NODE_RANK", "")
    if rank.isdecimal() and int(rank) >= largest:  # torchrun would wait for minutes
        raise UserError(f"PET_NODE_RANK is {rank}: must be below {largest}, PET_NNODES; the first node is 0")
    return largest


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


def launcher_words(python: str, env: Mapping[str, str] = os.environ) -> list[str]:
    """The words before a script that start it with as many processes as this run: a launcher of one host, and python.

    Only python: started without a launcher, or on several hosts, where each launcher needs more than a number.
    """
    world_size = env.get("WORLD_SIZE", "1")
    if PARENT_PID in env or env.get("LOCAL_WORLD_SIZE") != world_size:
        return [python]
    if "TORCHELASTIC_RUN_ID" in env:
        return [python, "-m", "torch.distributed.run", f"--nproc_per_node={world_size}"]
    if _mpi_variables(env):
        return ["mpirun", "-np", world_size, python]
    return ["srun", f"--ntasks={world_size}", python] if env.get(_SRUN[1], "1") != "1" else [python]


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
