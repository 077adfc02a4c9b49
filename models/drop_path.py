"""Stochastic depth that spares the work: a block computes the samples it keeps, and only those.

Legend: B samples, of which K are kept, N tokens, C width of a token.
"""

from collections.abc import Callable
from typing import Any

import torch
from timm.layers import DropPath
from timm.models.vision_transformer import Block

_FEWEST = 2  # samples left out: with fewer the share of B that is left out would be far from the rate


def num_kept_samples(batch_size: int, rate: float) -> int | None:
    """K, the number nearest to B (1 - rate); None where a mask over all samples keeps to the rate much better."""
    left_out = round(batch_size * rate)
    return batch_size - left_out if _FEWEST <= left_out < batch_size else None


def add_residual(x: torch.Tensor, branch: Callable[[torch.Tensor], torch.Tensor], kept: int) -> torch.Tensor:
    """x (B, N, C) + B / K * branch(x) on K samples chosen by chance, each alike; the others go on as they are."""
    chosen = torch.rand(len(x), device=x.device).argsort()[:kept]
    residual = branch(x.index_select(0, chosen))
    dtype = torch.promote_types(x.dtype, residual.dtype)
    return x.to(dtype).index_add(0, chosen, residual.to(dtype), alpha=len(x) / kept)


class SampleDropBlock(Block):
    """timm's block; in training its drop-path leaves a fixed number of samples out of each branch (as DINOv2 does).

    On two cores, ViT-Tiny at batch 32 in bf16: a block is 1.07 times as fast with two of 32 samples left out (timm's
    mask is passes over memory, too), 1.2 times at rate 0.2 and 1.6 times at 0.4.
    """

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, **attention: Any) -> torch.Tensor:
        dropping = self.training and isinstance(self.drop_path1, DropPath)
        kept = num_kept_samples(len(x), self.drop_path1.drop_prob) if dropping else None
        if kept is None or attn_mask is not None:
            return super().forward(x, attn_mask, **attention)
        x = add_residual(x, lambda part: self.ls1(self.attn(self.norm1(part), **attention)), kept)
        return add_residual(x, lambda part: self.ls2(self.mlp(self.norm2(part))), kept)
