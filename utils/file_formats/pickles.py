"""Reads pickles without trust: files of `torch.save`, and pickles of plain data and numpy arrays.

Nothing that a file names is run. In a file of torch, objects of other classes become `Inert`; in a plain pickle, only
the names in `_CALLS` mean anything. An array becomes a record of its bytes, because numpy would allocate any shape that
the file states. The plain unpickler is `pickle._Unpickler`: the one in C allocates up to 64 GB for one wrong number in
a file. Bytes and arrays never exceed the file; a malicious file can still take long, or much memory, by naming its
lists, dicts and tuples many times.
"""

import mmap
import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch

from utils.errors import UserError, error_from
from utils.torch_compat import PythonUnpickler

# An archive may unpack to 64 MB + 20 times its size: zeros compress more, trained weights much less.
_FREE_BYTES, _MAX_EXPANSION = 1 << 26, 20


def checked_archive_bytes(file: Path) -> int:
    """The size of a file in bytes; of a ZIP archive, the size after unpacking.

    Raises UserError: a damaged archive, or one that unpacks to many times its size.
    """
    size = file.stat().st_size
    try:
        if not zipfile.is_zipfile(file):
            return size
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    except Exception as error:  # BadZipFile, UnicodeDecodeError, struct.error, ...
        raise error_from(error, f"{file}: is a damaged archive ({type(error).__name__}); give another file") from error
    if unpacked > _FREE_BYTES + _MAX_EXPANSION * size:
        problem = f"{file}: would unpack from {size} to {unpacked} bytes, far more than weights do"
        raise UserError(f"{problem}; give another file")
    return unpacked


class ForbiddenName(Exception):
    """The pickle names a class or function that plain data does not need. The message is its name."""


class DtypeRecord:
    def __init__(self, code: str, *_: Any) -> None:
        self.code, self.byte_order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.byte_order = state[1]


@dataclass(eq=False)
class ArrayRecord:
    """The state of a pickled numpy array. `content`: bytes, a Latin-1 string (old protocols), or a list of objects."""

    shape: Any = ()
    dtype: Any = None
    column_major: Any = False
    content: Any = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, self.column_major, self.content = state

    def array(self) -> np.ndarray:
        """Raises an exception of any type if the record is damaged."""
        data = self.content.encode("latin1") if isinstance(self.content, str) else self.content
        numbers = np.frombuffer(data, self.dtype.byte_order + self.dtype.code)
        return numbers.reshape(self.shape, order="F" if self.column_major else "C")


class ScalarRecord(ArrayRecord):
    """A pickled number or text of numpy."""


def read_plain_pickle(stream: BinaryIO) -> Any:
    """The content of the file, with an `ArrayRecord` for each array.

    Raises ForbiddenName: the file names a class or function that arrays do not need; Exception: of almost any type,
    from a damaged file.
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
        self.stack[-1].__setstate__(state)

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
_SCALARS: dict[str, Callable[..., Any]] = {
    f"numpy.{core}.multiarray.scalar": lambda dtype, data: ScalarRecord((), dtype, False, data)
    for core in ("core", "_core")
}
_CALLS = ARRAYS | {
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): dict,
    ("builtins", "tuple"): tuple,  # PaddlePaddle's (name, array)
    ("__builtin__", "tuple"): tuple,  # protocol 2
}


_MAX_NAMES = 256  # of classes and functions in one file; each costs time for every object
_MAX_LISTS = 8  # of classes of lists, where torch appends to none; each costs another reading of the file
# Nothing of a file runs; one that names what starts programs or imports code is malicious. commands: of Python 2.
_HOSTILE = re.compile(
    r"(?:os|posix|nt|sys|subprocess|commands|pty|socket|shutil|importlib|runpy|ctypes|_?pickle|pip)\..*"
    r"|torch\.(?:hub|load)\b.*|builtins\.(?:eval|exec|compile|open|setattr|__import__)"
)


class _InertType(type):
    """The class of `Inert`: equal to dict, since torch sets the items of dicts only, by a comparison of their types."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is dict or isinstance(other, Inert)

    __hash__ = type.__hash__


class Inert(list[Any], metaclass=_InertType):
    """Takes the place of an object of any class. It accepts all that a pickle can do with one, and does nothing.

    A list, since torch appends to lists only. A subclass for each class in the file has its full name. entries: the
    items of an object that is a dict, such as a defaultdict. attributes: such as the arguments in a Namespace.
    """

    entries: dict[Any, Any]
    attributes: dict[Any, Any]

    def __new__(cls, *_: Any, **__: Any) -> "Inert":
        inert = super().__new__(cls if isinstance(cls, type) else Inert)  # of a nested class, `cls` is an object
        inert.entries, inert.attributes = {}, {}
        return inert

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> "Inert":
        return Inert()

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}

    def append(self, item: Any) -> None: ...

    def extend(self, items: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # a key of a dict, such as a member of an Enum


class _EmptyList(Inert):
    """The class of an object to which the file appends: its objects are plain lists, without a state."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return []


def read_torch_file(file: Path) -> Any:
    """The content, with an `ArrayRecord` for each array, also of one number, and an `Inert` for each other object that
    is no plain data.

    Raises UserError: the file names a function that acts on the machine, or too many classes; Exception: of almost any
    type, from a damaged file.
    """
    names, lists, arrays = set[str](), set[str](), {".".join(name): call for name, call in ARRAYS.items()} | _SCALARS
    try:
        names = set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except pickle.UnpicklingError:  # below
        pass
    except ValueError as error:
        if "torchscript" in str(error):
            raise UserError(f"{file}: is a TorchScript program; give the state_dict of the model") from None
        # torch before 1.6 wrote no archives: the names are found one by one
    while True:
        for name in names:
            _check_name(file, name)
        if len(names) > _MAX_NAMES:
            raise UserError(f"{file}: names more than {_MAX_NAMES} classes; give a plain state_dict")
        inert = {name: _InertType(name, (_EmptyList if name in lists else Inert,), {}) for name in names} | arrays
        known: Any = [(call, name) for name, call in inert.items()]
        try:
            with torch.serialization.safe_globals(known):
                return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if "Only persistent_load of storage" in str(error):  # a module of torch before 1.6, with its source
                raise UserError(f"{file}: {pickled_model(max(names, key=len, default='a module'))}") from None
            if "Unsupported operand" in str(error):
                fix = "save it with torch.save's own protocol"
                raise UserError(f"{file}: has a pickle protocol that torch does not read; {fix}") from None
            of_list = re.search(rf"Can only append to lists, but got <class '{__name__}\.([^']+)'>", str(error))
            if of_list and of_list[1] not in lists:  # torch 2.11 appends to no class of a list
                lists.add(of_list[1])
                if len(lists) > _MAX_LISTS:
                    raise UserError(
                        f"{file}: has lists of more than {_MAX_LISTS} classes; give a plain state_dict"
                    ) from None
                continue
            if (found := re.search(r"GLOBAL ([\w.]+)", str(error))) is None:
                raise
            name = found[1] if "." in found[1] else f"builtins.{found[1]}"
            _check_name(file, name, "is blocked" in str(error) or name in names)
            names.add(name)


def _check_name(file: Path, name: str, is_refused: bool = False) -> None:
    if is_refused or _HOSTILE.fullmatch(name):
        raise UserError(f"{file}: refers to {name[:80]}, which is not data; give a plain state_dict")


def pickled_model(name: str) -> str:
    return f"contains a pickled object ({name[:80]}), which only its program reads; save model.state_dict() there"
