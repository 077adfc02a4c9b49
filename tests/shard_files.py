"""Folders of shards, written without processes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from timm.models import VisionTransformer

from datasets.sources.split import RunSplit
from engine.checkpoint.reader import load_checkpoint
from engine.checkpoint.run_folder import FORMAT
from engine.checkpoint.weights_record import split_to_entry
from utils.file_formats.checkpoint_folder import CONTENT, MANIFEST, describe_file, encode_content, write_manifest
from utils.metrics import NUM_SUMS


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


def to_shards(file: Path) -> Path:
    """Replaces a checkpoint by its folder of two shards."""
    folder = write_shards(file.with_suffix(".shards"), {"format": FORMAT} | load_checkpoint(file))
    file.unlink()
    return folder


def write_shards(folder: Path, content: dict[str, Any], parts: int = 2) -> Path:
    """A folder as `ShardWriter` writes it on `parts` ranks, without processes."""
    folder.mkdir(parents=True)
    text, tensors = encode_content(content)
    (folder / CONTENT).write_text(text)
    for part in range(parts):
        write_shard(folder / f"shard-{part + 1:05d}-model-00001-of-00001.safetensors", tensors, part, parts)
    return seal(folder)


def write_shard(path: Path, tensors: dict[str, torch.Tensor], part: int, parts: int) -> None:
    """One rank's rows of each tensor, with their offsets in the metadata, as torch's distributed checkpoints."""
    own, offsets = {}, {}
    for name, tensor in tensors.items():
        rows = (tensor if tensor.dim() else tensor.reshape(1)).tensor_split(parts)
        own[name] = rows[part].clone().contiguous()
        first = sum(len(other) for other in rows[:part])
        offsets[name] = {"saved_offsets": [first, *[0] * (rows[part].dim() - 1)]}
    save_file(own, path, {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)})


def seal(folder: Path) -> Path:
    """Writes the manifest that fits the files, as a forger would."""
    (folder / MANIFEST).unlink(missing_ok=True)
    write_manifest(folder, {path.name: describe_file(path) for path in folder.iterdir() if path.is_file()})
    return folder
