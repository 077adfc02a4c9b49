"""Gradient checkpointing: activations are recomputed in the backward pass (Chen et al., 2016)."""

from typing import Any

import torch
from torch import nn

from models.mixin import with_mixin
from utils.errors import UserError
from utils.torch_compat import BatchNorm, in_backward_pass


def enable_grad_checkpointing(model: nn.Module, name: str) -> None:
    """Stores only the inputs of the blocks of a timm model. The backward pass recomputes all other activations.

    The recomputation uses the same random numbers and dtypes, so the gradients are bit-identical. torch.compile
    supports it; with batch norm a compiled model saves little memory.

    Raises:
        UserError: timm does not support it for this model.
    """
    timm_model: Any = model
    try:
        timm_model.set_grad_checkpointing(True)
    except (AttributeError, AssertionError):  # no such method, or a method that refuses
        raise UserError(
            f"MODEL.GRAD_CHECKPOINTING: timm does not support it for {name}; set it to false, lower -batch_size"
        ) from None
    for module in model.modules():
        if isinstance(module, BatchNorm) and module.track_running_stats:
            norm: Any = module
            norm.__class__ = with_mixin(_KeepStatistics, type(norm))  # type: ignore[arg-type]  # a class is hashable


class _KeepStatistics(nn.Module):
    """Mix-in of a batch norm: the recomputation does not update the running statistics a second time."""

    def forward(self, *args: Any) -> torch.Tensor:
        if torch.compiler.is_compiling() or not in_backward_pass():
            return super().forward(*args)
        statistics = dict(self.named_buffers(recurse=False))
        try:
            for name, buffer in statistics.items():
                setattr(self, name, buffer.clone())
            return super().forward(*args)
        finally:  # torch ends a recomputation early, by an exception
            for name, buffer in statistics.items():
                setattr(self, name, buffer)
