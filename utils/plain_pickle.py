"""Reads pickles of plain data and numpy arrays without an unpickler: no function that a file names is called.

A pickle is a program for a stack machine. This module implements the operations that build strings, numbers, lists,
dicts and arrays; an array becomes a record of its bytes. Any other operation is an error. The result needs little more
memory than the file, which Python's unpickler does not guarantee.
"""

import mmap
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

_MAX_OPERATIONS = 2_000_000  # about a second; the largest known weight file needs a tenth of it
# Operations that push their argument onto the stack.
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_BYTES = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_ARGUMENT = _NUMBERS | _STRINGS | _BYTES
_CONSTANT: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}


class ForbiddenName(Exception):
    """The pickle names a class or function that plain data does not need. The message is its name."""


@dataclass
class DtypeRecord:
    code: str
    byte_order: str = "="


@dataclass
class ArrayRecord:
    """The state of a pickled numpy array. `content`: bytes, a latin-1 string (old protocols), or a list of objects."""

    shape: Any = ()
    dtype: DtypeRecord | None = None
    column_major: Any = False
    content: Any = b""

    def data(self) -> bytes:
        return self.content.encode("latin1") if isinstance(self.content, str) else self.content


def read_plain_pickle(stream: BinaryIO) -> Any:
    """The content of the file, with an `ArrayRecord` for each array.

    Raises:
        ForbiddenName: the file names a class or function other than those of arrays.
        Exception: of almost any type, from a damaged file.
    """
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as file:  # reads never exceed the file size
        return _Machine().run(file)


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, file: Any) -> Any:
        for count, (operation, argument, _) in enumerate(pickletools.genops(file)):
            if count > _MAX_OPERATIONS:
                raise ValueError("too many operations")
            self._execute(operation.name, argument)
        return self.stack.pop()

    def _execute(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _ARGUMENT:
            stack.append(argument)
        elif name in _CONSTANT:
            stack.append(_CONSTANT[name]())
        elif name in _CALLS:
            _CALLS[name](self)
        elif name == "GLOBAL":
            stack.append(_check_global(*argument.split(" ", 1)))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"the operation {name} does not build plain data")

    def pop_to_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def push_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_check_global(module, name))

    def make_tuple(self, length: int) -> None:
        if len(self.stack) < length:
            raise IndexError("an empty stack")
        items = tuple(self.stack[-length:])
        self.stack[-length:] = [items]

    def extend(self, items: list[Any]) -> None:
        _typed(list, self.stack[-1]).extend(items)

    def update(self, items: list[Any]) -> None:
        target = _typed(dict, self.stack[-1])
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_checked_key(key)] = value

    def call(self) -> None:
        arguments, function = _typed(tuple, self.stack.pop()), self.stack.pop()
        self.stack.append(_GLOBALS[function](*arguments))

    def set_state(self) -> None:
        state, target = _typed(tuple, self.stack.pop()), self.stack[-1]
        if isinstance(target, ArrayRecord):
            _, target.shape, dtype, target.column_major, target.content = state
            target.dtype = _typed(DtypeRecord, dtype)
        else:
            _typed(DtypeRecord, target).byte_order = _typed(str, state[1])


_CALLS: dict[str, Callable[[_Machine], None]] = {
    "MARK": _Machine.mark,
    "MEMOIZE": _Machine.memoize,
    "STACK_GLOBAL": _Machine.push_global,
    "TUPLE": lambda machine: machine.stack.append(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine: machine.make_tuple(1),
    "TUPLE2": lambda machine: machine.make_tuple(2),
    "TUPLE3": lambda machine: machine.make_tuple(3),
    "LIST": lambda machine: machine.stack.append(machine.pop_to_mark()),
    "APPEND": lambda machine: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine: machine.extend(machine.pop_to_mark()),
    "DICT": lambda machine: (items := machine.pop_to_mark(), machine.stack.append({}), machine.update(items)),
    "SETITEM": lambda machine: machine.update([machine.stack.pop(), machine.stack.pop()][::-1]),
    "SETITEMS": lambda machine: machine.update(machine.pop_to_mark()),
    "REDUCE": _Machine.call,
    "BUILD": _Machine.set_state,
}


def _typed(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"unexpected {type(value).__name__}")
    return value


def _checked_key(value: Any) -> Any:
    """Only scalars: hashing nested tuples can take exponential time."""
    return _typed((str, bytes, int, float, type(None)), value)


def _array(*_: Any) -> ArrayRecord:
    return ArrayRecord()


def _dtype(code: str, *_: Any) -> DtypeRecord:
    return DtypeRecord(_typed(str, code))


def _encode(text: str, encoding: str) -> str:
    """Returns the string itself, because many arrays may share it: `ArrayRecord.data` encodes it."""
    if encoding != "latin1":
        raise ValueError(f"unexpected encoding {encoding!r}")
    return _typed(str, text)


def _ordered_dict(pairs: Any = ()) -> dict:
    return {_checked_key(key): value for key, value in pairs}


def _tuple(items: tuple) -> tuple:
    return _typed(tuple, items)


_Name = tuple[str, str]
_GLOBALS: dict[_Name, Callable[..., Any]] = {
    ("numpy", "ndarray"): _array,
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _ordered_dict,
    ("builtins", "tuple"): _tuple,
    ("__builtin__", "tuple"): _tuple,  # protocol 2
}


def _check_global(module: Any, name: Any) -> _Name:
    if (_typed(str, module), _typed(str, name)) not in _GLOBALS:
        raise ForbiddenName(f"{module}.{name}")
    return module, name
