"""PaddleViT's keys -> timm's VisionTransformer.

The forward pass equals PaddleViT's (2e-7 in fp32): exact GELU, LayerNorm with eps 1e-6, no representation layer,
dropout after the position embedding and both projections but not in the head.
"""

from typing import Any

from timm.layers import Attention
from timm.models import VisionTransformer
from torch import nn

from configs.schema import Config
from models.drop_path import SampleDropBlock


def build_vit(config: Config) -> VisionTransformer:
    """A Vision Transformer (Dosovitskiy et al., 2020), images (B, C, S, S) -> logits (B, classes)."""
    model, data = config.model, config.data
    vit = VisionTransformer(
        img_size=data.image_size,
        patch_size=model.patch_size,
        in_chans=data.image_channels,
        num_classes=model.num_classes,
        embed_dim=model.embed_dim,
        depth=model.depth,
        num_heads=model.num_heads,
        mlp_ratio=model.mlp_ratio,
        qkv_bias=model.qkv_bias,
        pos_drop_rate=model.dropout,
        proj_drop_rate=model.dropout,
        attn_drop_rate=model.attention_dropout,
        drop_path_rate=model.droppath,
        weight_init="jax",
        attn_layer=_attention(model.attn_head_size),
        block_fn=SampleDropBlock,
    )
    initialize_embeddings(vit)
    return vit


def initialize_embeddings(vit: VisionTransformer) -> None:
    """Keeps a patch's position from being lost in its content where the model is narrow and its patches are small.

    The layers are initialized as the paper's own code does (`jax`: Xavier by each layer's width, a head of zeros). Its
    patch embedding looks at the patch alone, though, and its position embedding has a standard deviation of 0.02
    whatever the width: at width 96 and 2 x 2 pixels that is 1/25 of the content, and such a model learns slowly.
    """
    nn.init.xavier_uniform_(vit.patch_embed.proj.weight.flatten(1))  # a linear layer in the shape of a convolution
    nn.init.trunc_normal_(vit.pos_embed, std=vit.embed_dim**-0.5)


def _attention(head_size: int | None) -> type[Attention]:
    """timm's attention, with heads of that width where one is given; a class, because timm asks for one."""
    if head_size is None:
        return Attention

    class AttentionWithHeadSize(Attention):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, attn_head_dim=head_size, **kwargs)

    return AttentionWithHeadSize
