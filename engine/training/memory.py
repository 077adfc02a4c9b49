"""When a GPU's memory is short: what would fit."""

import gc
from dataclasses import replace

import torch

from configs.schema import Config
from datasets.batch import Batch
from engine.checkpoint.epoch_layout import EpochLayout
from engine.parallel.compile import eagerly
from engine.precision.policy import Precision
from engine.training.step import TrainState, micro_step_pass, update_weights
from engine.training.trainer import build_train_state
from utils.distributed import ProcessContext
from utils.errors import UserError
from utils.logger import RunLogger

_USABLE = 0.95  # of what is free: the rest is lost between blocks
_SMALL = 16  # the measured batches are so many times smaller than the one that did not fit


def out_of_memory(config: Config, context: ProcessContext, text: str, in_evaluation: bool) -> UserError:
    """The error to raise once nothing holds the failed run's tensors any more; `text` is torch's own."""
    model, precision = config.model.name, Precision(config.amp, context.device).name
    if in_evaluation:
        size, flags, cure = config.data.eval_batch_size, "-batch_size_eval", "lower it"
    else:
        size, flags = config.data.batch_size, "-batch_size"
        fitting = largest_batch(config, context)
        cure = f"by its measured need {fitting} would fit" if fitting else "not even small batches fit"
        cure += "; lower it and raise -accum_iter" + ("" if config.amp.enabled else ", or use -amp")
    first_line = text.splitlines()[0] if text else "no more is known"
    return UserError(f"out of GPU memory with {model} at {flags} {size} ({precision}): {cure} ({first_line})")


def largest_batch(config: Config, context: ProcessContext) -> int | None:
    """The largest batch per device whose training step would fit; None where two small ones do not.

    A step's peak is a straight line over the batch size: weights, gradients and moments, and a constant per image.
    """
    gc.collect()
    torch.cuda.empty_cache()
    small = max(1, config.data.batch_size // _SMALL)
    free, _ = torch.cuda.mem_get_info(context.device)
    taken = torch.cuda.memory_allocated(context.device)
    usable = _USABLE * (free + torch.cuda.memory_reserved(context.device) - taken)
    try:
        one, two = _peaks(config, context, (small, 2 * small))
    except torch.OutOfMemoryError:
        return None
    return on_line((small, one - taken), (2 * small, two - taken), usable)


def on_line(one: tuple[int, int], two: tuple[int, int], usable: float) -> int | None:
    """The largest batch on the line through two (batch, bytes) that stays within `usable` bytes; None below 1."""
    per_image = (two[1] - one[1]) / (two[0] - one[0])
    if per_image <= 0:
        return None
    fitting = int((usable - one[1]) // per_image) + one[0]
    return fitting if fitting >= 1 else None


def _peaks(config: Config, context: ProcessContext, batch_sizes: tuple[int, ...]) -> list[int]:
    """Bytes allocated at the peak of a training step, for each batch size."""
    geometry = EpochLayout(samples=10**6, batch_size=config.data.batch_size, accum_iter=1, seed=config.seed)
    alone = replace(context, rank=0, world_size=1)  # the other ranks have not run out of memory, and do not take part
    learner = build_train_state(config.with_model(pretrained=None), alone, geometry, RunLogger(None, alone))
    _step(learner, batch_sizes[0])  # makes the moments
    peaks = []
    for batch_size in batch_sizes:
        torch.cuda.reset_peak_memory_stats(context.device)
        _step(learner, batch_size)
        peaks.append(torch.cuda.max_memory_allocated(context.device))
    return peaks


def _step(learner: TrainState, batch_size: int) -> None:
    data, device = learner.config.data, learner.context.device
    shape = (batch_size, data.image_channels, data.image_size, data.image_size)
    targets = torch.zeros(batch_size, dtype=torch.int64, device=device)
    with eagerly():
        micro_step_pass(learner, Batch(torch.zeros(shape, dtype=torch.uint8, device=device), targets), 0, 0, 1)
    update_weights(learner, step=0)
