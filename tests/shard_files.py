"""Folders of shards, written without processes."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.checkpoint.reader import FORMAT, load_checkpoint
from utils.file_formats.checkpoint_folder import CONTENT, MANIFEST, describe_file, write_manifest
from utils.file_formats.json_content import encode_content


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
