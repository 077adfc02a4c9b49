"""Reads the tensors of a checkpoint that is a folder into the tensors of a run.

A rank of a sharded run reads its part only; any other rank reads whole tensors. Entries from a checkpoint file have
their tensors already, and are returned unchanged.
"""

from collections.abc import Sequence
from typing import Any

import torch

from models.weights.names import summarize_names
from models.weights.shards import empty_on_host, iter_stored, read_stored
from utils.file_formats.json_content import StoredTensor


def read_model_state(entry: dict[str, Any], own: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The entry `model` or `ema`, read in place into the tensors `own` of the model.

    Raises:
        ValueError: the entry has other names or shapes than the model.
    """
    stored = {one.name: key for key, one in entry.items() if isinstance(one, StoredTensor)}
    if not stored:
        return entry
    differing = [key for key in entry.keys() | own.keys() if not _fits(entry.get(key), own.get(key))]
    if differing:
        raise ValueError(f"{summarize_names(sorted(differing))} missing on one side, or of another shape")
    return read_stored(entry, lambda one: own[stored[one.name]])


def _fits(stored: StoredTensor | None, own: torch.Tensor | None) -> bool:
    return stored is not None and own is not None and stored.shape == tuple(own.shape)


def read_optimizer_state(entry: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The entry `optimizer`. groups: the optimizer's; a moment is shared by the ranks as its parameter is.

    Raises:
        ValueError: the entry belongs to other parameters.
    """
    if not iter_stored(entry):
        return entry
    parameters = [parameter for group in groups for parameter in group["params"]]
    if not all(type(number) is int and 0 <= number < len(parameters) for number in entry["state"]):
        raise ValueError(f"its optimizer has other parameters than these {len(parameters)}")
    like = {
        one.name: parameters[number]
        for number, values in entry["state"].items()
        for one in iter_stored(values)
        if one.shape and one.shape == tuple(parameters[number].shape)
    }

    def make_target(one: StoredTensor) -> torch.Tensor:
        target = empty_on_host(one)
        return torch.empty_like(like[one.name], dtype=target.dtype) if one.name in like else target

    return read_stored(entry, make_target)
