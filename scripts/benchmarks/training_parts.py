"""The parts of a training run that benchmarks build: train state, batches, steps, and a bare loop to compare with."""

from collections.abc import Callable
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import nn

from configs.resolve import resolve
from configs.schema import Config, Train
from datasets.batch import Batch
from datasets.transforms.device import build_eval_transform
from engine.checkpoint.epoch_layout import EpochLayout
from engine.training.build import build_train_state
from engine.training.optimization.optimizer import build_optimizer, set_lr
from engine.training.state import TrainState
from utils.distributed import ProcessContext

ENDLESS = 10**6  # samples, batches or steps: more than any benchmark trains


def build_state(config: Config, context: ProcessContext) -> TrainState:
    """Model, optimizer and precision of a training run, without data set, log file or checkpoints."""
    config = resolve(config, None, context.world_size)
    layout = EpochLayout(ENDLESS, config.data.batch_size, config.train.accum_iter, config.seed)
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


def bare_loop(state: TrainState, options: Train, batches: list[Batch]) -> Callable[[int], None]:
    """A plain training loop on float32 batches that are normalized in advance."""
    precision, model = state.precision, state.precision.weights.master
    optimizer = build_optimizer(model, options)
    scaler = torch.amp.GradScaler(precision.device.type, enabled=precision.dtype == torch.float16)
    transform = build_eval_transform(state.config.data).to(precision.device)
    stream = cycle([(transform(batch.images), batch.targets) for batch in batches])
    steps_done = 0

    def run(steps: int) -> None:
        nonlocal steps_done
        model.train()
        for _ in range(steps):
            images, targets = next(stream)
            set_lr(optimizer, state.schedule.lr_at(steps_done))
            with precision.autocast():
                loss = F.cross_entropy(model(images), targets, label_smoothing=options.smoothing)
            scaler.scale(loss).backward()
            if options.grad_clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), options.grad_clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            steps_done += 1

    return run
