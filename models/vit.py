"""PaddleViT's keys -> timm's VisionTransformer.

The forward pass equals PaddleViT's (2e-7 in fp32): exact GELU, LayerNorm with eps 1e-6, no representation layer,
dropout after the position embedding and both projections but not in the head.
"""

from functools import partial
from typing import Any

import torch
from timm.layers import Attention, PatchEmbed, build_sincos2d_pos_embed
from timm.models import VisionTransformer
from torch import nn

from configs.schema import Data
from configs.schema.families.vit import ViT
from models.dropout import SampleDropBlock
from models.patch_embedding import ConvolutionalStem
from models.timm_model import check_image_size, errors_of_building


def build_vit(options: ViT, data: Data) -> VisionTransformer:
    """A Vision Transformer (Dosovitskiy et al., 2020): images (B, C, S, S) -> logits (B, classes).

    Raises:
        UserError: timm has no network MODEL.STEM, or it does not fit the patches or the image size.
    """
    with errors_of_building("MODEL.TYPE: vit", data):
        vit = VisionTransformer(
            **evaluation_arguments(options, data),
            pos_drop_rate=options.dropout,
            proj_drop_rate=options.dropout,
            attn_drop_rate=options.attention_dropout,
            drop_path_rate=options.droppath,
            weight_init="moco",
            attn_layer=_attention(options.attn_head_size),
            block_fn=SampleDropBlock,
            embed_layer=partial(ConvolutionalStem, options.stem) if options.stem else PatchEmbed,
        )
    if options.stem:
        check_image_size(vit, f"MODEL.STEM: {options.stem}", data)
    else:
        initialize_embeddings(vit)
    if options.pos_embed == "sincos2d":
        fix_position_embedding(vit)
    return vit


def evaluation_arguments(options: ViT, data: Data) -> dict[str, Any]:
    """timm's arguments that change the forward pass in evaluation."""
    keys = ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias", "global_pool", "init_values")
    return {key: getattr(options, key) for key in keys} | {
        "img_size": data.image_size,
        "in_chans": data.image_channels,
        "num_classes": options.num_logits,
        "class_token": options.global_pool == "token",
        "fc_norm": bool(options.stem),  # else the final norm precedes the pooling, as in big_vision
    }


def initialize_embeddings(vit: VisionTransformer) -> None:
    """Initializes the patch embedding by Xavier and the position embedding with standard deviation 1 / sqrt(width).

    The other layers are timm's `moco`: Xavier uniform, with queries, keys and values as three matrices (Chen et al.,
    2021, "An Empirical Study of Training Self-Supervised Vision Transformers"). docs/recipes.md compares others.
    """
    nn.init.xavier_uniform_(vit.patch_embed.proj.weight.flatten(1))  # a linear layer in the shape of a convolution
    assert vit.pos_embed is not None
    nn.init.trunc_normal_(vit.pos_embed, std=vit.embed_dim**-0.5)


@torch.no_grad()
def fix_position_embedding(vit: VisionTransformer) -> None:
    """Freezes the position embedding at 2-D sines and cosines (Chen et al., 2021), with zeros for the class token."""
    embedding = build_sincos2d_pos_embed(vit.patch_embed.grid_size, vit.embed_dim)
    assert vit.pos_embed is not None
    vit.pos_embed.zero_()
    vit.pos_embed[:, vit.num_prefix_tokens :] = embedding
    vit.pos_embed.requires_grad_(False)


def _attention(head_size: int | None) -> type[Attention]:
    """timm's attention class, with `head_size` as the default width of a head if it is not None."""
    if head_size is None:
        return Attention

    class AttentionWithHeadSize(Attention):
        def __init__(self, dim: int, **kwargs: Any) -> None:
            super().__init__(dim, attn_head_dim=head_size, **kwargs)

    return AttentionWithHeadSize
