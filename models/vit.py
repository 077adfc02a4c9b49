"""PaddleViT's keys -> timm's VisionTransformer, with its patch embedding and its blocks.

The patch embedding may be behind a convolutional network (MODEL.STEM). Drop path does not compute the dropped samples,
as in DINOv2 (Oquab et al., 2023). The forward pass equals PaddleViT's (2e-7 in fp32): exact GELU, LayerNorm with eps
1e-6, no representation layer, dropout after the position embedding and both projections but not in the head.

Legend: B images, K images kept, C channels, S pixels on a side, N tokens, D features, the channels of a token.
"""

from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import timm
import torch
from timm.layers import Attention, PatchEmbed, build_sincos2d_pos_embed
from timm.models import VisionTransformer
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from configs.schema import Data
from configs.schema.families.family import ViT
from configs.yaml_io import Values
from models.timm_model import check_image_size, errors_of_building
from models.vit_stem import ConvolutionalStem
from utils.errors import UserError, did_you_mean

MIN_RATE = 0.1  # below this rate the saved computation is small, and timm's mask follows the rate exactly
# Computed, not measured: with ViT-B in O1, copying the kept samples takes longer than the products that it saves below
# a rate of 0.15, at 620 TFLOP/s and 4 TB/s. The margin is for the atomic additions, and for compiled masks.
MIN_RATE_ON_GPU = 0.2
_MIN_DROPPED = 2  # samples: with fewer, the dropped share of a batch is far from the rate


def num_kept_samples(batch_size: int, rate: float) -> int | None:
    """K, the integer nearest to B (1 - rate); None if timm's drop-path, a mask over all samples, is to be used."""
    dropped = round(batch_size * rate)
    return batch_size - dropped if _MIN_DROPPED <= dropped < batch_size else None


def add_residual(x: Tensor, branch: Callable[[Tensor], Tensor], kept: int) -> Tensor:
    """x (B, N, D) + B / K * branch(x) for K random samples, each equally likely; the other samples stay unchanged."""
    chosen = torch.rand(len(x), device=x.device).argsort()[:kept]
    residual = branch(x.index_select(0, chosen))
    dtype = torch.promote_types(x.dtype, residual.dtype)
    return x.to(dtype).index_add(0, chosen, residual.to(dtype), alpha=len(x) / kept)


class SampleDropBlock(Block):
    """timm's transformer block. In training each branch drops a fixed number of samples and does not compute them.

    A block with a rate below 0.1, on a GPU 0.2, keeps timm's DropPath. On two cores, ViT-Tiny at batch 32 in bf16, a
    block is 1.2 times as fast as timm's at rate 0.2 and 1.6 times at 0.4.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.drop_rate = rate = float(getattr(self.drop_path1, "drop_prob", 0.0))
        # On a CPU, on a GPU. A compiled graph belongs to a rate only if the number of samples follows from it.
        self.drops_samples = rate >= MIN_RATE, rate >= MIN_RATE_ON_GPU

    def forward(  # type: ignore[override]  # other versions of timm have other arguments
        self, x: Tensor, attn_mask: Tensor | None = None, **attention: Any
    ) -> Tensor:
        kept = None
        if self.training and self.drops_samples[int(x.is_cuda)]:
            kept = num_kept_samples(len(x), self.drop_rate)
        if kept is None or attn_mask is not None:
            return super().forward(x, attn_mask, **attention)
        x = add_residual(x, lambda part: self.ls1(self.attn(self.norm1(part), **attention)), kept)
        return add_residual(x, lambda part: self.ls2(self.mlp(self.norm2(part))), kept)


def bigvision_positions(grid: list[int], width: int) -> Tensor:
    """big_vision's (N, D): frequencies 10000^(-i / (D / 4 - 1)), in the order sin x, cos x, sin y, cos y.

    timm's have the exponent -i / (D / 4), and the order sin y, sin x, cos y, cos x.
    """
    temperature = 10000 ** (width / (width - 4))
    return build_sincos2d_pos_embed(grid, width, temperature, interleave_sin_cos=True).roll(width // 2, 1)


# Of MODEL.POS_EMBED
_FORMULAS: dict[str, Callable[..., Tensor]]
_FORMULAS = {"sincos2d": build_sincos2d_pos_embed, "sincos2d_bigvision": bigvision_positions}


def build_vit(options: ViT, data: Data) -> VisionTransformer:
    """A Vision Transformer (Dosovitskiy et al., 2020): images (B, C, S, S) -> logits (B, classes).

    Raises UserError: timm has no network MODEL.STEM, or it does not fit the patches or the image size.
    """
    if options.stem and not timm.is_model(options.stem):
        close = did_you_mean(options.stem, timm.list_models())
        raise UserError(f"MODEL.STEM: timm has no model {options.stem[:80]}{close}")
    attention: Any = Attention
    if options.attn_head_size:
        with_size = partialmethod(Attention.__init__, attn_head_dim=options.attn_head_size)
        attention = type("AttentionWithHeadSize", (Attention,), {"__init__": with_size})
    with errors_of_building("MODEL.TYPE: vit", data):
        vit = VisionTransformer(
            **evaluation_arguments(options, data),
            pos_drop_rate=options.dropout,
            proj_drop_rate=options.dropout,
            attn_drop_rate=options.attention_dropout,
            drop_path_rate=options.droppath,
            weight_init="moco",
            attn_layer=attention,
            block_fn=SampleDropBlock,
            embed_layer=partial(ConvolutionalStem, options.stem) if options.stem else PatchEmbed,
        )
    assert vit.pos_embed is not None
    if options.stem:
        check_image_size(vit, f"MODEL.STEM: {options.stem}", data)
    else:  # the other layers are timm's `moco`, see docs/recipes.md; torch 2.12's trunc_normal_ draws other values
        nn.init.xavier_uniform_(vit.patch_embed.proj.weight.flatten(1))  # a linear layer in the shape of a convolution
        nn.init.normal_(vit.pos_embed, std=vit.embed_dim**-0.5)
    if options.pos_embed in _FORMULAS:  # fixed, with zeros for the class token (Chen et al., 2021)
        vit.pos_embed.requires_grad_(False).zero_()
        formula = _FORMULAS[options.pos_embed]
        vit.pos_embed[:, vit.num_prefix_tokens :] = formula([*vit.patch_embed.grid_size], vit.embed_dim)
    return vit


def evaluation_arguments(options: ViT, data: Data) -> Values:
    """timm's arguments that change the forward pass in evaluation."""
    keys = ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias", "global_pool", "init_values")
    return {key: getattr(options, key) for key in keys} | {
        "img_size": data.image_size,
        "in_chans": data.image_channels,
        "num_classes": options.num_logits,
        "class_token": options.global_pool == "token",
        "fc_norm": bool(options.stem),  # else the final norm precedes the pooling, as in big_vision
    }
