"""A small program for test_distributed.py: `python distributed_worker.py CASE`, in two processes."""

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from utils.errors import Unavailable
from utils.files import TemporaryFolder
from utils.processes.entry import run_script
from utils.processes.launch import detect_launcher, exit_with_launcher
from utils.processes.ranks import launch_ranks

if detect_launcher():
    exit_with_launcher()

import torch

from utils.distributed import (
    ProcessContext,
    RankExchange,
    all_reduce_sum,
    broadcast_object,
    gather_objects,
    process_group,
    work_while_others_wait,
)
from utils.system import usable_cores
from utils.torch_compat import set_process_group_timeout


def print_line(line: str):
    os.write(1, f"{line}\n".encode())  # one system call, so that lines of two processes do not mix


def wait_for_others(context: ProcessContext):
    all_reduce_sum(torch.zeros(1), context)


def agree(context: ProcessContext):
    numbers = torch.tensor([context.rank + 1.0])
    total = all_reduce_sum(numbers, context)
    assert total is numbers
    assert context.is_main == (context.rank == 0)
    assert context.core_share.cores <= len(usable_cores())
    assert context.is_one_host != context.is_counted
    assert os.environ["LOCAL_WORLD_SIZE"] == str(context.local_world_size)
    name = broadcast_object(f"run-{context.rank}", context)
    ranks = f"rank {context.rank}/{context.world_size} local {context.local_rank}/{context.local_world_size}"
    print_line(f"{ranks} {context.device} sum {total.item():g} {name}")


def agree_and_listen(context: ProcessContext):
    """Prints the addresses at which this rank and its launcher listen, too."""
    agree(context)
    opened = [path for pid in (os.getpid(), os.getppid()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = {os.readlink(path) for path in opened if path.exists()}
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:  # LISTEN
                print_line(f"listens at {fields[1].partition(':')[0]}")
    gather_objects(None, context)


def one_fails(context: ProcessContext):
    agree(context)
    if context.rank == 1:
        raise Unavailable("disk: full")
    wait_for_others(context)


def one_crashes(context: ProcessContext):
    if context.rank == 1:
        raise ValueError("a bug")
    wait_for_others(context)


def one_is_killed(context: ProcessContext):
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_others(context)


def one_fails_and_its_exit_hangs(context: ProcessContext):
    """Python waits at exit for a thread, which stands for one that waits for a disk or a GPU."""
    if context.rank == 1:
        threading.Thread(target=time.sleep, args=(600,)).start()
    one_fails(context)


def one_hangs(context: ProcessContext, is_stopped: bool = False):
    set_process_group_timeout(timedelta(seconds=3.0))
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP) if is_stopped else time.sleep(600)
    wait_for_others(context)


def one_is_stopped(context: ProcessContext):
    one_hangs(context, is_stopped=True)


def one_waits_for_a_sum(context: ProcessContext):
    time.sleep(0 if context.rank else 600)
    wait_for_others(context)


def one_waits_for_a_group(context: ProcessContext):
    time.sleep(0 if context.rank else 600)
    RankExchange(context, timeout_seconds=600)


def all_fail(context: ProcessContext):
    raise Unavailable("disk: full")


def one_is_slow(context: ProcessContext):
    set_process_group_timeout(timedelta(seconds=2.0))

    def work() -> int:
        time.sleep(4 * context.rank)
        return context.rank

    print_line(f"rank {context.rank}: {work_while_others_wait(work, context)}")


def main(argv: list[str]) -> int:
    launcher = detect_launcher()
    if launcher is None:
        folder = TemporaryFolder("launch")
        status = launch_ranks([__file__, *argv], 2, folder.name)
        if status is not None:
            return status
        launcher = detect_launcher()
    with process_group() as context:
        print_line(f"by {launcher} with {os.environ.get('OMP_NUM_THREADS')} threads")
        globals()[argv[0]](context)
    return 0


if __name__ == "__main__":
    run_script(main)
