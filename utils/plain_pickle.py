"""Pickles of plain data and numpy arrays, read without an unpickler: nothing that a file names is ever called.

A pickle is a program for a small machine with a stack. Here is the part of that machine that builds texts, numbers,
lists, dicts and arrays; an array becomes a record of its bytes. Whatever else a file asks for is an error, and what
is built never takes much more memory than the file, which the real machine does not promise.
"""

import mmap
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

_MOST_OPERATIONS = 2_000_000  # a second of work; the largest file we know of takes a tenth
# Operations that put their argument on the stack.
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_TEXTS = {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_BYTES = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_ARGUMENT = _NUMBERS | _TEXTS | _BYTES
_CONSTANT: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}


class ForbiddenName(Exception):
    """The pickle names a class or function that plain data do not need; the message is its name."""


@dataclass
class DtypeRecord:
    code: str
    byte_order: str = "="


@dataclass
class ArrayRecord:
    """What a pickled array says of itself. The content is bytes or, in older protocols, a text that stands for bytes;
    of an array of objects, a list."""

    shape: Any = ()
    dtype: DtypeRecord | None = None
    column_major: Any = False
    content: Any = b""

    def data(self) -> bytes:
        return self.content.encode("latin1") if isinstance(self.content, str) else self.content


def read_plain_pickle(stream: BinaryIO) -> Any:
    """What the file holds, its arrays as `ArrayRecord`.

    Raises:
        ForbiddenName: it names something else than arrays need.
        Exception: of almost any type, from a damaged file.
    """
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as file:  # gives no more bytes than there are
        return _Machine().run(file)


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, file: Any) -> Any:
        for count, (operation, argument, _) in enumerate(pickletools.genops(file)):
            if count > _MOST_OPERATIONS:
                raise ValueError("more operations than arrays need")
            self._do(operation.name, argument)
        return self.stack.pop()

    def _do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _ARGUMENT:
            stack.append(argument)
        elif name in _CONSTANT:
            stack.append(_CONSTANT[name]())
        elif name in _CALLS:
            _CALLS[name](self)
        elif name == "GLOBAL":
            stack.append(_known(*argument.split(" ", 1)))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"{name} builds no plain data")

    def pop_to_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_known(module, name))

    def make_tuple(self, length: int) -> None:
        if len(self.stack) < length:
            raise IndexError("an empty stack")
        items = tuple(self.stack[-length:])
        self.stack[-length:] = [items]

    def extend(self, items: list[Any]) -> None:
        _of(list, self.stack[-1]).extend(items)

    def update(self, items: list[Any]) -> None:
        target = _of(dict, self.stack[-1])
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def call(self) -> None:
        arguments, function = _of(tuple, self.stack.pop()), self.stack.pop()
        self.stack.append(_KNOWN[function](*arguments))

    def set_state(self) -> None:
        state, target = _of(tuple, self.stack.pop()), self.stack[-1]
        if isinstance(target, ArrayRecord):
            _, target.shape, dtype, target.column_major, target.content = state
            target.dtype = _of(DtypeRecord, dtype)
        else:
            _of(DtypeRecord, target).byte_order = _of(str, state[1])


_CALLS: dict[str, Callable[[_Machine], None]] = {
    "MARK": _Machine.mark,
    "MEMOIZE": _Machine.memoize,
    "STACK_GLOBAL": _Machine.name,
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


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} in the wrong place")
    return value


def _key(value: Any) -> Any:
    """Tuples in tuples can take for ever to hash."""
    return _of((str, bytes, int, float, type(None)), value)


def _array(*_: Any) -> ArrayRecord:
    return ArrayRecord()


def _dtype(code: str, *_: Any) -> DtypeRecord:
    return DtypeRecord(_of(str, code))


def _text_of_bytes(text: str, encoding: str) -> str:
    """Left as it is until an array's numbers are wanted: one text may stand for many."""
    if encoding != "latin1":
        raise ValueError(f"bytes in {encoding!r}")
    return _of(str, text)


def _ordered_dict(pairs: Any = ()) -> dict:
    return {_key(key): value for key, value in pairs}


def _tuple(items: tuple) -> tuple:
    return _of(tuple, items)


_Name = tuple[str, str]
_KNOWN: dict[_Name, Callable[..., Any]] = {
    ("numpy", "ndarray"): _array,
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("_codecs", "encode"): _text_of_bytes,
    ("collections", "OrderedDict"): _ordered_dict,
    ("builtins", "tuple"): _tuple,
    ("__builtin__", "tuple"): _tuple,  # protocol 2
}


def _known(module: Any, name: Any) -> _Name:
    if (_of(str, module), _of(str, name)) not in _KNOWN:
        raise ForbiddenName(f"{module}.{name}")
    return module, name
