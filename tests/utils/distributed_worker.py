"""A small program for test_distributed.py: `python distributed_worker.py CASE [WORDS]`, in two processes."""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from utils.errors import UserError, exit_status
from utils.launch import follow_launcher, launcher, relaunch

if launcher():
    follow_launcher()

import torch

from utils.distributed import ProcessContext, broadcast_object, connected, limit_waiting, sum_reduce


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # in one piece, or two processes' lines mix


def agree(context: ProcessContext) -> None:
    numbers = torch.tensor([context.rank + 1.0])
    total = sum_reduce(numbers, context)
    assert total is numbers
    assert context.is_main == (context.rank == 0)
    name = broadcast_object(f"run-{context.rank}", context)
    ranks = f"rank {context.rank}/{context.world_size} local {context.local_rank}/{context.local_world_size}"
    say(f"{ranks} {context.device} sum {total.item():g} {name}")


def one_fails(context: ProcessContext) -> None:
    agree(context)
    if context.rank == 1:
        raise UserError("disk: full")
    sum_reduce(torch.zeros(1), context)


def all_fail(context: ProcessContext) -> None:
    raise UserError("list: not found")


def one_crashes(context: ProcessContext) -> None:
    if context.rank == 1:
        raise ValueError("a bug")
    sum_reduce(torch.zeros(1), context)


def one_is_killed(context: ProcessContext) -> None:
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sum_reduce(torch.zeros(1), context)


def one_fails_one_hears_nothing(context: ProcessContext) -> None:
    """As a process that waits on its GPU, where neither signals nor closed connections reach it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if context.rank == 1:
        raise UserError("disk: full")
    time.sleep(600)


def one_hangs(context: ProcessContext) -> None:
    limit_waiting(context, 3.0)
    if context.rank == 1:
        time.sleep(600)
    sum_reduce(torch.zeros(1), context)


def one_is_stopped(context: ProcessContext) -> None:
    limit_waiting(context, 3.0)
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    sum_reduce(torch.zeros(1), context)


def wait(context: ProcessContext) -> None:
    sum_reduce(torch.zeros(1), context)
    say("ready")
    time.sleep(600)


def main(argv: list[str]) -> int:
    started_by = launcher()
    if started_by is None:
        return relaunch(__file__, argv, num_processes=2)
    with connected() as context:
        say(f"by {started_by} with {os.environ.get('OMP_NUM_THREADS')} threads")
        case, *words = argv
        for word in words:
            say(word)
        globals()[case](context)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
