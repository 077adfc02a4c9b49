"""Checkpoints of processes that are killed while they save, and damaged checkpoints."""

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
from faults.saved import has_good_checkpoint, is_good
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
    result.figures["killed while writing"] = 0
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
        result.figures["killed while writing"] += any(folder.glob(".*.tmp"))
        if not has_good_checkpoint(folder):
            result.failures.append(f"kill {number}")
    return result


def file_writer(folder: Path) -> CheckpointWriter:
    return CheckpointWriter(folder, keep=2, on_written=lambda *_: None)


def part_writer(folder: Path) -> ShardWriter:
    """Writes sharded checkpoints of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return ShardWriter(folder, 2, lambda *_: None, single_process(), 60)


def damaged_checkpoint(checkpoint: Path, flips: int, cuts: int, seed: int) -> Result:
    """Damages a checkpoint, a file or a folder of parts, at random positions. It is whole again afterwards."""
    files = sorted(checkpoint.iterdir()) if checkpoint.is_dir() else [checkpoint]
    contents, rng, result = {file: file.read_bytes() for file in files}, random.Random(seed), Result("", flips + cuts)
    sizes = [len(content) for content in contents.values()]
    for number in range(flips + cuts):
        # Every third case is in any file: the tensors are nearly all of the bytes.
        (file,) = rng.choices(files, sizes if number % 3 else None)
        data, position = bytearray(contents[file]), rng.randrange(len(contents[file]))
        if number < flips:
            data[position] ^= 1 << rng.randrange(8)
        else:
            del data[position:]
        file.write_bytes(data)
        if is_good(checkpoint):
            result.failures.append(f"{'flip' if number < flips else 'cut'} at byte {position} of {file.name}")
        file.write_bytes(contents[file])
    if not is_good(checkpoint):
        result.failures.append("the undamaged checkpoint is refused")
    result.figures["bytes"] = sum(sizes)
    return result
