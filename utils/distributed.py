"""The processes of a run: which one this is, how they find each other, how they end together.

A context stands for one process. Whoever started the processes (torchrun, srun, mpirun or this project itself), they
meet in `process_group`; a run of one process takes `single_process` and never touches torch.distributed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from utils import launch
from utils.errors import UserError
from utils.failure import abort_together, is_peer_failure
from utils.launch import exit_with_launcher
from utils.signals import raise_on_signals

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # covers the slowest thing one process does while the others wait
_NCCL_PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class ProcessContext:
    """One process of a run. `local_*` counts the processes on this host only."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def visible_gpus() -> int:
    """The number of GPUs this process can use; 0 where the driver does not work."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def single_process() -> ProcessContext:
    """The context of a run of one process: on the first visible GPU, else on the CPU."""
    return ProcessContext(0, 0, 1, 1, torch.device("cuda:0" if visible_gpus() else "cpu"))


@contextmanager
def process_group() -> Iterator[ProcessContext]:
    """Joins the processes that the launcher started and yields this one's context; leaves when all have finished.

    An exception in one process ends all within seconds, and only the first to fail raises what went wrong: the
    others, which fail because of it, end in silence with status 1. Raises `UserError` when the processes cannot meet
    or are more than the GPUs. To leave early on all processes, return from the block: whoever raises ends the others.
    """
    exit_with_launcher()
    os.environ.update(launch.torchrun_variables())
    rank, local_rank, world_size, local_world_size = (
        _number(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    store = _meet()
    with abort_together(store):
        device = _own_device(store, local_rank, local_world_size)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=COLLECTIVE_TIMEOUT,
            device_id=device if device.type == "cuda" else None,
        )
        raise_on_signals()
        yield ProcessContext(rank, local_rank, world_size, local_world_size, device)
        dist.barrier()  # a process that leaves early takes its connections from those still at work
    dist.destroy_process_group()


def all_reduce_sum(tensor: torch.Tensor, context: ProcessContext) -> torch.Tensor:
    """Sums `tensor` over all processes, in place, and returns it."""
    if context.world_size > 1:
        dist.all_reduce(tensor)
    return tensor


def broadcast_object(value: T, context: ProcessContext) -> T:
    """The main process's `value`, on every process. It travels pickled."""
    if context.world_size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gather_objects(value: T, context: ProcessContext) -> list[T]:
    """The `value` of each process, by rank, on every process. They travel pickled."""
    if context.world_size == 1:
        return [value]
    values: list = [None] * context.world_size
    dist.all_gather_object(values, value)
    return values


class DelayedMax:
    """What any rank wishes, known to all at the same step: each step's greatest wish, one step later.

    So no rank waits for another, but for one that is more than a step behind, and for that no longer than
    `timeout_seconds`. It runs between the hosts, beside what the devices exchange.
    """

    def __init__(self, context: ProcessContext, timeout_seconds: float) -> None:
        self._group = None
        self._pending: tuple[dist.Work, torch.Tensor] | None = None
        if context.world_size > 1:
            try:
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
            except RuntimeError as error:  # the devices may know another way than the hosts
                if is_peer_failure(error):
                    raise
                raise UserError(
                    f"the hosts of this run cannot reach each other ({error}); set GLOO_SOCKET_IFNAME to the name of "
                    "their common network interface"
                ) from error

    def reached(self, wish: int) -> int:
        """Every rank must call it equally often. `wish` is 0 or more; so is what is returned, alike on all ranks."""
        if self._group is None:
            return wish
        before = self._pending
        wishes = torch.tensor(wish)
        self._pending = dist.all_reduce(wishes, dist.ReduceOp.MAX, self._group, async_op=True), wishes
        if before is None:
            return 0
        before[0].wait()
        return int(before[1])


def set_collective_timeout(context: ProcessContext, seconds: float) -> None:
    """For how long a process waits for another one that does not answer, from now on.

    GPUs wait longer than their hosts do in `DelayedMax`: NCCL would end the process, and none could say why.
    """
    if context.world_size > 1:
        seconds += _NCCL_PATIENCE_SECONDS if context.device.type == "cuda" else 0
        set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout  # its older name
        set_timeout(timedelta(seconds=seconds))


def _number(name: str) -> int:
    if not os.environ[name].isdecimal():
        raise UserError(f"{name} is {os.environ[name]!r}: must be a whole number; launchers set it, else unset it")
    return int(os.environ[name])


def _meet() -> dist.Store:
    """The notes that all processes of this attempt at the run share."""
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
    except dist.DistError as error:
        raise UserError(
            f"MASTER_ADDR, MASTER_PORT: rank {os.environ['RANK']} cannot meet the others at {address}:{port}; "
            "set them to the host of rank 0 and to a free port there"
        ) from error
    return dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def _own_device(store: dist.Store, local_rank: int, local_world_size: int) -> torch.device:
    """A GPU of this process's own, or the CPU where no GPU is visible.

    A launcher that binds GPUs to processes lets each see one; any other lets all processes see all GPUs.
    """
    gpus = visible_gpus()
    if gpus == 0:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % gpus)
    identity = torch.cuda.get_device_properties(device).uuid
    if store.add(f"processes on {identity}", 1) > 1:
        raise UserError(
            f"GPUs: {local_world_size} processes on this host, but {gpus} visible to rank {os.environ['RANK']}; "
            "start one process per GPU"
        )
    torch.cuda.set_device(device)
    return device
