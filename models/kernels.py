"""Which kernels compute a model: attention (torch's fused kernels, or the explicit softmax(q k^T) v), the memory format
of convolutions, folded batch norms, tokens that nothing reads, and dropout with fast mask generation on a CPU.
"""

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.fusion import fuse_conv_bn_eval

from utils.errors import UserError

AUTO, FUSED, EXPLICIT = "auto", "fused", "explicit"
_LEVELS = 2**16  # of a dropout rate
_GROUP = 256  # elements whose bytes are compared with one level


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


def fold_batch_norms(model: nn.Module, images: Tensor) -> nn.Module:
    """A copy of `model` for evaluations, whose convolutions contain the batch norms of their outputs.

    images: (B, C, S, S), whose pass shows these pairs. Returns the model itself if it has no batch norm, or if the
    logits of the copy differ by 1e-4 of the largest one: another layer reads an output, too.
    """
    if not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()):
        return model
    folded = copy.deepcopy(model)
    source = {}
    pairs: list[Any] = []

    def record(layer: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(layer, nn.Conv2d):
            source[output] = layer
        if isinstance(layer, nn.BatchNorm2d) and inputs[0] in source:
            pairs.append((source[inputs[0]], layer))

    with torch.no_grad():
        with register_module_forward_hook(record):
            logits = folded(images)
        for convolution, norm in pairs:
            fused = fuse_conv_bn_eval(convolution, norm)
            convolution.weight, convolution.bias = fused.weight, fused.bias
            norm.forward = nn.Sequential(*norm.children()).forward  # timm's have their activation
        difference = (folded(images) - logits).abs().max()
    return folded if difference <= 1e-4 * logits.abs().max() else model


def skip_unread_tokens(model: nn.Module) -> None:
    """Lets the last block of timm's ViT compute its projection and its MLP for the class token alone, if that is read.

    The block adds their one row to all tokens.
    """
    if type(model) is VisionTransformer and getattr(model, "pooled_tokens", model.global_pool) == "token":
        last = model.blocks[-1]
        if isinstance(last, Block):
            layers: tuple[Any, ...] = (last.attn.proj, last.mlp)
            for layer in layers:
                layer.register_forward_pre_hook(lambda layer, inputs: inputs[0][:, :1])


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
