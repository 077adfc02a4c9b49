"""Which kernels compute a model: attention (torch's fused kernels, or the explicit softmax(q k^T) v), the memory format
of convolutions, and dropout with fast mask generation on a CPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from timm.layers import Attention
from torch import nn

from utils.errors import UserError

AUTO, FUSED, EXPLICIT = "auto", "fused", "explicit"
_LEVELS = 2**16  # of a dropout rate


def attention_modules(model: nn.Module) -> list[Any]:
    """timm's attention modules: those with a switch for fused kernels."""
    return [module for module in model.modules() if hasattr(module, "fused_attn")]


def use_attention(model: nn.Module, kind: str) -> None:
    """Sets every attention module of timm's in `model` to a fused kernel, or to `EXPLICIT`."""
    for module in attention_modules(model):
        module.fused_attn = kind != EXPLICIT


def fuse_plain_attention(model: nn.Module) -> None:
    """Fused kernels, which have no dropout on a CPU, for timm's `Attention` without dropout.

    One attention module in float32 on a CPU thread then takes 0.65 to 0.99 times as long, in bfloat16 0.99 to 1.36.
    """
    for module in attention_modules(model):
        if type(module) is Attention and not module.attn_drop.p:
            use_attention(module, FUSED)


@contextmanager
def explicit_attention(model: nn.Module) -> Iterator[None]:
    """Explicit attention, whose maps can be read, inside the context."""
    fused = {module: module.fused_attn for module in attention_modules(model)}
    use_attention(model, EXPLICIT)
    try:
        yield
    finally:
        for module, was_fused in fused.items():
            module.fused_attn = was_fused


def select_attention(model: nn.Module, option: str, device: torch.device) -> None:
    """Applies `MODEL.ATTENTION`. `auto` is explicit attention on a CPU, but for `fuse_plain_attention`, and timm's
    default (fused) on a GPU.

    On two CPU cores the fused kernels take 1.0 (fp32) to 3 times (bf16) as long as explicit attention for ViT's shapes.
    """
    if option != AUTO:
        use_attention(model, option)
    elif device.type == "cpu":
        use_attention(model, EXPLICIT)


def prepare_convolutions(model: nn.Module, channels_last: Literal["auto"] | bool, is_fixed: bool = False) -> None:
    """Applies `MODEL.CHANNELS_LAST` to `model`.

    Only the weights are converted: the first convolution converts the images, and later ones keep their format. Models
    with one convolution, the patch embedding, are left as they are.
    Raises UserError: `channels_last` is True, and the memory format of the weights `is_fixed`: sharded ones, or O3.
    """
    if is_fixed and channels_last is True:
        raise UserError("MODEL.CHANNELS_LAST true: not with sharded weights or AMP.LEVEL O3; use auto")
    if channels_last == "auto":
        is_convolutional = sum(isinstance(module, nn.Conv2d) for module in model.modules()) > 1
        channels_last = is_convolutional and not is_fixed
    if channels_last:
        model.to(memory_format=torch.channels_last)


class FastDropout(nn.Dropout):
    """Dropout from 16 random bits per element, drawn from torch's global generator.

    torch draws one floating-point number per element: its forward and backward pass take 2.3 (bf16) to 2.6 times (fp32)
    as long. The rate is rounded to a multiple of 2^-16. The kept elements are scaled by that rounded rate.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped_levels = round(self.p * _LEVELS)
        if not self.training or not 0 < dropped_levels < _LEVELS:
            return super().forward(x)
        return x * _random_mask(x.detach(), dropped_levels)


@torch.library.custom_op("ampvit::random_mask", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _random_mask(x: torch.Tensor, dropped_levels: int) -> torch.Tensor:
    """A mask of x's shape and dtype: 0 with probability dropped_levels / 2^16, else the factor that keeps the mean.

    It is a custom op because torch.compile generates scalar loops for 16-bit integers.
    """
    size = x.numel()
    four_per_draw = torch.empty(-(-size // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    kept = four_per_draw.view(torch.int16)[:size].view(x.shape) >= dropped_levels - _LEVELS // 2
    return kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped_levels))


@_random_mask.register_fake
def _(x: torch.Tensor, dropped_levels: int) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def use_fast_dropout(model: nn.Module) -> None:
    """Replaces every `nn.Dropout` of the model; subclasses stay."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, FastDropout(child.p))
