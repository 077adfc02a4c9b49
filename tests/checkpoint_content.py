"""The content of checkpoints, without a training."""

from typing import Any

import torch
from timm.models import VisionTransformer

from configs.yaml_io import parse_value
from engine.progress import NUM_SUMS


def small_model(depth: int = 1) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(img_size=16, patch_size=8, num_classes=3, embed_dim=12, depth=depth, num_heads=3)


CONTENT = """
model: {}
state_dict_ema: null
optimizer: {}
precision: {}
epoch: 0
done_steps: 0
geometry: {samples: 40, batch_size: 4, accum_iter: 1, seed: 0}
best: null
train_seconds: 1.0
total_seconds: 1.0
images: 9
class_names: null
"""


def content(**changes: Any) -> dict[str, Any]:
    """The content of a checkpoint, without its format."""
    others = {"sums": torch.zeros(NUM_SUMS), "options": "MODEL: {}\nDATA: {}"}
    return parse_value(CONTENT) | others | changes
