"""Dropout with fast mask generation on a CPU; drop path (stochastic depth) that does not compute the dropped samples,
as DINOv2 does (Oquab et al., 2023).

Legend: B samples, K samples kept, N tokens, C channels of a token.
"""

from collections.abc import Callable
from typing import Any

import torch
from timm.layers import DropPath
from timm.models.vision_transformer import Block
from torch import nn

_LEVELS = 2**16


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


MIN_RATE = 0.1  # below this rate the saved computation is small, and timm's mask follows the rate exactly
# Computed, not measured: with ViT-B in O1, copying the kept samples takes longer than the products that it saves below
# a rate of 0.15, at 620 TFLOP/s and 4 TB/s. The margin is for the atomic additions, and for compiled masks.
MIN_RATE_ON_GPU = 0.2
_MIN_DROPPED = 2  # samples: with fewer, the dropped share of a batch is far from the rate


def num_kept_samples(batch_size: int, rate: float, on_gpu: bool = False) -> int | None:
    """K, the integer nearest to B (1 - rate); None if timm's drop-path, a mask over all samples, is to be used."""
    dropped = round(batch_size * rate)
    min_rate = MIN_RATE_ON_GPU if on_gpu else MIN_RATE
    return batch_size - dropped if rate >= min_rate and _MIN_DROPPED <= dropped < batch_size else None


def add_residual(x: torch.Tensor, branch: Callable[[torch.Tensor], torch.Tensor], kept: int) -> torch.Tensor:
    """x (B, N, C) + B / K * branch(x) for K random samples, each equally likely; the other samples stay unchanged."""
    chosen = torch.rand(len(x), device=x.device).argsort()[:kept]
    residual = branch(x.index_select(0, chosen))
    dtype = torch.promote_types(x.dtype, residual.dtype)
    return x.to(dtype).index_add(0, chosen, residual.to(dtype), alpha=len(x) / kept)


class SampleDropBlock(Block):
    """timm's transformer block. In training each branch drops a fixed number of samples and does not compute them.

    This is the drop-path of DINOv2 (Oquab et al., 2023). A block with a rate below 0.1, on a GPU 0.2, keeps timm's
    DropPath. On two cores, ViT-Tiny at batch 32 in bf16, a block is 1.2 times as fast as timm's at rate 0.2 and 1.6
    times at 0.4.
    """

    def forward(  # type: ignore[override]  # other versions of timm have other arguments
        self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, **attention: Any
    ) -> torch.Tensor:
        drop_path = self.drop_path1
        kept = None
        if self.training and isinstance(drop_path, DropPath):
            kept = num_kept_samples(len(x), drop_path.drop_prob, x.is_cuda)
        if kept is None or attn_mask is not None:
            return super().forward(x, attn_mask, **attention)
        x = add_residual(x, lambda part: self.ls1(self.attn(self.norm1(part), **attention)), kept)
        return add_residual(x, lambda part: self.ls2(self.mlp(self.norm2(part))), kept)
