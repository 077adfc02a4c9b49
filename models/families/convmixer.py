"""ConvMixer with the name of its activation."""

from typing import Any

from timm.models.convmixer import ConvMixer
from torch import nn


def convmixer(activation: str, **arguments: Any) -> nn.Module:
    """timm's ConvMixer; `activation` is a class of torch.nn."""
    return ConvMixer(act_layer=getattr(nn, activation), **arguments)
