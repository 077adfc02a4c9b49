"""The split of a run's data in its checkpoints (entry `split`), in exported weights, and in `held_out.json`.

The entry is None if the data came with splits; a checkpoint of an older version has none. Its options have the seed,
the fraction and the fold.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datasets.sources.split import DEFAULT_VAL_FRACTION, RunSplit
from models.weights.read import has_backing_storage
from utils.atomic_file import atomic_write

ENTRY = "split"
HELD_OUT_FILE = "held_out.json"


def split_to_entry(split: RunSplit | None) -> dict[str, Any] | None:
    """The digest and the paths of the held-out images, and 8 bytes of each training image; about 1 MB per 100,000."""
    if split is None:
        return None
    text = bytearray("\0".join(split.held_out or ()).encode("utf-8", "surrogateescape"))
    trained = torch.from_numpy(split.trained.view(np.int64))
    return {"digest": split.digest, "held_out": torch.frombuffer(text, dtype=torch.uint8), "trained": trained}


def exported_entry(split: RunSplit | None) -> dict[str, Any]:
    """The entry of weights without their training images, by its name; empty if the split is not known."""
    if split is None or split.held_out is None:
        return {}
    return {ENTRY: {"digest": split.digest, "held_out": list(split.held_out)} if split.held_out else None}


def write_held_out(folder: Path, split: RunSplit | None) -> None:
    """Writes `held_out.json`, if the run holds images out; raises OSError if that fails."""
    if split:
        atomic_write(folder / HELD_OUT_FILE, json.dumps(exported_entry(split)[ENTRY], indent=2) + "\n")


def read_split(content: Mapping[str, Any], data: Mapping[str, Any]) -> RunSplit:
    """The split in the content of a checkpoint, or in the metadata of exported weights, with the options `data`.

    Raises:
        ValueError: the entry is invalid.
    """
    seed, fraction = data.get("SPLIT_SEED", 0), data.get("VAL_FRACTION") or DEFAULT_VAL_FRACTION
    fold = (data.get("FOLD") or 0, data["FOLDS"]) if data.get("FOLDS") else None
    if ENTRY not in content:
        return RunSplit(seed, fraction, None, num_trained=content.get("geometry", {}).get("samples"))
    match content[ENTRY]:
        case None:
            return RunSplit(seed, fraction, (), fold=fold)
        case {"digest": digest, "held_out": list(names)}:
            split = RunSplit(seed, fraction, tuple(names), fold=fold)
        case {"digest": digest, "held_out": torch.Tensor() as text, "trained": torch.Tensor() as trained}:
            for tensor, dtype in ((text, torch.uint8), (trained, torch.int64)):
                if tensor.dtype != dtype or not has_backing_storage(tensor, tensor.untyped_storage().nbytes()):
                    raise ValueError("other tensors")
            names = bytes(text.numpy()).decode("utf-8", "surrogateescape").split("\0")
            split = RunSplit(
                seed=seed, fraction=fraction, held_out=tuple(names), trained=trained.numpy().view(np.uint64), fold=fold
            )
        case _:
            raise ValueError("no split")
    if not all(isinstance(name, str) for name in names) or split.digest != digest:
        raise ValueError("a damaged split")
    return split
