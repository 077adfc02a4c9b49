"""The memory format of convolutional models."""

from typing import Literal

import torch
from torch import nn

from utils.errors import UserError


def prepare_convolutions(
    model: nn.Module, channels_last: Literal["auto"] | bool, device: torch.device, is_fixed: bool = False
) -> list[str]:
    """Applies `MODEL.CHANNELS_LAST` to `model` on its device; returns a line for the log if something was set.

    Only the weights are converted: the first convolution converts the images, and later ones keep their format. Models
    with one convolution, the patch embedding, are left as they are.

    Raises:
        UserError: `channels_last` is True, and the memory format of the weights `is_fixed`: sharded ones, or O3.
    """
    if is_fixed and channels_last is True:
        raise UserError("MODEL.CHANNELS_LAST true: not with sharded weights or AMP.LEVEL O3; use auto")
    if channels_last == "auto":
        is_convolutional = sum(isinstance(module, nn.Conv2d) for module in model.modules()) > 1
        channels_last = is_convolutional and device.type == "cuda" and not is_fixed
    if not channels_last:
        return []
    model.to(memory_format=torch.channels_last)
    return ["Convolutions: channels last (MODEL.CHANNELS_LAST)"]
