"""A training step, top to bottom.

Legend: B images per batch, C channels, S pixels on a side.
Step: one optimizer update. Micro-step: one forward and backward pass; `TRAIN.ACCUM_ITER` of them make a step.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import reduce
from operator import add

import torch
from torch.profiler import record_function

from datasets.batch import Batch
from engine.parallel.compile import run_eagerly
from engine.precision.non_finite import first_non_finite
from engine.progress import EpochProgress
from engine.run.step_timer import BACKWARD, DATA_WAIT, FORWARD, LOGGING, OPTIMIZER, TRANSFORM
from engine.training.losses.distillation import class_logits
from engine.training.optimization.optimizer import set_lr
from engine.training.state import TrainState
from models.tuning.frozen import set_training
from utils.distributed import gather_objects
from utils.errors import UserError
from utils.metrics import BatchSums
from utils.seeding import derive_seed, seed_device


class NonFiniteGradients(UserError):
    """Too many consecutive steps had non-finite gradients. The weights are those after the last applied step."""


def train_steps(
    state: TrainState,
    batches: Iterator[Batch],
    progress: EpochProgress,
    stop_step: int,
    after_step: Callable[[EpochProgress], None],
) -> None:
    """Trains from `progress.done_steps` to step `stop_step` of the epoch; calls `after_step` after each step.

    The loss of a step is the mean over all samples of its accumulation window on all ranks, including a short last
    window. With a fused optimizer, the host waits only in `after_step`, and when the GPU is more than two steps behind.

    Raises:
        NonFiniteGradients: on all ranks. The last of those steps does not count as done.
    """
    precision, config = state.precision, state.config
    set_training(precision.weights.compute, config.model.tuned)
    while progress.done_steps < stop_step:
        step, window = progress.step, progress.window
        progress.lr = state.schedule.lr_at(step)
        set_lr(state.optimizer, progress.lr)
        if state.average:
            state.average.set_step(step)
        precision.weights.save_batch_stats()
        sums: list[BatchSums] = []

        for micro_step in range(window):
            with record_function(DATA_WAIT):
                batch = state.timer.next_batch(batches)
            exchanges = micro_step == window - 1
            with nullcontext() if exchanges else state.strategy.no_sync(state.wrapped):
                loss, logits = forward_backward(state, batch, step, micro_step, window)
            with record_function(LOGGING):
                sums.append(BatchSums.of(loss, logits, batch.targets, batch.samples))

        with record_function(OPTIMIZER), state.timer.launch_check():
            seed = derive_seed(config.seed, "rounding", step)
            grad_norm = precision.step(state.optimizer, config.train.grad_clip, seed, state.average)
        if precision.scaler.skipped_too_often():
            raise NonFiniteGradients(_explain_skips(state, batch, step, window))
        progress.done_steps += 1
        with record_function(LOGGING):
            progress.sums.add_step(reduce(add, sums), grad_norm, precision.scaler.last_skipped)
            after_step(progress)


def forward_backward(
    state: TrainState, batch: Batch, step: int, micro_step: int, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The passes of one micro-step: the loss (), summed over its samples, and the logits (B, classes)."""
    seed = derive_seed(state.config.seed, "step", step, micro_step, state.context.rank)
    seed_device(seed, batch.images.device)
    with record_function(TRANSFORM):
        images, targets = state.transform(batch)
    with record_function(FORWARD):
        with state.timer, state.precision.autocast():
            outputs = state.wrapped(images)
        loss = state.loss(outputs, targets, images)
    with record_function(BACKWARD):
        samples = window * state.config.data.batch_size  # of this rank: the exchange of gradients averages over ranks
        state.precision.scaler.backward(loss, samples)
    return loss, class_logits(outputs)


def _explain_skips(state: TrainState, batch: Batch, step: int, window: int) -> str:
    """Repeats the last micro-step to find the first non-finite module; a collective call."""
    precision, weights = state.precision, state.precision.weights
    weights.save_batch_stats()
    with state.strategy.no_sync(state.wrapped), run_eagerly():
        found = first_non_finite(
            weights.compute,
            lambda: forward_backward(state, batch, step, window - 1, window),
            state.strategy.gather_in_turn(weights.compute),
        )
    weights.compute.zero_grad(set_to_none=True)
    weights.restore_batch_stats(torch.ones_like(precision.scaler.last_skipped))
    origin = next(filter(None, gather_objects(found, state.context)), None)
    return (
        f"Non-finite gradients for {precision.scaler.consecutive_skipped} consecutive steps, up to step {step + 1}, in "
        f"{precision.name}; aborting. First non-finite value: {origin or 'none when the last step was repeated'}. "
        f"{precision.suggest_fix(origin)}"
    )
