"""PaddlePaddle's .pdparams -> tensors. The file is a pickle; `utils.file_formats.plain_pickle` runs no code of it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.weights.names import summarize_names
from utils.errors import UserError
from utils.file_formats.plain_pickle import ArrayRecord, ForbiddenName, read_plain_pickle

# u2: bfloat16, which numpy does not have; i4 and i8: tables of indices, such as Swin's
_CODES = ("f2", "f4", "f8", "u2", "i4", "i8")
_PARAMETER_NAMES = "StructuredToParameterName@@"  # a table of PaddlePaddle's parameter names, not a tensor


def read_pdparams(file: Path) -> dict[str, torch.Tensor]:
    """The model's state; of a training checkpoint, its `model` entry. Linear weights are (in, out).

    Raises:
        UserError: the file refers to a function or class, or contains a value that is not an array of numbers.
        Exception: of almost any type, from a damaged pickle.
    """
    with open(file, "rb") as stream:
        try:
            content = read_plain_pickle(stream)
        except ForbiddenName as error:
            name = summarize_names([str(error)])
            raise UserError(f"{file}: refers to {name}, which is not data; give a file you trust") from None
    state = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise UserError(f"{file}: contains no dict of weights; give the .pdparams of a model")
    arrays = {name: _to_record(file, name, value) for name, value in state.items() if name != _PARAMETER_NAMES}
    if sum(len(array.content) for array in arrays.values()) > file.stat().st_size:
        raise UserError(f"{file}: uses one array for many tensors; give the .pdparams of a model")
    return {name: _to_tensor(array) for name, array in arrays.items()}


def _to_record(file: Path, name: Any, value: Any) -> ArrayRecord:
    if isinstance(value, tuple | list) and len(value) == 2:
        value = value[1]  # (PaddlePaddle's own name, array)
    is_array = isinstance(value, ArrayRecord) and isinstance(value.content, bytes | str)
    if not (is_array and value.dtype and value.dtype.code in _CODES):
        raise UserError(f"{file}: {summarize_names([name])} is not an array of numbers; give the .pdparams of a model")
    return value


def _to_tensor(array: ArrayRecord) -> torch.Tensor:
    return as_tensor(array.array().astype(array.dtype.code))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same shape. Elements of two bytes without a numpy type are bfloat16."""
    if array.dtype in (np.dtype("u2"), np.dtype("V2")):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
