"""PaddlePaddle's .pdparams -> tensors. A .pdparams is a pickle: see `utils.plain_pickle` for how none of it is run."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.weights.names import summarize_names
from utils.errors import UserError
from utils.plain_pickle import ArrayRecord, ForbiddenName, read_plain_pickle

_FLOATING = ("f2", "f4", "f8", "u2")  # u2: the bits of bfloat16, which numpy lacks
_PARAMETER_NAMES = "StructuredToParameterName@@"  # PaddlePaddle's own names of the parameters, no weights


def read_pdparams(file: Path) -> dict[str, torch.Tensor]:
    """The model's state, (in, out) as PaddlePaddle keeps Linear weights; of a training checkpoint its `model` part.

    Raises:
        UserError: the file names a class that no weights need, or holds something that is no floating-point array.
        Exception: of almost any type, from a damaged pickle.
    """
    with open(file, "rb") as stream:
        try:
            content = read_plain_pickle(stream)
        except ForbiddenName as error:
            wanted = summarize_names([str(error)])
            raise UserError(f"{file}: asks for {wanted}, which no weights need; give a file you trust") from None
    state = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise UserError(f"{file}: holds no dict of weights; give the .pdparams of a model")
    arrays = {name: _array(file, name, value) for name, value in state.items() if name != _PARAMETER_NAMES}
    if sum(len(array.content) for array in arrays.values()) > file.stat().st_size:
        raise UserError(f"{file}: has the same numbers in many places; give the .pdparams of a model")
    return {name: _tensor(array) for name, array in arrays.items()}


def _array(file: Path, name: Any, value: Any) -> ArrayRecord:
    if isinstance(value, tuple) and len(value) == 2:
        value = value[1]  # (PaddlePaddle's own name, array)
    is_array = isinstance(value, ArrayRecord) and isinstance(value.content, bytes | str)
    if not (is_array and value.dtype and value.dtype.code in _FLOATING):
        raise UserError(
            f"{file}: {summarize_names([name])} is no array of floating-point numbers; give the .pdparams of a model"
        )
    return value


def _tensor(array: ArrayRecord) -> torch.Tensor:
    code = array.dtype.code
    numbers = np.frombuffer(array.data(), array.dtype.byte_order + code).astype(code)
    return as_tensor(numbers.reshape(array.shape, order="F" if array.column_major else "C"))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Same shape; two-byte numbers that numpy has no type for are bfloat16."""
    if array.dtype in (np.dtype("u2"), np.dtype("V2")):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
