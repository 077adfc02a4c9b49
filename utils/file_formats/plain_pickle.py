"""Reads pickles of plain data and numpy arrays: no function or class that a file names is used.

`pickle.Unpickler` builds strings, numbers, lists, dicts and tuples; an array becomes a record of its bytes. A pickle of
a few bytes can still make it take all memory, or hash for years. Therefore the operations are checked first.
"""

import mmap
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

_MAX_OPERATIONS = 2_000_000  # about a second; the largest known weight file needs a tenth of it
_STORE, _RECALL = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), ("GET", "BINGET", "LONG_BINGET")
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_OPERATIONS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE", *_TUPLES),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "MARK"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "PROTO", "FRAME", "STOP", *_STORE, *_RECALL),
}


class ForbiddenName(Exception):
    """The pickle names a class or function that plain data does not need. The message is its name."""


@dataclass
class DtypeRecord:
    code: str
    byte_order: str = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.byte_order = state[1]


@dataclass
class ArrayRecord:
    """The state of a pickled numpy array. `content`: bytes, a Latin-1 string (old protocols), or a list of objects."""

    shape: Any = ()
    dtype: Any = None
    column_major: Any = False
    content: Any = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.column_major, self.content = state

    def array(self) -> np.ndarray:
        """Raises an exception of any type if the record is damaged."""
        data = self.content.encode("latin1") if isinstance(self.content, str) else self.content
        numbers = np.frombuffer(data, self.dtype.byte_order + self.dtype.code)
        return numbers.reshape(self.shape, order="F" if self.column_major else "C")


def read_plain_pickle(stream: BinaryIO) -> Any:
    """The content of the file, with an `ArrayRecord` for each array, and a list for a pair of the function `tuple`.

    Raises:
        ForbiddenName: the file names a class or function that arrays do not need.
        Exception: of almost any type, from a damaged file.
    """
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as file:  # reads never exceed the file size
        _check_operations(file)
        file.seek(0)
        return _Unpickler(file, encoding="latin1").load()


def _check_operations(file: Any) -> None:
    """Refuses an operation that plain data does not need, and numbers of stored objects beyond those in the file.

    A tuple is not used twice: the hash of a pair of one pair, nested sixty times, takes years.
    """
    stored: dict[int | None, str] = {}
    previous = ""
    for count, (operation, argument, _) in enumerate(pickletools.genops(file)):
        name = operation.name
        if name not in _OPERATIONS or count > _MAX_OPERATIONS:
            raise ValueError(f"the operation {name} does not build plain data, or is one too many")
        if name in _STORE:
            index = len(stored) if name == "MEMOIZE" else argument
            if index is None or index > count:
                raise ValueError("more stored objects than operations")
            stored[index] = previous
        if name in _RECALL and stored.get(argument, "") in _TUPLES:
            raise ValueError("a tuple in two places")
        previous = name if name not in _STORE else previous


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> "_Call":
        if (module, name) not in _CALLS:
            raise ForbiddenName(f"{module}.{name}")
        return _Call(module, name)


class _Call:
    """Stands for a function in a pickle. The results are small new objects without a hash, or the argument itself."""

    __slots__ = ("_key",)

    def __init__(self, module: str, name: str) -> None:
        self._key = module, name

    def __call__(self, *arguments: Any) -> Any:
        return _CALLS[self._key](*arguments)


def _encode(text: str, encoding: str) -> str:
    """Returns the string itself, because many arrays may share it: `ArrayRecord.array` encodes it."""
    if encoding != "latin1" or not isinstance(text, str):
        raise ValueError(f"unexpected encoding {encoding!r}")
    return text


def _pair(items: tuple[Any, ...]) -> list[Any]:
    first, second = items
    return [first, second]


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): lambda *_: ArrayRecord(),
    ("numpy", "dtype"): lambda code, *_: DtypeRecord(code),
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: ArrayRecord(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: ArrayRecord(),
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): dict,
    ("builtins", "tuple"): _pair,  # PaddlePaddle's (name, array)
    ("__builtin__", "tuple"): _pair,  # protocol 2
}
