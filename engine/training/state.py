"""The state of a training: the models, the optimizer, and the parts that a step uses."""

from dataclasses import dataclass

import torch
from torch import nn

from configs.schema import Config
from engine.checkpoint.epoch_layout import EpochLayout
from engine.parallel.strategy import Strategy
from engine.precision.policy import Precision
from engine.progress import EpochProgress
from engine.run.step_timer import StepTimer
from engine.training.losses.distillation import StepLoss
from engine.training.optimization.schedule import Schedule
from engine.training.optimization.weight_average import WeightAverage
from utils.distributed import ProcessContext
from utils.metrics import MetricSums


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

    Attributes:
        config: the completed options.
        layout: how the samples of an epoch are divided into steps.
        average: of the weights; None without MODEL_EMA.
        transform: batch -> images (B, C, S, S), targets; on the device.
        timer: of the data wait and the forward passes.
    """

    config: Config
    context: ProcessContext
    layout: EpochLayout
    precision: Precision
    strategy: Strategy
    wrapped: nn.Module
    meta_model: nn.Module
    average: WeightAverage | None
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    loss: StepLoss
    transform: nn.Module
    timer: StepTimer

    @property
    def eval_model(self) -> nn.Module:
        """The model to evaluate, in the precision of the training."""
        if self.average is None:
            return self.precision.weights.compute
        return self.precision.compute_copy(self.average.module)

    def new_progress(self, epoch: int) -> EpochProgress:
        """The start of an epoch."""
        return EpochProgress(
            epoch=epoch,
            steps=self.layout.steps_per_epoch,
            batches=self.layout.batches_per_epoch,
            sums=MetricSums(self.context.device),
            accumulation=self.layout.batch.accumulation,
        )
