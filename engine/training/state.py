"""The parts of a training run, as `engine.training.build` makes them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from datasets.decoding.bad_images import BadImageList
from datasets.loading.batches import BatchSource
from datasets.loading.loader import Loader
from engine.checkpoint.epoch_layout import EpochLayout
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.files import EvaluationFiles
from engine.parallel.strategy import Strategy
from engine.precision.policy import Precision
from engine.progress import EpochProgress
from engine.run.log import RunLogger
from engine.run.reporter import Reporter
from engine.run.timing.step_timer import StepTimer
from engine.training.distillation import StepLoss
from engine.training.schedule import Schedule
from engine.training.step_graph import StepGraph
from engine.training.weight_average import WeightAverage
from utils.distributed import ProcessContext
from utils.metrics import MetricSums


@dataclass(frozen=True)
class TrainState:
    """Everything that a training step reads or changes.

    Attributes:
        model: the module whose forward pass training calls: `precision.weights.compute`, wrapped by the strategy.
        meta_model: a copy of the model without memory and unsharded, to count its parameters and FLOPs.
        average: of the weights; None without MODEL_EMA.
        transform: batch -> images (B, C, S, S), targets; on the device.
        evaluator: evaluates `eval_model`.
        batch_size: per device, of one micro-step.
        max_norm: of the gradients, global; None or 0: no clipping.
        rank: of this process; it seeds dropout and mixup.
        timer: of the data wait and the forward passes; with `graph` of whole steps.
        graph: replays whole steps; None: each step is launched op by op.
    """

    precision: Precision
    strategy: Strategy
    model: nn.Module
    meta_model: nn.Module
    average: WeightAverage | None
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    loss: StepLoss
    transform: nn.Module
    evaluator: Evaluator
    batch_size: int
    accum_iter: int
    max_norm: float | None
    freeze_backbone: bool
    seed: int
    rank: int
    timer: StepTimer
    graph: StepGraph | None = None

    @property
    def eval_model(self) -> nn.Module:
        """The model to evaluate: the average if there is one. It computes in the same precision as training."""
        if self.average is None:
            return self.precision.weights.compute
        return self.precision.compute_copy(self.average.module_on(self.precision.device))


@dataclass(frozen=True)
class Plan:
    """When a run evaluates, saves and ends, in epochs unless the name gives another unit.

    evaluates_raw: the raw weights too, beside their average.
    """

    num_epochs: int
    max_steps: int | None
    validate_freq: int
    patience: int | None
    evaluates_raw: bool
    save_freq: int
    save_freq_steps: int | None
    save_freq_minutes: float | None
    keep_checkpoints: int

    def is_due(self, epochs_done: int, every: int) -> bool:
        """Whether an action with a period of `every` epochs is due; it always is after the last epoch."""
        return epochs_done % every == 0 or epochs_done == self.num_epochs


@dataclass(frozen=True)
class Run:
    """A training run: its data, its state, its output, and its plan.

    Attributes:
        folder: of its files; None until all of its options, data and weights were checked.
        restarts_schedule: whether the schedule starts again where the run is resumed (TRAIN.RESTART_SCHEDULE).
        last_epoch: epochs that a fresh run skips (TRAIN.LAST_EPOCH).
        eval_files: those of the validation.
        options: the resolved options as YAML, for the checkpoint.
        description: the class names and the preprocessing, for the checkpoint and `classes.json`.
    """

    context: ProcessContext
    folder: Path | None
    logger: RunLogger
    batches: BatchSource
    bad_images: BadImageList
    val_batches: Loader
    num_val_samples: int
    eval_files: EvaluationFiles
    num_classes: int
    layout: EpochLayout
    state: TrainState
    compiles: bool
    reporter: Reporter
    plan: Plan
    timeout_seconds: float
    optimizer_name: str
    restarts_schedule: bool
    last_epoch: int
    options: str
    description: dict[str, Any]

    def in_folder(self, folder: Path) -> "Run":
        """This run with a folder for its files."""
        self.bad_images.open(folder)
        self.reporter.folder = folder
        return replace(self, folder=folder, eval_files=self.eval_files.in_run(folder))

    def new_progress(self, epoch: int) -> EpochProgress:
        """The start of an epoch."""
        sums = MetricSums(self.context.device)
        return EpochProgress(epoch, self.layout.steps_per_epoch, self.layout.batches_per_epoch, sums)
