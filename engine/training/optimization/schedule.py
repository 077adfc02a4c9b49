"""The learning rate: a pure function of the step."""

import math
from dataclasses import dataclass

from configs.schema import Train

_EPOCHS_PER_REDUCTION = 30  # timm's default
_WSD_DECAY_SHARE = 1 / 5  # of NUM_EPOCHS


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up from `start_lr` to `peak_lr`, then the decay `name`.

    cosine: to `end_lr` (Loshchilov and Hutter, 2016). linear: to `end_lr`. step: multiplied by `decay_rate` every
    `decay_steps`, counted from the start of the warm-up as in timm's train.py, not below `end_lr`. wsd: constant, then
    linear to `end_lr` in the last `decay_steps` (Zhai et al., 2021: cooldown; Hu et al., 2024: warm-up, stable, decay).
    Without `warmup_prefix` the warm-up replaces the start of the decay.

    At the end of every epoch the cosine equals PaddleViT's, and the step decay timm's, which change once per epoch.
    """

    peak_lr: float
    start_lr: float
    end_lr: float
    warmup_steps: float
    total_steps: int
    name: str = "cosine"
    decay_steps: float = math.inf
    decay_rate: float = 1.0
    warmup_prefix: bool = True

    def lr_at(self, step: int) -> float:
        """The learning rate of optimizer step `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.start_lr + (self.peak_lr - self.start_lr) * step / self.warmup_steps
        decay_start = self.warmup_steps if self.warmup_prefix else 0
        if self.name == "step":
            reductions = (step - decay_start) // self.decay_steps
            return max(self.end_lr, self.peak_lr * math.pow(self.decay_rate, reductions))
        if self.name == "wsd":
            decay_start = max(decay_start, self.total_steps - self.decay_steps)
        share = min(1.0, max(0.0, step - decay_start) / max(1, self.total_steps - decay_start))
        left = (1 + math.cos(math.pi * share)) / 2 if self.name == "cosine" else 1 - share
        return self.end_lr + (self.peak_lr - self.end_lr) * left


def build_schedule(options: Train, steps_per_epoch: int, images_per_step: int) -> Schedule:
    factor = _lr_factor(options, images_per_step)
    decay = options.lr_scheduler
    default_epochs = _EPOCHS_PER_REDUCTION if decay.name == "step" else options.num_epochs * _WSD_DECAY_SHARE
    return Schedule(
        peak_lr=options.base_lr * factor,
        start_lr=options.warmup_start_lr * factor,
        end_lr=options.end_lr * factor,
        warmup_steps=options.warmup_epochs * steps_per_epoch,
        total_steps=options.num_epochs * steps_per_epoch,
        name=decay.name,
        decay_steps=(decay.decay_epochs or default_epochs) * steps_per_epoch,
        decay_rate=decay.decay_rate,
        warmup_prefix=decay.name != "step" if decay.warmup_prefix is None else decay.warmup_prefix,
    )


def _lr_factor(options: Train, images_per_step: int) -> float:
    """Linear scaling (Goyal et al., 2017), square-root scaling (Krizhevsky, 2014; Malladi et al., 2022, for Adam)."""
    if options.sqrt_scaled_lr:
        return math.sqrt(images_per_step / options.sqrt_scaled_lr)
    return images_per_step / options.linear_scaled_lr if options.linear_scaled_lr else 1.0


def lr_warning(options: Train, images_per_step: int) -> str | None:
    """One line if BASE_LR was tuned for another global batch size and is not scaled to this run's.

    It names the rule that fits the optimizer, as timm's train.py chooses it: the linear one is for SGD.
    """
    tuned_for = options.base_lr_batch_size
    if tuned_for in (None, images_per_step) or options.linear_scaled_lr or options.sqrt_scaled_lr:
        return None
    rule = "linear_scaled_lr" if options.optimizer.name.lower().startswith(("sgd", "lars")) else "sqrt_scaled_lr"
    peak = options.base_lr * _lr_factor(options.model_copy(update={rule: tuned_for}), images_per_step)
    return (
        f"BASE_LR {options.base_lr:g} is tuned for a global batch of {tuned_for}; this run has {images_per_step}: "
        f"set TRAIN.{rule.upper()}={tuned_for}, which makes it {peak:.3g}"
    )


def schedule_warnings(options: Train) -> list[str]:
    """A line for a warm-up longer than half of the run, and for a rate that rises after the warm-up."""
    long = f"TRAIN.WARMUP_EPOCHS {options.warmup_epochs:g} exceeds half of NUM_EPOCHS {options.num_epochs}; lower it"
    rising = f"TRAIN.END_LR {options.end_lr:g} exceeds BASE_LR {options.base_lr:g}, so the rate rises; lower it"
    return [long] * (options.warmup_epochs > options.num_epochs / 2) + [rising] * (options.end_lr > options.base_lr)
