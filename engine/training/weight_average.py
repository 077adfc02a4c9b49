"""The exponential moving average of the weights."""

import torch
from timm.utils import ModelEmaV3
from torch import nn


class WeightAverage(ModelEmaV3):
    """timm's average of all parameters and buffers. A skipped step does not change it."""

    @torch.no_grad()
    def update(self, model: nn.Module, skipped: torch.Tensor) -> None:
        """average += (1 - decay) * (model - average), unless `skipped` (), decided on the device, is 1.

        On a GPU this allocates the size of the weights, as much as the gradients that were just freed.
        """
        weight = (1 - self.decay) * (1 - skipped)
        averages, values = [], []
        for average, value in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            if average.is_floating_point():
                averages.append(average)
                values.append(value)
            else:
                average.copy_(value)
        if weight.is_cuda:
            # Three fused kernels: torch's fused lerp takes no weight from the device.
            differences = torch._foreach_sub(values, averages)
            torch._foreach_mul_(differences, weight)
            torch._foreach_add_(averages, differences)
        else:
            torch._foreach_lerp_(averages, values, [weight] * len(averages))
