"""PaddlePaddle's .pdparams -> tensors, without running anything the file asks for.

A .pdparams is a pickle, and a pickle may name any function to be called. Here only the few names that plain arrays
need are known, and each stands for something inert: an array of the file becomes a record of its bytes, which is
turned into numbers afterwards.
"""

import pickle
import pickletools
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from models.names import few
from utils.errors import UserError

_FLOATING = ("f2", "f4", "f8", "u2")  # u2: the bits of bfloat16, which numpy lacks
_PARAMETER_NAMES = "StructuredToParameterName@@"  # PaddlePaddle's own names of the parameters, no weights


class _ArrayRecord:
    """What a pickled array says of itself; its numbers stay bytes."""

    def __init__(self, *_: Any) -> None:
        self.shape, self.dtype, self.column_major, self.data = (), None, False, b""

    def __setstate__(self, state: tuple) -> None:
        _, self.shape, self.dtype, self.column_major, self.data = state


class _DtypeRecord:
    def __init__(self, code: str, *_: Any) -> None:
        self.code, self.byte_order = code, "="

    def __setstate__(self, state: tuple) -> None:
        self.byte_order = state[1]


_STAND_INS = {
    ("numpy", "ndarray"): _ArrayRecord,
    ("numpy", "dtype"): _DtypeRecord,
    ("numpy.core.multiarray", "_reconstruct"): _ArrayRecord,
    ("numpy._core.multiarray", "_reconstruct"): _ArrayRecord,
    ("_codecs", "encode"): str.encode,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "tuple"): tuple,
    ("__builtin__", "tuple"): tuple,  # protocol 2
}


class _ArrayUnpickler(pickle.Unpickler):
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self.file = stream.name

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            wanted = few([f"{module}.{name}"])
            raise UserError(f"{self.file}: asks for {wanted}, which no weights need; give a file you trust")
        return _STAND_INS[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("weights refer to nothing outside the file")


def read_pdparams(file: Path) -> dict[str, torch.Tensor]:
    """The model's state, (in, out) as PaddlePaddle keeps Linear weights; of a training checkpoint its `model` part.

    Raises:
        UserError: the file names a class that no weights need, or holds something that is no floating-point array.
        Exception: of almost any type, from a damaged pickle.
    """
    with open(file, "rb") as stream:
        _check_claims(stream)
        content = _ArrayUnpickler(stream).load()
    state = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise UserError(f"{file}: holds no dict of weights; give the .pdparams of a model")
    return {name: _tensor(file, name, value) for name, value in state.items() if name != _PARAMETER_NAMES}


def _check_claims(stream: BinaryIO) -> None:
    """The unpickler believes a damaged file's sizes and takes all memory there is; reading op by op it does not."""
    for opcode, argument, position in pickletools.genops(stream):
        if "PUT" in opcode.name and int(argument) > position:
            raise ValueError("remembers more objects than there are bytes before it")
    stream.seek(0)


def _tensor(file: Path, name: str, value: Any) -> torch.Tensor:
    if isinstance(value, tuple) and len(value) == 2:
        value = value[1]  # (PaddlePaddle's own name, array)
    dtype = value.dtype if isinstance(value, _ArrayRecord) else None
    if not isinstance(dtype, _DtypeRecord) or dtype.code not in _FLOATING:
        raise UserError(f"{file}: {few([name])} is no array of floating-point numbers; give the .pdparams of a model")
    numbers = np.frombuffer(value.data, dtype.byte_order + dtype.code).astype(dtype.code)
    return as_tensor(numbers.reshape(value.shape, order="F" if value.column_major else "C"))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Same shape; two-byte numbers that numpy has no type for are bfloat16."""
    if array.dtype in (np.dtype("u2"), np.dtype("V2")):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
