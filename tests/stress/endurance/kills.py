"""Processes that are killed while they save checkpoints."""

import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from faults.saved import has_good_checkpoint
from results import Result

from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.shard_writer import ShardWriter
from engine.checkpoint.writer import CheckpointWriter
from utils.distributed import single_process


def kills_while_saving(
    trained: Path, folder: Path, make_writer: Callable[[Path], Any], count: int, seed: int
) -> Result:
    """Kills a process that saves without pause. There must always be a good checkpoint."""
    shutil.copytree(trained, folder)
    rng, state, result = random.Random(seed), load_checkpoint(folder / "last.pth"), Result("", count)
    killed_in_writing = 0
    for number in range(count):
        child = os.fork()
        if child == 0:
            try:
                writer = make_writer(folder)
                for save in itertools.count():
                    writer.save(state, is_best=save % 3 == 0, periodic=f"epoch-{save:03d}")
            finally:
                os._exit(1)  # an error must not run the rest of the parent's program here
        time.sleep(rng.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed_in_writing += any(folder.glob(".*.tmp"))
        if not has_good_checkpoint(folder):
            result.failures.append(f"kill {number}")
    result.figures["killed while writing"] = killed_in_writing
    return result


def file_writer(folder: Path) -> CheckpointWriter:
    return CheckpointWriter(folder, keep=2, on_written=lambda *_: None)


def part_writer(folder: Path) -> ShardWriter:
    """Writes sharded checkpoints of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return ShardWriter(folder, 2, lambda *_: None, single_process(), 60)
