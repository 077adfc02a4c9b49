"""PoolFormer as in PaddleViT."""

from typing import Any

import torch
from timm.layers import GroupNorm1
from timm.models.metaformer import MetaFormer
from torch import nn


class _NormThenPool(GroupNorm1):
    """(B, C, H, W) -> (B, C): a norm over channels and pixels, then the mean over the pixels."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images).mean((2, 3))


def poolformer(**arguments: Any) -> nn.Module:
    """timm's PoolFormer, whose head normalizes before it pools."""
    return MetaFormer(
        global_pool="",
        output_norm=_NormThenPool,
        downsample_norm=None,
        norm_layers=GroupNorm1,
        mlp_act=nn.GELU,
        mlp_bias=True,
        res_scale_init_values=(None,) * 4,
        use_mlp_head=False,
        **arguments,
    )
