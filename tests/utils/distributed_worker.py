"""A small program for test_distributed.py: `python distributed_worker.py CASE [WORDS]`, in two processes."""

import ctypes
import os
import pickle
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.run.record import RunRecord
from utils.errors import Unavailable
from utils.processes.entry import run_and_report_errors
from utils.processes.launch import detect_launcher, exit_with_launcher, launch_processes

if detect_launcher():
    exit_with_launcher()

import torch
import torch.distributed as dist

from utils.distributed import (
    ProcessContext,
    all_reduce_sum,
    broadcast_object,
    gather_objects,
    process_group,
    work_while_others_wait,
)
from utils.processes import failure
from utils.processes.failure import Membership
from utils.system import usable_cores
from utils.torch_compat import set_process_group_timeout

watch_gpu = Membership._watch_gpu


def watch_gpu_briefly(membership: Membership) -> None:
    """The ranks may start further apart than a collective operation may take here."""
    membership.limit_seconds = 3.0
    watch_gpu(membership)


Membership._watch_gpu = watch_gpu_briefly


def print_line(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one system call, so that lines of two processes do not mix


def agree(context: ProcessContext) -> None:
    numbers = torch.tensor([context.rank + 1.0])
    total = all_reduce_sum(numbers, context)
    assert total is numbers
    assert context.is_main == (context.rank == 0)
    assert context.core_share.cores <= len(usable_cores())
    name = broadcast_object(f"run-{context.rank}", context)
    ranks = f"rank {context.rank}/{context.world_size} local {context.local_rank}/{context.local_world_size}"
    print_line(f"{ranks} {context.device} sum {total.item():g} {name}")


def one_fails(context: ProcessContext) -> None:
    agree(context)
    if context.rank == 1:
        raise Unavailable("disk: full")
    all_reduce_sum(torch.zeros(1), context)


def one_crashes(context: ProcessContext) -> None:
    if context.rank == 1:
        raise ValueError("a bug")
    all_reduce_sum(torch.zeros(1), context)


def one_is_killed(context: ProcessContext) -> None:
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduce_sum(torch.zeros(1), context)


def one_fails_one_ignores_signals(context: ProcessContext) -> None:
    """Rank 0 handles no signals and no closed connections, like a process that waits for its GPU."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if context.rank == 1:
        raise Unavailable("disk: full")
    time.sleep(600)


def one_fails_and_its_exit_hangs(context: ProcessContext) -> None:
    """Python waits at exit for a thread, which stands for one that waits for a disk or a GPU."""
    if context.rank == 1:
        threading.Thread(target=time.sleep, args=(600,)).start()
    one_fails(context)


def one_hangs(context: ProcessContext) -> None:
    RunRecord(context.is_main).open(Path(os.environ["RUN_FOLDER"]), pid=os.getppid())  # equal on all ranks
    set_process_group_timeout(timedelta(seconds=3.0))
    if context.rank == 1:
        time.sleep(600)
    all_reduce_sum(torch.zeros(1), context)


def one_is_slow(context: ProcessContext) -> None:
    set_process_group_timeout(timedelta(seconds=2.0))

    def work() -> int:
        time.sleep(4 * context.rank)
        return context.rank

    print_line(f"rank {context.rank}: {work_while_others_wait(work, context)}")


def one_is_stopped_the_other_is_blocked(context: ProcessContext) -> None:
    """gloo stands for NCCL, whose own timeout is longer, and a call of C for a launch into the full queue of a GPU."""
    failure.GPU_BACKEND = "gloo"
    all_reduce_sum(torch.zeros(1), context)
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.zeros(1), async_op=True)
    ctypes.CDLL(None).sleep(600)


class _Code:
    """An object whose pickle makes a folder when it is loaded."""

    def __reduce__(self) -> tuple:
        return os.makedirs, (os.environ["FORGED"], 0o777, True)


def one_forges(context: ProcessContext) -> None:
    """Rank 1 sends a plain pickle, as another program could that writes to the connections of rank 0."""
    if context.rank == 1:
        dist.distributed_c10d._pickler = pickle.Pickler
    gather_objects(_Code() if context.rank == 1 else None, context)


def owner_is_stopped(context: ProcessContext) -> None:
    """Rank 0, which owns the key-value store, answers neither the store's clients nor a collective."""
    all_reduce_sum(torch.zeros(1), context)  # both have left the start, which needs the store
    set_process_group_timeout(timedelta(seconds=3.0))
    if context.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    all_reduce_sum(torch.zeros(1), context)


def main(argv: list[str]) -> int:
    launcher = detect_launcher()
    if launcher is None:
        return launch_processes(__file__, argv, num_processes=2)
    case, *words = argv
    with process_group() as context:
        print_line(f"by {launcher} with {os.environ.get('OMP_NUM_THREADS')} threads")
        for word in words:
            print_line(word)
        globals()[case](context)
    return 0


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
