"""Checkpoint folders of safetensors parts, as torch's distributed checkpoints (DCP) write them: verified, then read.

A folder has `content.json` (all but the tensors), the parts, and `manifest.json` (see
`utils.file_formats.checkpoint_folder`). No pickle is read: DCP's Hugging Face format has none.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from models.weights.names import summarize_names
from utils.errors import UserError
from utils.file_formats.checkpoint_folder import (
    CONTENT,
    StoredTensor,
    read_content,
    read_manifest,
    refused,
    verify_file,
)
from utils.torch_compat import tree_leaves, tree_map_only

AVERAGE = "state_dict_ema"  # timm's name of the entry
WEIGHTS = ("model", AVERAGE)  # the entries whose values must be finite
_DTYPE_NAMES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _DTYPE_NAMES}


def open_shards(folder: Path, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
    """The content of a folder, with a `StoredTensor` for each tensor.

    Verifies the parts: SHA-256, finite weights. With several ranks, each verifies its share of the files, and all
    must compare their results.
    Raises UserError: a file is damaged, missing, no part of the checkpoint, or holds non-finite weights.
    """
    files = read_manifest(folder)
    content = read_content(folder, files)
    found = iter_stored(content)
    stored = {tensor.name: tensor for tensor in found}
    if len(stored) < len(found):
        raise UserError(f"{folder / CONTENT}: is not a checkpoint of this project: a tensor twice; use another")
    weights = {tensor.name for entry in WEIGHTS for tensor in iter_stored(content.get(entry))}
    for name in sorted(files.keys() - {CONTENT})[rank::world_size]:
        verify_file(folder / name, files[name])
        _check_finite(folder / name, weights)
    _check_complete(folder, stored)
    return content


def iter_stored(content: Any) -> list[StoredTensor]:
    """The stored tensors in nested dicts, lists and tuples."""
    return [leaf for leaf in tree_leaves(content) if isinstance(leaf, StoredTensor)]


def empty_on_host(stored: StoredTensor) -> torch.Tensor:
    return torch.empty(stored.shape, dtype=_DTYPES[stored.dtype])


def read_stored(content: Any, make_target: Callable[[StoredTensor], torch.Tensor] = empty_on_host) -> Any:
    """Content of `open_shards` with its tensors.

    make_target: returns the tensor, or DTensor, to read a stored one into; of a DTensor only the local part is read.
    """
    stored = iter_stored(content)
    if not stored:
        return content
    import torch.distributed.checkpoint as dcp  # a second

    tensors = {one.name: make_target(one) for one in stored}
    targets = {name: tensor if tensor.dim() else tensor.view(1) for name, tensor in tensors.items()}
    folder = stored[0].folder
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each rank reads for itself
        try:
            dcp.load(targets, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
        except dcp.api.CheckpointException as failure:
            error = next(iter(failure.failures.values()))[0]
            raise refused(folder, error) from error
    return tree_map_only(StoredTensor, lambda one: tensors[one.name], content)


def read_model_state(entry: dict[str, Any], own: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The entry `model` or AVERAGE, read in place into the tensors `own` of the model; a file has tensors already.

    Raises ValueError: the entry has other names or shapes than the model.
    """
    stored = {one.name: key for key, one in entry.items() if isinstance(one, StoredTensor)}
    if not stored:
        return entry
    shapes, own_shapes = ({key: tuple(one.shape) for key, one in state.items()} for state in (entry, own))
    if differing := {key for key, _ in shapes.items() ^ own_shapes.items()}:
        raise ValueError(f"{summarize_names(sorted(differing))} missing on one side, or of another shape")
    return read_stored(entry, lambda one: own[stored[one.name]])


def read_optimizer_state(entry: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The entry `optimizer`; of a file it has tensors already.

    groups: the optimizer's; a moment is shared by the ranks as its parameter is.
    Raises ValueError: the entry belongs to other parameters.
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


def _check_finite(path: Path, weights: set[str]) -> None:
    """Raises a UserError if one of the tensors `weights` is in the file and not finite."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a dict
                if name in weights and not file.get_tensor(name).isfinite().all():
                    problem = f"{path.parent}: contains NaN or infinite values in {name.replace('.', ' ', 1)[:100]}"
                    raise UserError(f"{problem}; use an earlier checkpoint")
    except UserError:
        raise
    except Exception as error:  # the library raises almost any type for a damaged file
        raise refused(path, error) from None


def _check_complete(folder: Path, stored: dict[str, StoredTensor]) -> None:
    """Raises a UserError unless the parts contain each tensor once, whole, with its dtype, and no other tensor."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
        found = metadata.state_dict_metadata
        dtypes: dict[str, set[torch.dtype]] = {}
        for index, info in metadata.storage_data.items():
            dtypes.setdefault(index.fqn, set()).add(info.dtype)
        wrong = list(stored.keys() ^ found.keys())
        for name in stored.keys() & found.keys():
            part = found[name]
            is_whole = isinstance(part, TensorStorageMetadata) and _covers(part.chunks, stored[name].shape)
            if dtypes[name] != {_DTYPES.get(stored[name].dtype)} or not is_whole:
                wrong.append(name)
    except Exception as error:  # the libraries raise almost any type for a damaged file
        raise refused(folder, error) from None
    if wrong:
        raise UserError(f"{folder}: is damaged: {sorted(wrong)[0][:100]!r} is not complete in its shards; use another")


def _covers(chunks: list[Any], shape: tuple[int, ...]) -> bool:
    """Returns whether the chunks, which are ranges of the first dimension, are the whole tensor, without overlap."""
    shape = shape or (1,)
    parts = sorted((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks if math.prod(chunk.sizes))
    row = 0
    for offsets, sizes in parts:
        if offsets != (row, *[0] * (len(shape) - 1)) or sizes[1:] != shape[1:]:
            return False
        row += sizes[0]
    return row == shape[0] or not math.prod(shape)
