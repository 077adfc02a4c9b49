"""The exponential moving average of the weights."""

import torch
from timm.utils import ModelEmaV3
from torch import nn

from configs.schema import Train
from models.blocks import local_tensor
from utils.torch_compat import fused_lerp_


class WeightAverage(ModelEmaV3):
    """timm's average of all parameters and buffers of `model`. A skipped step does not change it.

    With `use_warmup`, timm's `get_decay` gives the decay, a function of the step.
    """

    def __init__(self, model: nn.Module, decay: float, use_warmup: bool = False) -> None:
        super().__init__(model, decay, use_warmup=use_warmup)
        self.follow(model)

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Averages the tensors that `model` has now. If both models are sharded, each rank averages its part."""
        values, averages = (module.state_dict(keep_vars=True).values() for module in (model, self.module))
        # A tensor that a model uses under several names is averaged once.
        unique = {id(average): (average, value) for average, value in zip(averages, values, strict=True)}.values()
        pairs = [(local_tensor(average), local_tensor(value)) for average, value in unique]
        self._averaged = _transposed([pair for pair in pairs if pair[0].is_floating_point()])
        self._copied = _transposed([pair for pair in pairs if not pair[0].is_floating_point()])
        self._update_weight = 1 - self.decay

    def set_step(self, step: int) -> None:
        """Sets the optimizer step of the next update, counted from 0."""
        if self.use_warmup:
            self._update_weight = 1 - self.get_decay(step + 1)  # timm counts from 1

    @torch.no_grad()
    def update(self, skipped: torch.Tensor) -> None:  # type: ignore[override]  # the model is known to `follow`
        """average += (1 - decay) * (model - average), unless `skipped`, a bool () on the device."""
        averages, values = self._averaged
        if skipped.device.type == "cpu":
            torch._foreach_lerp_(averages, values, [self._update_weight * ~skipped] * len(averages))
        else:
            fused_lerp_(averages, values, self._update_weight, skipped)
        if self._copied:
            targets, values = self._copied
            torch._foreach_copy_(targets, values)


def build_average(model: nn.Module, options: Train) -> WeightAverage | None:
    """The average of `TRAIN.MODEL_EMA`; None if it is off."""
    if not options.model_ema:
        return None
    return WeightAverage(model, options.model_ema_decay, options.model_ema_warmup)


def describe_average(options: Train) -> str:
    """The rule of the decay, for the log."""
    rule = "1 - step^(-2/3), timm's warm-up, up to" if options.model_ema_warmup else "without warm-up, always"
    return f"Average of the weights (TRAIN.MODEL_EMA): decay {rule} {options.model_ema_decay:g}"


def average_warning(options: Train, total_steps: int) -> str | None:
    """One line if the initial weights make up more than a tenth of the average at the end of the run."""
    initial = options.model_ema_decay**total_steps
    if not options.model_ema or options.model_ema_warmup or initial < 0.1:
        return None
    return (
        f"TRAIN.MODEL_EMA_DECAY {options.model_ema_decay:g} is slow for {total_steps} steps: the initial weights are "
        f"{initial:.0%} of the last average; set TRAIN.MODEL_EMA_WARMUP=true or lower the decay"
    )


def _transposed(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Pairs of tensors as two lists; empty if there are none."""
    return list(map(list, zip(*pairs, strict=True)))
