"""MobileViT as in PaddleViT, from timm's blocks."""

from typing import Any

from timm.layers import ConvNormAct
from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg
from timm.models.mobilevit import MobileVitBlock  # its import makes the block type "mobilevit" known
from torch import nn


def mobilevit(
    dims: tuple[int, ...], transformer_dims: tuple[int, ...], depths: tuple[int, ...], **arguments: Any
) -> nn.Module:
    """A MobileViT whose inverted residuals expand 4 times, with a norm and an activation after each convolution.

    dims: channels of the stem, the 7 inverted residuals and the last convolution.
    """
    transformers = (
        (_residual(width, stride=2), _transformer(width, *transformer))
        for width, *transformer in zip(dims[5:8], transformer_dims, depths, strict=True)
    )
    first = (_residual(dims[1], stride=1),)
    second = (_residual(dims[2], stride=2), _residual(dims[3], stride=1), _residual(dims[4], stride=1))
    config = ByoModelCfg(
        blocks=(first, second, *transformers),
        stem_chs=dims[0],
        stem_type="3x3",
        stem_pool="",
        downsample="",
        act_layer="silu",
        num_features=dims[8],
    )
    model = ByobNet(config, **arguments)
    for block in (module for module in model.modules() if isinstance(module, MobileVitBlock)):
        plain = block.conv_1x1
        block.add_module("conv_1x1", ConvNormAct(plain.in_channels, plain.out_channels, 1, act_layer=nn.SiLU))
    return model


def _residual(width: int, stride: int) -> ByoBlockCfg:
    kwargs = {"bottle_in": True, "linear_out": True}
    return ByoBlockCfg(type="bottle", d=1, c=width, s=stride, gs=1, br=4.0, block_kwargs=kwargs)


def _transformer(width: int, transformer_dim: int, depth: int) -> ByoBlockCfg:
    kwargs = {"transformer_dim": transformer_dim, "transformer_depth": depth, "patch_size": 2, "num_heads": 8}
    return ByoBlockCfg(type="mobilevit", d=1, c=width, s=1, block_kwargs=kwargs)
