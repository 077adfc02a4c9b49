"""Reads pickles of plain data and numpy arrays: no function or class that a file names is used.

Strings, numbers, lists and dicts are built; a tuple becomes a list, and an array a record of its bytes. A pickle of a
few bytes can still make `pickle.Unpickler` take all memory, or hash nested tuples for years. Therefore it is Python's
implementation, with the operations of plain data alone, at most `_MAX_OPERATIONS`, and only scalars can be keys. An
integer from the modulus of Python's hash on collides with a smaller one as a key, and counts as many operations.
"""

import mmap
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import numpy as np

from utils.torch_compat import PythonUnpickler

_OPERATIONS = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "NONE", "NEWTRUE"),
    *("NEWFALSE", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT"),
    *("SETITEM", "SETITEMS", "MARK", "GLOBAL", "STACK_GLOBAL", "REDUCE", "PROTO", "FRAME", "STOP"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
)
_MAX_OPERATIONS = 2_000_000  # a few seconds, 200 MB; the largest known weight file needs a tenth of it
_LARGE_INTEGER_OPERATIONS = 10_000
_CODES = [getattr(pickle, name)[0] for name in _OPERATIONS]


class ForbiddenName(Exception):
    """The pickle names a class or function that plain data does not need. The message is its name."""


@dataclass
class DtypeRecord:
    code: str
    byte_order: str = "="

    def set_state(self, state: list[Any]) -> None:
        self.byte_order = state[1]


@dataclass
class ArrayRecord:
    """The state of a pickled numpy array. `content`: bytes, a Latin-1 string (old protocols), or a list of objects."""

    shape: Any = ()
    dtype: Any = None
    column_major: Any = False
    content: Any = b""

    def set_state(self, state: list[Any]) -> None:
        _, self.shape, self.dtype, self.column_major, self.content = state

    def array(self) -> np.ndarray:
        """Raises an exception of any type if the record is damaged."""
        data = self.content.encode("latin1") if isinstance(self.content, str) else self.content
        numbers = np.frombuffer(data, self.dtype.byte_order + self.dtype.code)
        return numbers.reshape(self.shape, order="F" if self.column_major else "C")


def read_plain_pickle(stream: BinaryIO) -> Any:
    """The content of the file, with an `ArrayRecord` for each array, and a list for each tuple.

    Raises:
        ForbiddenName: the file names a class or function that arrays do not need.
        Exception: of almost any type, from a damaged file.
    """
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as file:  # reads never exceed the file size
        return _Unpickler(file, encoding="latin1").load()


def _counted(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def count_and_load(unpickler: Any) -> None:
        load(unpickler)
        top = unpickler.stack[-1:]
        is_large = bool(top) and type(top[0]) is int and abs(top[0]) >= sys.hash_info.modulus
        unpickler.num_operations += _LARGE_INTEGER_OPERATIONS if is_large else 1
        if unpickler.num_operations > _MAX_OPERATIONS:
            raise ValueError(f"more than {_MAX_OPERATIONS:,} operations")

    return count_and_load


class _Unpickler(PythonUnpickler):  # type: ignore[misc]  # of a class without types
    num_operations = 0

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CALLS:
            raise ForbiddenName(f"{module}.{name}")
        return _CALLS[module, name]

    def load_build(self) -> None:
        state = self.stack.pop()
        self.stack[-1].set_state(state)  # only records have it

    def load_tuple(self, size: int) -> None:
        items = self.stack[-size:]
        del self.stack[-size:]
        self.append(items)

    loaders: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code: PythonUnpickler.dispatch[code] for code in _CODES},
        pickle.BUILD[0]: load_build,
        pickle.TUPLE[0]: PythonUnpickler.load_list,
        pickle.EMPTY_TUPLE[0]: PythonUnpickler.load_empty_list,
        pickle.TUPLE1[0]: lambda self: self.load_tuple(1),
        pickle.TUPLE2[0]: lambda self: self.load_tuple(2),
        pickle.TUPLE3[0]: lambda self: self.load_tuple(3),
    }
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {code: _counted(load) for code, load in loaders.items()}


def _array(*arguments: Any) -> ArrayRecord:
    return ArrayRecord()


def _encode(text: str, encoding: str) -> str:
    """Returns the string itself, because many arrays may share it: `ArrayRecord.array` encodes it."""
    if encoding != "latin1" or not isinstance(text, str):
        raise ValueError(f"unexpected encoding {encoding!r}")
    return text


def _dict(*items: Any) -> dict[Any, Any]:
    """Empties the list of items: a small file may name it many times."""
    content = dict(*items)
    for one in items:
        one.clear()
    return content


def _pair(items: list[Any]) -> list[Any]:
    first, second = items
    return [first, second]


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _array,
    ("numpy", "dtype"): lambda code, *_: DtypeRecord(code),
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _dict,
    ("builtins", "tuple"): _pair,  # PaddlePaddle's (name, array)
    ("__builtin__", "tuple"): _pair,  # protocol 2
}
