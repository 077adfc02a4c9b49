"""HaloNet of any width and depth, from timm's blocks."""

from typing import Any

from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg
from torch import nn


def halonet(
    stages: tuple[tuple[str, ...], ...],
    widths: tuple[int, ...],
    strides: tuple[int, ...],
    num_heads: tuple[int, ...],
    block_size: int,
    halo_size: int,
    activation: str,
    **arguments: Any,
) -> nn.Module:
    """A HaloNet; `stages` are the blocks of each stage, "bottle" or "attn"; the other lists have a value per stage."""

    def block(kind: str, stage: int, is_first: bool) -> ByoBlockCfg:
        shape: dict[str, Any] = {
            "d": 1,
            "c": widths[stage],
            "s": strides[stage] if is_first else 1,
            "gs": 0,
            "br": 0.25,
        }
        if kind == "bottle":
            return ByoBlockCfg(type="bottle", **shape)
        attention = {"block_size": block_size, "halo_size": halo_size, "num_heads": num_heads[stage]}
        return ByoBlockCfg(type="self_attn", self_attn_layer="halo", self_attn_kwargs=attention, **shape)

    blocks = tuple(
        tuple(block(kind, stage, is_first=index == 0) for index, kind in enumerate(kinds))
        for stage, kinds in enumerate(stages)
    )
    # timm's tiered stem of 64 channels is PaddleViT's: 24, 32, 64.
    config = ByoModelCfg(blocks, stem_chs=64, stem_type="tiered", stem_pool="maxpool", act_layer=activation)
    return ByobNet(config, **arguments)
