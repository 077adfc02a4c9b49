"""Which kernels compute a model: attention (torch's fused kernels, or the explicit softmax(q k^T) v), the memory format
of convolutions, and dropout with fast mask generation on a CPU.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from timm.layers import Attention
from torch import Tensor, nn

AUTO = "auto"
FUSED = "fused"
EXPLICIT = "explicit"
_LEVELS = 2**16  # of a dropout rate
_GROUP = 256  # elements whose bytes are compared with one level


def attention_modules(model: nn.Module) -> list[Any]:
    """timm's attention modules: those with a switch for fused kernels."""
    return [module for module in model.modules() if hasattr(module, "fused_attn")]


def use_attention(model: nn.Module, kind: str) -> None:
    """Sets every attention module of timm's in `model` to a fused kernel, or to `EXPLICIT`."""
    for module in attention_modules(model):
        module.fused_attn = kind != EXPLICIT


def plain_attention(model: nn.Module) -> list[Attention]:
    """timm's plain attention modules that are explicit.

    Fused, one of them in float32 on a CPU thread takes 0.65 to 0.99 times as long, in bfloat16 0.99 to 1.36.
    """
    return [module for module in attention_modules(model) if type(module) is Attention and not module.fused_attn]


def fuse_plain_attention(model: nn.Module) -> None:
    """Fuses plain attention for a training, but for modules with dropout, which fused kernels of a CPU lack."""
    for module in plain_attention(model):
        if isinstance(module.attn_drop, nn.Dropout) and not module.attn_drop.p:
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


def is_convolutional(model: nn.Module) -> bool:
    """Whether there is a convolution beside the patch embedding."""
    return sum(isinstance(module, nn.Conv2d) for module in model.modules()) > 1


def to_channels_last(model: nn.Module) -> Callable[[], None]:
    """Converts the weights of all `nn.Conv2d`, and no other tensor, to the NHWC memory format; returns the undo.

    The first convolution converts the images, and later ones keep their format.
    """
    before = [
        (weight, weight.data)
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
        for weight in module.parameters(recurse=False)
        if weight.ndim == 4
    ]
    for weight, data in before:
        weight.data = data.contiguous(memory_format=torch.channels_last)

    def undo() -> None:
        for weight, data in before:
            weight.data = data

    return undo


class FastDropout(nn.Dropout):
    """Dropout from 8 random bits per element, drawn from torch's global generator.

    torch draws one floating-point number per element. The rate is rounded to a multiple of 2^-16. The kept elements are
    scaled by that rounded rate.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped_levels = round(self.p * _LEVELS)
        if not self.training or not 0 < dropped_levels <= 255 * 256:
            return super().forward(x)
        if torch.compiler.is_compiling() or x.is_meta:
            return x * _random_mask_op(x.detach(), dropped_levels)
        return x * _random_mask(x, dropped_levels)  # an op of Python takes as long as the mask of a small tensor


def _random_mask(x: Tensor, dropped_levels: int) -> Tensor:
    """A mask of x's shape and dtype: 0 with probability dropped_levels / 2^16, else the factor that keeps the mean.

    An element is dropped if its byte is below a level of 256. So that the rate is exact, the level is one higher for
    some groups of elements, which a byte of each group decides. numpy compares bytes and widens bools several times as
    fast as torch.
    """
    groups = -(-x.numel() // _GROUP)
    words = torch.empty(groups * (_GROUP // 8 + 1), dtype=torch.int64).random_(-(2**63), None)
    drawn = words.numpy().view(np.uint8).reshape(groups, _GROUP + 8)
    level, remainder = divmod(dropped_levels, 256)
    levels = np.uint8(level) + (drawn[:, :1] < remainder)
    kept = (drawn[:, 8:] >= levels).ravel()[: x.numel()]
    return torch.from_numpy(kept * _factor_bits(dropped_levels, x.dtype)).view(x.dtype).view(x.shape)


@functools.cache
def _factor_bits(dropped_levels: int, dtype: torch.dtype) -> Any:
    """The factor of the kept elements, as an array () of integers of the same size: numpy has no bfloat16."""
    factor = torch.tensor(_LEVELS / (_LEVELS - dropped_levels), dtype=dtype)
    return factor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]).numpy()


# torch.compile cannot read the numpy code.
_random_mask_op = torch.library.custom_op(
    "ampvit::random_mask", _random_mask, mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)


@_random_mask_op.register_fake
def _(x: Tensor, dropped_levels: int) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def use_fast_dropout(model: nn.Module) -> None:
    """Replaces every `nn.Dropout` of the model; subclasses stay."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, FastDropout(child.p))
