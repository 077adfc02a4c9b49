"""The state of saved checkpoints."""

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint.files import load_checkpoint
from engine.checkpoint.run_folder import LAST, PREVIOUS
from utils.errors import UserError

_STATE = ("model", "state_dict_ema", "optimizer", "precision", "sums", "epoch", "done_steps", "best")


def has_good_checkpoint(folder: Path) -> bool:
    return any(is_good(folder / name) for name in (LAST, PREVIOUS))


def is_good(checkpoint: Path) -> bool:
    try:
        load_checkpoint(checkpoint)
    except UserError:
        return False
    return True


def state_hash(checkpoint: Path) -> str:
    """A hash of everything in a checkpoint that determines the further training."""
    digest = hashlib.sha256()
    content = load_checkpoint(checkpoint)
    for part in _leaf_bytes([content[name] for name in _STATE]):
        digest.update(part)
    return digest.hexdigest()[:16]


def _leaf_bytes(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key in value:
            yield repr(key).encode()
            yield from _leaf_bytes(value[key])
    elif isinstance(value, list | tuple):
        yield from itertools.chain.from_iterable(map(_leaf_bytes, value))
    else:
        yield repr(value).encode()
