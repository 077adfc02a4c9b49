"""The state of a training, and a training step, top to bottom.

Legend: B images per batch, C channels, S pixels on a side. Step: one optimizer update. Micro-step: one forward and
backward pass; `TRAIN.ACCUM_ITER` of them make a step.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from configs.batch_plan import EpochLayout
from configs.schema import Config
from configs.schema.train import Horizon
from datasets.batch import Batch
from datasets.transforms.device import TrainTransform
from engine.parallel import Strategy, run_eagerly
from engine.precision.master_weights import WeightAverage
from engine.precision.non_finite import first_non_finite
from engine.precision.policy import Precision
from engine.progress import BatchSums, EpochProgress, MetricSums
from engine.run.cost import Phase, StepTimer
from engine.training.loss import StepLoss, class_logits
from engine.training.optimizer import Schedule, set_lr
from models.tuning import set_training
from utils.distributed import ProcessContext, gather_objects
from utils.errors import UserError
from utils.seeding import derive_seed, seed_device


@dataclass(frozen=True)
class TrainState:
    """Everything that a training step reads or changes.

    The model has these names. Without AMP, several processes and MODEL_EMA, all but the last are one module.

    - `precision.weights.master`: in fp32; the optimizer updates it.
    - `precision.weights.compute`: runs the passes; at O2 and O3 a copy with half weights.
    - `precision.weights.saved`: `master`, or `compute` at O3; persists between steps, checkpoints save it.
    - `wrapped`: `compute`, wrapped by the strategy; a training step calls it.
    - `eval_model`: the average of the weights if there is one, else `compute`.
    - `meta_model`: unsharded and without memory, to count parameters and FLOPs.

    config: the completed options.
    horizon: of the run, or of a trial; `schedule` and `transform` ask it.
    layout: how the samples of an epoch are divided into steps.
    average: of the weights; None without MODEL_EMA.
    transform: batch -> images (B, C, S, S), targets; on the device.
    timer: of the data wait and the forward passes.
    """

    config: Config
    horizon: Horizon
    context: ProcessContext
    layout: EpochLayout
    precision: Precision
    strategy: Strategy
    wrapped: nn.Module
    meta_model: nn.Module
    average: WeightAverage | None
    optimizer: torch.optim.Optimizer
    loss: StepLoss
    timer: StepTimer

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.config.train, self.horizon, self.layout.steps_per_epoch, self.layout.batch.global_size)

    @cached_property
    def transform(self) -> nn.Module:
        config = self.config
        transform = TrainTransform(config.data, config.train, config.model.num_logits, self.horizon)
        return transform.to(self.context.device)

    @property
    def eval_model(self) -> nn.Module:
        """The model to evaluate, in the precision of the training."""
        if self.average is None:
            return self.precision.weights.compute
        return self.precision.compute_copy(self.average.module)

    def free(self) -> None:
        """Frees weights, average and moments, which a checkpoint has; torch keeps the weights of a shard."""
        self.optimizer.state.clear()
        for model in (self.precision.weights.master, self.wrapped, self.average or self.wrapped):
            for parameter in model.parameters():
                parameter.data = parameter.new_empty(0)

    def new_progress(self, epoch: int) -> EpochProgress:
        """The start of an epoch."""
        return EpochProgress(
            epoch=epoch,
            steps=self.layout.steps_per_epoch,
            batches=self.layout.batches_per_epoch,
            sums=MetricSums(self.context.device),
            accumulation=self.layout.batch.accumulation,
        )


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
    Raises NonFiniteGradients: on all ranks. The last of those steps does not count as done.
    """
    precision = state.precision
    config = state.config
    set_training(precision.weights.compute, config.model)
    while progress.done_steps < stop_step:
        step = progress.step
        window = progress.window
        progress.lr = state.schedule.lr_at(step)
        set_lr(state.optimizer, progress.lr)
        if state.average:
            state.average.set_step(step)
        precision.weights.save_batch_stats()
        sums = []

        for micro_step in range(window):
            with record_function(Phase.DATA_WAIT):
                batch = state.timer.next_batch(batches)
            exchanges = micro_step == window - 1
            with nullcontext() if exchanges else state.strategy.no_sync(state.wrapped):
                loss, logits = forward_backward(state, batch, step, micro_step, window)
            with record_function(Phase.LOGGING):
                sums.append(BatchSums.of(loss, logits, batch.targets, batch.samples))

        with record_function(Phase.OPTIMIZER), state.timer.launch_check():
            seed = derive_seed(config.seed, "rounding", step)
            grad_norm = precision.step(state.optimizer, config.train.grad_clip, seed, state.average)
        if precision.scaler.skipped_too_often():
            raise NonFiniteGradients(_explain_skips(state, batch, step, window))
        progress.done_steps += 1
        with record_function(Phase.LOGGING):
            progress.sums.add_step(reduce(add, sums), grad_norm, precision.scaler.last_skipped)
            after_step(progress)


def forward_backward(state: TrainState, batch: Batch, step: int, micro_step: int, window: int) -> tuple[Tensor, Tensor]:
    """The passes of one micro-step: the loss (), summed over its samples, and the logits (B, classes)."""
    seed_device(derive_seed(state.config.seed, "step", step, micro_step, state.context.rank), batch.images.device)
    with record_function(Phase.TRANSFORM):
        images, targets = state.transform(batch)
    with record_function(Phase.FORWARD):
        with state.timer.forward(), state.precision.autocast():
            outputs = state.wrapped(images)
        loss = state.loss(outputs, targets, images)
    statistics: AbstractContextManager[None] = nullcontext()
    if state.config.model.grad_checkpointing:
        statistics = state.precision.weights.kept_batch_stats()
    with record_function(Phase.BACKWARD), statistics:
        samples = window * state.config.data.micro_batch  # of this rank: the exchange of gradients averages over ranks
        state.precision.scaler.backward(loss, samples)
    return loss, class_logits(outputs)


def _explain_skips(state: TrainState, batch: Batch, step: int, window: int) -> str:
    """Repeats the last micro-step to find the first non-finite module; a collective call."""
    precision = state.precision
    weights = state.precision.weights
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
