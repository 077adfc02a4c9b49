"""MAE's fine-tuned model in PaddleViT: a ViT with a fixed position embedding."""

from typing import Any

import timm
import torch
from timm.models import VisionTransformer


def fine_tuned_mae(**arguments: Any) -> VisionTransformer:
    """timm's ViT with PaddleViT's position embedding, which is not in its weight files.

    Token p has sin(p / 10000^(j/D)) at the even positions j and the cosine of the same angle after it. The class token
    is number 0 and the patches follow row by row: one dimension, unlike the paper's two.
    """
    model: Any = timm.create_model("vit_base_patch16_224", **arguments)
    num_tokens, embed_dim = model.pos_embed.shape[1:]
    even = torch.arange(0, embed_dim, 2, dtype=torch.float64)
    angles = torch.arange(num_tokens, dtype=torch.float64)[:, None] / 10000 ** (even / embed_dim)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :embed_dim]
    model.pos_embed.requires_grad_(False).copy_(table)
    return model
