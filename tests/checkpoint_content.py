"""The content of checkpoints, without a training."""

from typing import Any

import numpy as np
import torch
from timm.models import VisionTransformer

from datasets.sources.split import RunSplit
from engine.checkpoint.run_folder import FORMAT
from engine.checkpoint.weights_record import split_to_entry
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
        "class_names": None,
    } | changes  # fmt: skip


def checkpoint_state() -> dict[str, Any]:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 3, 16, 16)).sum().backward()
    optimizer.step()
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    split = split_to_entry(RunSplit(0, 0.1, ("cat/1.jpg", "dog/2.jpg"), np.arange(9, dtype=np.uint64)))
    return content(format=FORMAT, epoch=3, class_names=["cat", "dog"], split=split, **states)
