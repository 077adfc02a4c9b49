"""The parts of a training run that benchmarks build: train state, trainer, batches, steps.

Benchmarks build these parts here and in no other file.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from configs.resolve import resolve
from configs.schema import Config
from datasets.batch import Batch
from engine.checkpoint.epoch_layout import EpochLayout
from engine.progress import EpochProgress
from engine.run.log import RunLogger
from engine.training.build import build_train_state
from engine.training.run import build_run
from engine.training.run_data import read_run_data
from engine.training.state import TrainState
from engine.training.step import train_steps
from engine.training.trainer import Trainer
from models.build import build_model
from utils.distributed import ProcessContext
from utils.metrics import MetricSums
from utils.status import RunStatus

ENDLESS = 10**6  # samples, batches or steps: more than any benchmark trains


def build_state(config: Config, context: ProcessContext) -> TrainState:
    """Model, optimizer and precision of a training run, without data set, log file or checkpoints."""
    config = resolve(config, None, context.world_size)
    layout = EpochLayout(ENDLESS, config.data.batch_size, config.train.accum_iter, config.seed)
    state, _ = build_train_state(config, context, layout)
    return state


def open_trainer(config: Config, context: ProcessContext, folder: Path) -> Trainer:
    """The trainer of a new run that writes its tables and checkpoints to `folder`, and logs to the console."""
    config, splits = read_run_data(config, context)
    run, position = build_run(config, splits, context, RunLogger(None, context), lambda _: folder)
    trainer = Trainer(run, RunStatus(folder, context.world_size), position)
    trainer.start()
    return trainer


def build_plain_model(config: Config) -> nn.Module:
    """The fp32 model on the CPU with random weights: to count its parameters and FLOPs."""
    options = config.with_model(pretrained=None)
    model, _ = build_model(options.model, options.data, torch.device("cpu"))
    return model


def new_progress(context: ProcessContext, steps: int = ENDLESS, batches: int = ENDLESS) -> EpochProgress:
    """The start of an epoch of `steps` optimizer steps and `batches` micro-batches."""
    return EpochProgress(0, steps, batches, MetricSums(context.device))


def training_loop(
    state: TrainState,
    batches: Iterator[Batch],
    progress: EpochProgress,
    after_step: Callable[[EpochProgress], None] = lambda _: None,
) -> Callable[[int], None]:
    """Returns a function that trains the given number of optimizer steps with the loop of a real run."""
    return lambda steps: train_steps(state, batches, progress, progress.done_steps + steps, after_step)


def ready_batches(config: Config, context: ProcessContext) -> list[Batch]:
    """Four batches of random uint8 images (B, C, S, S) and targets (B,) on the device."""
    data = config.data
    shape = (data.batch_size, data.image_channels, data.image_size, data.image_size)
    generator = torch.Generator().manual_seed(0)
    return [
        Batch(
            torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(context.device),
            torch.randint(0, config.model.num_logits, shape[:1], generator=generator).to(context.device),
            data.batch_size,
        )
        for _ in range(4)
    ]
