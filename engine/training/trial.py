"""A training on random images, without data set, log file or checkpoints: for trials of memory and for benchmarks."""

import torch

from configs.batch_plan import plan_batches
from configs.rules import Facts, resolve
from configs.schema import Config
from datasets.batch import Batch
from engine.checkpoint.epoch_layout import EpochLayout
from engine.training.build import build_train_state
from engine.training.state import TrainState
from utils.distributed import ProcessContext

_ENDLESS = 10**6  # samples: more than any trial trains


def build_state(config: Config, context: ProcessContext) -> TrainState:
    """Model, optimizer and precision of a training run, without data set, log file or checkpoints."""
    config = resolve(config, Facts(context.world_size))
    layout = EpochLayout(_ENDLESS, plan_batches(config, context.world_size), config.seed)
    state, _ = build_train_state(config, context, layout)
    return state


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
