"""Norms of half inputs: in half where the kernels sum the gradients of their weights in fp32, else in fp32."""

from collections.abc import Collection
from typing import Any

import torch
from timm.layers import RmsNorm, RmsNorm2d, SimpleNorm, SimpleNorm2d
from torch import nn

from models.mixin import with_mixin
from utils.torch_compat import BatchNorm

_ONE_KERNEL = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, RmsNorm)  # on a GPU; its statistics are in fp32
_SEVERAL_KERNELS = (RmsNorm2d, SimpleNorm, SimpleNorm2d)


class _CastingNorm(nn.Module):
    """A mix-in for the class of a norm: it computes in `norm_dtype`, and returns the dtype of its input."""

    norm_dtype: torch.dtype
    device_type: str  # also of the copy on the meta device, which has no autocast

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.autocast(self.device_type, enabled=False):
            result: torch.Tensor = super().forward(x.to(self.norm_dtype), *args, **kwargs)
            return result.to(x.dtype)


def set_norm_dtypes(model: nn.Module, half: torch.dtype, device: torch.device, listed: Collection[nn.Module]) -> None:
    """Sets the dtype of all norms but batch norms and `listed` ones, whose dtype the user has chosen.

    On a CPU torch sums the gradients of the weights in the dtype of the input: in bf16 they are up to 87% wrong.
    """
    for module in model.modules():
        if isinstance(module, (*_ONE_KERNEL, *_SEVERAL_KERNELS)) and module not in listed:
            in_half = device.type == "cuda" and isinstance(module, _ONE_KERNEL)
            norm: Any = module
            norm.__class__ = with_mixin(_CastingNorm, type(norm))  # type: ignore[arg-type]  # a class is hashable
            norm.norm_dtype, norm.device_type = half if in_half else torch.float32, device.type


def keeps_fp32_weights(module: nn.Module) -> bool:
    """Returns whether the weights of the module are in fp32 although the model's are in half."""
    norms = (*_ONE_KERNEL, *_SEVERAL_KERNELS, BatchNorm)
    return isinstance(module, norms) and getattr(module, "norm_dtype", torch.float32) == torch.float32
