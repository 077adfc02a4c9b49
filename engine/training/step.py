"""One batch's whole life, top to bottom: training and evaluation.

Legend: B images per batch, C channels, S pixels on a side.
Step: one optimizer update. Micro-step: one forward and backward pass; `TRAIN.ACCUM_ITER` of them make a step.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from timm.utils import ModelEmaV3
from torch import nn
from torch.profiler import record_function

from configs.schema import Config
from datasets.batch import PADDING, Batch
from datasets.loading.loader import Loader
from engine.parallel.compile import eagerly
from engine.parallel.strategy import gradient_sync, share_buffers
from engine.precision.master_weights import MasterWeights
from engine.precision.non_finite import first_non_finite
from engine.precision.policy import Precision
from engine.progress import EpochProgress
from engine.telemetry.phases import BACKWARD, DATA_WAIT, FORWARD, LOGGING, OPTIMIZER, TRANSFORM
from engine.training.optimizer import set_lr
from engine.training.schedule import Schedule
from models.build import set_training
from utils.distributed import ProcessContext, gather_objects
from utils.errors import UserError
from utils.logger import progress_bar
from utils.metrics import Metrics, MetricSums, to_metrics
from utils.seeding import derive_seed


@dataclass
class TrainState:
    """All that a step touches. The optimizer updates `weights`; the forward pass goes through `parallel`."""

    config: Config
    context: ProcessContext
    weights: MasterWeights
    parallel: nn.Module
    ema: ModelEmaV3 | None
    optimizer: torch.optim.Optimizer
    precision: Precision
    schedule: Schedule
    transform: nn.Module
    eval_transform: nn.Module

    @property
    def eval_model(self) -> nn.Module:
        """What is evaluated: the average where there is one; it computes as the model in training does."""
        return self.precision.computing(self.ema.module) if self.ema else self.weights.computing


def train_one_epoch(
    learner: TrainState,
    batches: Iterator[Batch],
    progress: EpochProgress,
    stop_step: int,
    after_step: Callable[[EpochProgress], None],
) -> None:
    """Trains from `progress.done_steps` to the epoch's end, or to `stop_step` of it, and calls back after each step.

    The loss of a step is the mean over all samples of its accumulation window on all ranks, a short last window
    included. With a fused optimizer the host waits for the device in `after_step` only, but for a GPU that is more than
    two steps behind.

    Raises:
        SkippedTooOften: on all ranks alike. The last of those steps is not counted as done.
    """
    options, scaler, weights = learner.config.train, learner.precision.scaler, learner.weights
    set_training(weights.computing, learner.config.model.freeze_backbone)
    while progress.done_steps < stop_step:
        step = progress.step
        progress.lr = learner.schedule.lr_at(step)
        set_lr(learner.optimizer, progress.lr)
        window = progress.window(options.accum_iter)
        weights.save_batch_stats()
        sums_before = progress.sums.sums.clone()

        for micro_step in range(window):
            waiting_since = time.perf_counter()
            with record_function(DATA_WAIT):
                batch = next(batches)
            progress.data_wait_seconds += time.perf_counter() - waiting_since
            with gradient_sync(learner.parallel, micro_step == window - 1):
                loss, logits = micro_step_pass(learner, batch, step, micro_step, window)
            with record_function(LOGGING):
                progress.sums.add(loss.detach(), logits.detach(), batch.targets)

        with record_function(OPTIMIZER):
            update_weights(learner, step)
        if scaler.skipped_too_often():
            progress.sums.sums.copy_(sums_before)
            raise TooManySkippedSteps(_why_skipped(learner, batch, step, window))
        progress.done_steps += 1
        with record_function(LOGGING):
            after_step(progress)


def micro_step_pass(
    learner: TrainState, batch: Batch, step: int, micro_step: int, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward pass of one batch: the loss, summed over its samples, and the logits (B, classes)."""
    samples = window * learner.config.data.batch_size  # on this rank; the exchange averages over the ranks
    torch.manual_seed(derive_seed(learner.config.seed, "step", step, micro_step, learner.context.rank))
    with record_function(TRANSFORM):
        images, targets = learner.transform(batch)
    with record_function(FORWARD):
        with learner.precision.autocast():
            logits = learner.parallel(images)
        loss = F.cross_entropy(
            logits.float(),
            targets,
            reduction="sum",
            ignore_index=PADDING,
            label_smoothing=learner.config.train.smoothing,
        )
    with record_function(BACKWARD):
        learner.precision.scaler.scale(loss / samples).backward()
    return loss, logits


def update_weights(learner: TrainState, step: int) -> None:
    """From the gradients of a step to the weights of the next; a step with a non-finite gradient changes none."""
    weights, scaler = learner.weights, learner.precision.scaler
    weights.copy_grads_to_master()
    scaler.step(learner.optimizer, learner.config.train.grad_clip)
    scaler.update()
    weights.restore_batch_stats(scaler.last_skipped)
    learner.optimizer.zero_grad(set_to_none=True)
    if learner.ema:
        learner.ema.update(weights.full)
    weights.copy_master_to_model(derive_seed(learner.config.seed, "rounding", step))


class TooManySkippedSteps(UserError):
    """So many steps in a row had a non-finite gradient that no more would help. The weights are as before them."""


def _why_skipped(learner: TrainState, batch: Batch, step: int, window: int) -> str:
    """Goes through the last micro-step of the step once more and looks; every rank must call it."""
    weights, scaler = learner.weights, learner.precision.scaler
    weights.save_batch_stats()
    with gradient_sync(learner.parallel, False), eagerly():
        found = first_non_finite(weights.computing, lambda: micro_step_pass(learner, batch, step, window - 1, window))
    weights.computing.zero_grad(set_to_none=True)
    weights.restore_batch_stats(torch.ones_like(scaler.last_skipped))
    origin = next(filter(None, gather_objects(found, learner.context)), None)
    return (
        f"{scaler.skipped_in_a_row} steps in a row, up to step {step + 1}, were skipped, for their gradients were not "
        f"finite in {learner.precision.name}. First not finite: {origin or 'nothing, when the last was tried again'}. "
        f"{learner.precision.cure(origin)}"
    )


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    loader: Loader,
    transform: nn.Module,
    precision: Precision,
    context: ProcessContext,
    after_batch: Callable[[], None] = lambda: None,
) -> Metrics:
    """Loss and hits over all samples of all ranks, each counted once. Calls back after each batch.

    Raises:
        UserError: none of them can be read.
    """
    model.eval()
    share_buffers(model, context)
    sums = MetricSums(context.device)
    for batch in progress_bar("Validation", context, len(loader), unit="batch", over=loader):
        with precision.autocast(), eagerly():
            logits = model(transform(batch.images))
        loss = F.cross_entropy(logits.float(), batch.targets, reduction="sum", ignore_index=PADDING)
        sums.add(loss, logits, batch.targets)
        after_batch()
    metrics = to_metrics(sums.reduced(context))
    if not metrics.samples:
        raise UserError("no image of the validation split can be read; bad_images_*.csv in the run's folder says why")
    return metrics
