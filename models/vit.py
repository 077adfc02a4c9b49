"""PaddleViT's keys -> timm's VisionTransformer.

The forward pass equals PaddleViT's (2e-7 in fp32): exact GELU, LayerNorm with eps 1e-6, no representation layer,
dropout after the position embedding and both projections but not in the head.
"""

from functools import partial

from timm.layers import Attention
from timm.models import VisionTransformer
from torch import nn

from configs.schema import Config


def build_vit(config: Config) -> VisionTransformer:
    """A Vision Transformer (Dosovitskiy et al., 2020), images (B, C, S, S) -> logits (B, classes)."""
    model, data = config.model, config.data
    attention = Attention if model.attn_head_size is None else partial(Attention, attn_head_dim=model.attn_head_size)
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
        attn_layer=attention,
    )
    initialize_embeddings(vit)
    return vit


def initialize_embeddings(vit: VisionTransformer) -> None:
    """Makes a patch's content and its position equally loud at the start, whatever the width and the patch size.

    The layers are initialized as the paper's own code does (`jax`: Xavier by each layer's width, a head of zeros). For
    narrow models with small patches that leaves the position lost in the content, and so does a fixed standard
    deviation of 0.02 for all.
    """
    nn.init.xavier_uniform_(vit.patch_embed.proj.weight.flatten(1))  # a linear layer in the shape of a convolution
    nn.init.trunc_normal_(vit.pos_embed, std=vit.embed_dim**-0.5)
