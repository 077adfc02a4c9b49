"""The content of checkpoints, without a training."""

from typing import Any

import torch
from timm.models import VisionTransformer

from engine.progress import NUM_SUMS


def small_model(depth: int = 1) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(img_size=16, patch_size=8, num_classes=3, embed_dim=12, depth=depth, num_heads=3)


def content(**changes: Any) -> dict[str, Any]:
    """The content of a checkpoint, without its format."""
    return {
        "model": {}, "state_dict_ema": None, "optimizer": {}, "precision": {}, "epoch": 0, "done_steps": 0,
        "sums": torch.zeros(NUM_SUMS), "geometry": {"samples": 40, "batch_size": 4, "accum_iter": 1, "seed": 0},
        "best": None, "train_seconds": 1.0, "total_seconds": 1.0, "images": 9, "options": "MODEL: {}\nDATA: {}",
        "class_names": None
    } | changes  # fmt: skip
