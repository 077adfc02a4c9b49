"""The learning rate: a pure function of the step."""

import math
from dataclasses import dataclass

from configs.schema import Train


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up from `start_lr` to `peak_lr`, then a cosine to `end_lr` (Loshchilov and Hutter, 2016).

    At the end of every epoch it equals PaddleViT's, which moves once per epoch.
    """

    peak_lr: float
    start_lr: float
    end_lr: float
    warmup_steps: float
    total_steps: int

    def lr_at(self, step: int) -> float:
        """The learning rate of the update number `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.start_lr + (self.peak_lr - self.start_lr) * step / self.warmup_steps
        cosine_steps = max(1, self.total_steps - self.warmup_steps)
        share = min(1.0, (step - self.warmup_steps) / cosine_steps)
        return self.end_lr + (self.peak_lr - self.end_lr) * (1 + math.cos(math.pi * share)) / 2


def build_schedule(options: Train, steps_per_epoch: int, global_batch_size: int) -> Schedule:
    factor = global_batch_size / options.linear_scaled_lr if options.linear_scaled_lr else 1.0
    return Schedule(
        peak_lr=options.base_lr * factor,
        start_lr=options.warmup_start_lr * factor,
        end_lr=options.end_lr * factor,
        warmup_steps=options.warmup_epochs * steps_per_epoch,
        total_steps=options.num_epochs * steps_per_epoch,
    )
