"""Reads pickles of plain data and numpy arrays: of all names in a file, only those in `_CALLS` mean anything.

An array becomes a record of its bytes, because numpy would allocate any shape that the file states. The unpickler is
`pickle._Unpickler`: the one in C allocates up to 64 GB for one wrong number in a file. Bytes and arrays never exceed
the file; a malicious file can still take long, or much memory, by naming its lists, dicts and tuples many times.
"""

import mmap
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import numpy as np

from utils.torch_compat import PythonUnpickler


class ForbiddenName(Exception):
    """The pickle names a class or function that plain data does not need. The message is its name."""


class DtypeRecord:
    def __init__(self, code: str, *_: Any) -> None:
        self.code, self.byte_order = code, "="

    def set_state(self, state: Any) -> None:
        self.byte_order = state[1]

    __setstate__ = set_state  # torch's name


@dataclass(eq=False)
class ArrayRecord:
    """The state of a pickled numpy array. `content`: bytes, a Latin-1 string (old protocols), or a list of objects."""

    shape: Any = ()
    dtype: Any = None
    column_major: Any = False
    content: Any = b""

    def set_state(self, state: Any) -> None:
        _, self.shape, self.dtype, self.column_major, self.content = state

    __setstate__ = set_state

    def array(self) -> np.ndarray:
        """Raises an exception of any type if the record is damaged."""
        data = self.content.encode("latin1") if isinstance(self.content, str) else self.content
        numbers = np.frombuffer(data, self.dtype.byte_order + self.dtype.code)
        return numbers.reshape(self.shape, order="F" if self.column_major else "C")


def read_plain_pickle(stream: BinaryIO) -> Any:
    """The content of the file, with an `ArrayRecord` for each array.

    Raises:
        ForbiddenName: the file names a class or function that arrays do not need.
        Exception: of almost any type, from a damaged file.
    """
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as file:  # reads never exceed the file size
        return _Unpickler(file, encoding="latin1").load()


class _Unpickler(PythonUnpickler):  # type: ignore[misc]  # of a class without types
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CALLS:
            raise ForbiddenName(f"{module}.{name}")
        return _CALLS[module, name]

    def load_build(self) -> None:
        """Sets the state of a record; nothing else has one, also not the functions of `_CALLS`."""
        state = self.stack.pop()
        self.stack[-1].set_state(state)

    def load_bytearray8(self) -> None:
        """Python's own would allocate the size that the file states. Older protocols name the type: refused."""
        raise ForbiddenName("builtins.bytearray")

    dispatch: ClassVar[dict[int, Callable[..., None]]] = PythonUnpickler.dispatch | {
        pickle.BUILD[0]: load_build,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }


def _encode(text: str, encoding: str) -> str:
    """Returns the string itself, because many arrays may share it: `ArrayRecord.array` encodes it."""
    if encoding != "latin1" or not isinstance(text, str):
        raise ValueError(f"unexpected encoding {encoding!r}")
    return text


ARRAYS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): ArrayRecord,
    ("numpy", "dtype"): DtypeRecord,
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: ArrayRecord(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: ArrayRecord(),
}
_CALLS = ARRAYS | {
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): dict,
    ("builtins", "tuple"): tuple,  # PaddlePaddle's (name, array)
    ("__builtin__", "tuple"): tuple,  # protocol 2
}
