"""`-batch_size=auto`: the largest batch size that fits into the memory, found before the run by trials.

A trial trains two steps on random images, without data set, log file or checkpoints, in a process of its own: the peak
memory belongs to it alone, a lack of memory ends no run, and the run that follows has the state of one with the size
given.
"""

import logging
import math
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import cycle

import torch

from configs.schema import Config, Data
from datasets.loading.workers import end_with_server, start_worker_server
from engine.training.trial import Trial, build_state, ready_batches
from utils.device import find_shortage, keep_freed_memory, peak_memory_bytes, untimed_convolutions
from utils.distributed import ProcessContext, gather_objects
from utils.errors import UserError
from utils.notes import RUN_LOG, Note
from utils.signals import kill_children

_USABLE = 0.9  # of the memory: evaluations, checkpoints, fragments and the loader's batches need some


def find_batch_size(config: Config, context: ProcessContext) -> tuple[int, Note]:
    """The largest batch size that fits on all ranks, and a line for the log. A collective call.

    Raises UserError: on all ranks; not one image fits, a CPU has no limit, or the weights are sharded.
    """
    data = config.data
    device = context.device
    strategy = config.parallel.strategy
    if context.world_size > 1 and strategy != "ddp":
        raise UserError(f"-batch_size=auto: PARALLEL.STRATEGY {strategy} shards the weights; give a size")
    limit, before = _memory_limit(data, device)
    assert data.global_batch_size  # DATA.BATCH_SIZE auto needs it
    share = data.global_batch_size // context.world_size

    def fits(size: int) -> bool:
        # With two passes per step, as with several ranks, the gradients stay in memory during the second one.
        trial = config.with_train(accum_iter=1 if size == share * context.world_size else 2)
        trial = trial.with_model(pretrained=None).with_data(batch_size=size, global_batch_size=None)
        peak = before + _measure_in_child(trial, device)
        logging.getLogger(RUN_LOG).debug(f"----- -batch_size=auto: {size} needs {peak / 1e9:.2f} GB")
        return peak <= _USABLE * limit

    sizes = [size for size in range(1, share + 1) if share % size == 0]
    largest = min(gather_objects(largest_size(sizes, fits), context))
    usable = f"{_USABLE:.0%} of {limit / 1e9:.4g} GB"
    if not largest:
        raise UserError(f"-batch_size=auto: not one image fits into {usable}; use a smaller model")
    return largest, Note("screen", f"-batch_size=auto: {largest}, which divides {share} and fits into {usable}")


def _memory_limit(data: Data, device: torch.device) -> tuple[float, int]:
    """The limit of the peak memory, and the memory that this process has taken of it, bytes. Raises UserError."""
    limit = 1e9 * (data.memory_gb or math.inf)
    if device.type == "cuda":
        return min(limit, torch.cuda.mem_get_info(device)[0]), 0  # free: other processes may use the GPU
    if data.memory_gb is None:
        raise UserError("-batch_size=auto: a CPU has no limit; give -memory_gb, the peak memory of a process")
    return limit, peak_memory_bytes(device)


def largest_size(sizes: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The largest of the ascending `sizes` that fits; 0 if there is none.

    No size is tried that is over twice the largest one that fits so far, unless it is the next one: a size far above
    the memory of a machine may end other processes.
    """
    left = [*sizes]
    largest = 0
    while left:
        at_most_doubled = [size for size in left if size <= 2 * largest]
        candidate = max(at_most_doubled, default=left[0])
        if fits(candidate):
            largest = candidate
            left = [size for size in left if size > candidate]
        else:
            left = [size for size in left if size < candidate]
    return largest


def _measure_in_child(config: Config, device: torch.device) -> float:
    start_worker_server()
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("forkserver"), end_with_server)
    try:
        return pool.submit(_train_two_steps, config, device).result()
    except BrokenProcessPool:  # the system has killed it
        return math.inf
    finally:
        kill_children()


def _train_two_steps(config: Config, device: torch.device) -> float:
    """The peak memory that it takes, in bytes; infinite if the memory is exhausted."""
    context = ProcessContext(rank=0, local_rank=0, world_size=1, local_world_size=1, device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()  # as the run does; its heap is larger
    try:
        trial = Trial(context, partial(build_state, config, context))
        with untimed_convolutions():
            trial.train(cycle(ready_batches(config, context)), steps=2)
    except Exception as error:
        if find_shortage(error):
            return math.inf
        raise
    return trial.peak_bytes()
