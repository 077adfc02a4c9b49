"""The processes of a run: which one this is, how they find each other, how they end together.

A context stands for one process. Whoever started the processes (torchrun, srun, mpirun or this project itself), they
meet in `connected`; a run of one process takes `single` and never touches torch.distributed.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from utils import launch
from utils.errors import UserError
from utils.launch import follow_launcher

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # covers the slowest thing one process does while the others wait
POLL_SECONDS = 0.5
LAUNCHER_SECONDS = 4.0  # within which a launcher ends the healthy processes of a failed run
FORCE_SECONDS = 8.0  # after which they end themselves, wherever they hang
_FAILURE = "failures"  # in the processes' shared store
_LOST_CONNECTION = re.compile(r"(closed|reset) by peer|broken pipe|remote process exit", re.IGNORECASE)


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


def single() -> ProcessContext:
    """The context of a run of one process: on the first visible GPU, else on the CPU."""
    return ProcessContext(0, 0, 1, 1, torch.device("cuda:0" if visible_gpus() else "cpu"))


@contextmanager
def connected() -> Iterator[ProcessContext]:
    """Joins the processes that the launcher started and yields this one's context; leaves when all have finished.

    An exception in one process ends all within seconds, and only the first to fail raises what went wrong: the
    others, which fail because of it, end in silence with status 1. Raises `UserError` when the processes cannot meet
    or are more than the GPUs. To leave early on all processes, return from the block: whoever raises ends the others.
    """
    follow_launcher()
    os.environ.update(launch.variables())
    rank, local_rank, world_size, local_world_size = (
        int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    store = _meet()
    with _ending_together(store):
        device = _own_device(store, local_rank, local_world_size)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=COLLECTIVE_TIMEOUT,
            device_id=device if device.type == "cuda" else None,
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield ProcessContext(rank, local_rank, world_size, local_world_size, device)
        dist.barrier()  # a process that leaves early takes its connections from those still at work
    dist.destroy_process_group()


def sum_reduce(tensor: torch.Tensor, context: ProcessContext) -> torch.Tensor:
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


@contextmanager
def _ending_together(store: dist.Store) -> Iterator[None]:
    """Whatever ends the block in one process soon ends the others, wherever they are in theirs."""
    finished = threading.Event()
    watch = threading.Thread(target=_watch_for_failure, args=(store.clone(), finished), daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        _end_all(store, error)
        raise
    finished.set()
    watch.join()


def _watch_for_failure(store: dist.Store, finished: threading.Event) -> None:
    """Ends this process when another has failed: one that waits on its GPU for the dead one hears no signal."""
    failed = False
    while not failed and not finished.wait(POLL_SECONDS):
        try:
            failed = store.check([_FAILURE])
        except dist.DistError:  # the process that holds the store has ended
            failed = True
    if not finished.wait(FORCE_SECONDS):
        os._exit(1)


def _end_all(store: dist.Store, error: BaseException) -> None:
    """Tells the others to end. Returns in the process that failed first and knows why; one that followed ends here."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to save: let the launcher's signal through
    try:
        is_first = store.add(_FAILURE, 1) == 1
    except dist.DistError:  # the process that holds the store has ended
        is_first = False
    if not isinstance(error, Exception):
        return
    if os.environ["RANK"] == "0":
        time.sleep(2 * POLL_SECONDS)  # it may hold the store, from which the others are to hear of this
    connection_was_lost = isinstance(error, RuntimeError) and _LOST_CONNECTION.search(str(error))
    if is_first and not connection_was_lost:
        return
    time.sleep(LAUNCHER_SECONDS)
    if is_first:
        raise UserError("another process of this run ended without a word; was host memory short?") from error
    raise SystemExit(1)
