"""The exponential moving average of the weights."""

import torch
from timm.utils import ModelEmaV3
from torch import nn


class WeightAverage(ModelEmaV3):
    """timm's average of all parameters and buffers of `model`. A skipped step does not change it."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, decay)
        values, averages = (module.state_dict(keep_vars=True).values() for module in (model, self.module))
        pairs = list(zip(averages, values, strict=True))
        self._averaged = _transposed([pair for pair in pairs if pair[0].is_floating_point()])
        self._copied = _transposed([pair for pair in pairs if not pair[0].is_floating_point()])

    @torch.no_grad()
    def update(self, skipped: torch.Tensor) -> None:
        """average += (1 - decay) * (model - average), unless `skipped`, a bool () on the device.

        On a GPU this allocates the size of the weights, as much as the gradients that were just freed.
        """
        weight = (1 - self.decay) * ~skipped
        averages, values = self._averaged
        if weight.device.type == "cpu":
            torch._foreach_lerp_(averages, values, [weight] * len(averages))
        else:
            # Three fused kernels: torch's fused lerp takes no weight from the device.
            differences = torch._foreach_sub(values, averages)
            torch._foreach_mul_(differences, weight)
            torch._foreach_add_(averages, differences)
        if self._copied:
            torch._foreach_copy_(*self._copied)


def _transposed(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[list[torch.Tensor]]:
    """A list of the first tensors and a list of the second ones; no list if there is no pair."""
    return list(map(list, zip(*pairs, strict=True)))
