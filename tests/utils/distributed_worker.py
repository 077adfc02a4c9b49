"""A small program for test_distributed.py: `python distributed_worker.py CASE [WORDS]`, in two processes."""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from utils.errors import UserError, run_and_report_errors
from utils.launch import detect_launcher, exit_with_launcher, launch_processes

if detect_launcher():
    exit_with_launcher()

import torch

from utils.distributed import ProcessContext, all_reduce_sum, broadcast_object, process_group, set_collective_timeout


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # in one piece, or two processes' lines mix


def agree(context: ProcessContext) -> None:
    numbers = torch.tensor([context.rank + 1.0])
    total = all_reduce_sum(numbers, context)
    assert total is numbers
    assert context.is_main == (context.rank == 0)
    name = broadcast_object(f"run-{context.rank}", context)
    ranks = f"rank {context.rank}/{context.world_size} local {context.local_rank}/{context.local_world_size}"
    say(f"{ranks} {context.device} sum {total.item():g} {name}")


def one_fails(context: ProcessContext) -> None:
    agree(context)
    if context.rank == 1:
        raise UserError("disk: full")
    all_reduce_sum(torch.zeros(1), context)


def all_fail(context: ProcessContext) -> None:
    raise UserError("list: not found")


def one_crashes(context: ProcessContext) -> None:
    if context.rank == 1:
        raise ValueError("a bug")
    all_reduce_sum(torch.zeros(1), context)


def one_is_killed(context: ProcessContext) -> None:
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduce_sum(torch.zeros(1), context)


def one_fails_one_hears_nothing(context: ProcessContext) -> None:
    """As a process that waits on its GPU, where neither signals nor closed connections reach it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if context.rank == 1:
        raise UserError("disk: full")
    time.sleep(600)


def one_hangs(context: ProcessContext) -> None:
    set_collective_timeout(context, 3.0)
    if context.rank == 1:
        time.sleep(600)
    all_reduce_sum(torch.zeros(1), context)


def one_is_stopped(context: ProcessContext) -> None:
    set_collective_timeout(context, 3.0)
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    all_reduce_sum(torch.zeros(1), context)


def wait(context: ProcessContext) -> None:
    all_reduce_sum(torch.zeros(1), context)
    say("ready")
    time.sleep(600)


def main(argv: list[str]) -> int:
    started_by = detect_launcher()
    if started_by is None:
        return launch_processes(__file__, argv, num_processes=2)
    with process_group() as context:
        say(f"by {started_by} with {os.environ.get('OMP_NUM_THREADS')} threads")
        case, *words = argv
        for word in words:
            say(word)
        globals()[case](context)
    return 0


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
