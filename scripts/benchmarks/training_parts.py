"""A bare training loop for benchmarks to compare with."""

from collections.abc import Callable
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import nn

from configs.schema import Train
from datasets.batch import Batch
from datasets.transforms.device import build_eval_transform
from engine.training.optimization.optimizer import build_optimizer, set_lr
from engine.training.state import TrainState


def bare_loop(state: TrainState, options: Train, batches: list[Batch]) -> Callable[[int], None]:
    """A plain training loop on float32 batches that are normalized in advance."""
    precision, model = state.precision, state.precision.weights.master
    optimizer = build_optimizer(model, options, state.schedule.peak_lr)
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
