"""MobileOne of any width and depth, from timm's blocks."""

from typing import Any

from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg
from torch import nn

_SE_RATIO = 1 / 16


def mobileone(
    depths: tuple[int, ...],
    widths: tuple[int, ...],
    strides: tuple[int, ...],
    num_branches: tuple[int, ...],
    use_se: bool,
    **arguments: Any,
) -> nn.Module:
    """A MobileOne; the lists have an entry per stage, the first of which is the stem.

    As in the authors' code, `use_se` adds squeeze and excitation to the last stage and the second half of the fourth.
    """
    previous = widths[0]
    stages = []
    for stage in range(1, len(depths)):
        blocks = []
        for block in range(depths[stage]):
            has_se = use_se and (stage == 4 or (stage == 3 and block >= depths[3] // 2))
            stride, branches = strides[stage] if block == 0 else 1, num_branches[stage]
            blocks.append(_block(previous, stride, has_se, gs=1, num_conv_branches=branches))
            blocks.append(_block(widths[stage], 1, has_se, gs=0, num_conv_branches=branches, kernel_size=1))
            previous = widths[stage]
        stages.append(tuple(blocks))
    return ByobNet(ByoModelCfg(blocks=tuple(stages), stem_type="one", stem_chs=widths[0]), **arguments)


def _block(width: int, stride: int, has_se: bool, gs: int, **block_kwargs: int) -> ByoBlockCfg:
    se: dict[str, Any] = {"attn_layer": "se", "attn_kwargs": {"rd_channels": int(width * _SE_RATIO)}} if has_se else {}
    return ByoBlockCfg(type="one", d=1, c=width, s=stride, gs=gs, block_kwargs=block_kwargs, **se)
