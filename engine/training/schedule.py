"""The learning rate: a pure function of the step, and of the step at which a resumed run restarted its schedule."""

import math
from dataclasses import dataclass

from configs.schema import Train
from utils.errors import UserError

RESTART_SCHEDULE = "TRAIN.RESTART_SCHEDULE"
SCHEDULE_OPTIONS = {RESTART_SCHEDULE} | {
    f"TRAIN.{key}"
    for key in ("NUM_EPOCHS", "WARMUP_EPOCHS", "BASE_LR", "WARMUP_START_LR", "END_LR", "LINEAR_SCALED_LR")
}


@dataclass
class Schedule:
    """Linear warm-up from `start_lr` to `peak_lr`, then cosine decay to `end_lr` (Loshchilov and Hutter, 2016).

    `total_steps` are those of the run. The warm-up starts at `start_step`, which is 0 unless a resumed run restarted.

    At the end of every epoch it equals PaddleViT's schedule, which changes once per epoch.
    """

    peak_lr: float
    start_lr: float
    end_lr: float
    warmup_steps: float
    total_steps: int
    start_step: int = 0

    def lr_at(self, step: int) -> float:
        """The learning rate of optimizer step `step`, counted from 0."""
        step -= self.start_step
        if step < self.warmup_steps:
            return self.start_lr + (self.peak_lr - self.start_lr) * step / self.warmup_steps
        cosine_steps = max(1, self.total_steps - self.start_step - self.warmup_steps)
        share = min(1.0, (step - self.warmup_steps) / cosine_steps)
        return self.end_lr + (self.peak_lr - self.end_lr) * (1 + math.cos(math.pi * share)) / 2

    def restart(self, step: int) -> None:
        """Starts the warm-up at `step`.

        Raises:
            UserError: the warm-up does not end before the last step.
        """
        left = self.total_steps - step
        if self.warmup_steps >= left:
            raise UserError(
                f"{RESTART_SCHEDULE}: {left} steps are left, but the warm-up takes {self.warmup_steps:g}; "
                "raise -epochs or lower TRAIN.WARMUP_EPOCHS"
            )
        self.start_step = step


def build_schedule(options: Train, steps_per_epoch: int, global_batch_size: int) -> Schedule:
    factor = global_batch_size / options.linear_scaled_lr if options.linear_scaled_lr else 1.0
    return Schedule(
        peak_lr=options.base_lr * factor,
        start_lr=options.warmup_start_lr * factor,
        end_lr=options.end_lr * factor,
        warmup_steps=options.warmup_epochs * steps_per_epoch,
        total_steps=options.num_epochs * steps_per_epoch,
    )


def lr_warning(options: Train, global_batch_size: int) -> str | None:
    """One line if BASE_LR was tuned for another global batch size and is not scaled to this run's."""
    tuned_for = options.base_lr_batch_size
    if tuned_for is None or options.linear_scaled_lr or global_batch_size == tuned_for:
        return None
    return (
        f"BASE_LR {options.base_lr:g} is tuned for a global batch of {tuned_for}; this run has {global_batch_size}: "
        f"set TRAIN.LINEAR_SCALED_LR={tuned_for}"
    )
