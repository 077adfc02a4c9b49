"""Reads pickles without trust and without torch: files of `torch.save`, and PaddlePaddle's of numpy arrays.

Nothing that a file names is run: only the names in `_CALLS` mean anything, and objects of other classes become `Inert`.
An array becomes a record of its bytes, because numpy would allocate any shape that the file states; a tensor becomes a
record of its place in the file, which is mapped into memory and read where a tensor is used. The unpickler is
Python's own in Python: the one in C allocates up to 64 GB for one wrong number in a file. Bytes and arrays never exceed
the file; a malicious file can still take long, or much memory, by naming its lists, dicts and tuples many times.
"""

import io
import mmap
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from utils.errors import UserError, error_from
from utils.library_compat import PythonUnpickler

# An archive may unpack to 64 MB + 20 times its size: zeros compress more, trained weights much less.
_FREE_BYTES = 1 << 26
_MAX_EXPANSION = 20


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
        raise UserError(
            f"{file}: would unpack from {size} to {unpacked} bytes, far more than weights do; give another file"
        )
    return unpacked


def verify_archive(file: Path) -> None:
    """Compares the content of a ZIP archive with its CRC-32, which torch writes.

    Raises UserError: damaged content, or as `checked_archive_bytes`; Exception: of many types, of a damaged directory;
    OSError.
    """
    checked_archive_bytes(file)
    with zipfile.ZipFile(file) as archive:
        if damaged := archive.testzip():
            raise UserError(f"{file}: is damaged ({damaged} does not match its checksum); use another")


class DtypeRecord:
    def __init__(self, code: str, *_: Any) -> None:
        self.code = code
        self.byte_order = "="

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
        numbers = np.frombuffer(data, self.dtype.byte_order + self.dtype.code).astype(self.dtype.code)
        return numbers.reshape(self.shape, order="F" if self.column_major else "C")


class ScalarRecord(ArrayRecord):
    """A pickled number or text of numpy."""


def _encode(text: str, encoding: str) -> str:
    """Returns the string itself, because many arrays may share it: `ArrayRecord.array` encodes it."""
    if encoding != "latin1" or not isinstance(text, str):
        raise ValueError(f"unexpected encoding {encoding!r}")
    return text


@dataclass(eq=False)
class Storage:
    """The elements of tensors: torch's name of their type, and their bytes, which stay in the file."""

    dtype: str
    data: Any = b""


@dataclass(eq=False)
class TensorRecord:
    """A pickled tensor. Without arguments, one whose elements are not in the file in order: sparse, quantized, meta.

    offset, strides: in elements. Any value may be wrong: a damaged file states any number.
    """

    storage: Storage = field(default_factory=lambda: Storage("uint8"))
    offset: int = 0
    shape: tuple[int, ...] = (1,)
    strides: tuple[int, ...] = (1,)


def _from_buffer(data: Any, dtype: DtypeRecord, shape: Any, order: str) -> ArrayRecord:
    """An array of pickle protocol 5."""
    return ArrayRecord(shape, dtype, order == "F", data)


_CALLS: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _encode,
    "builtins.tuple": tuple,  # PaddlePaddle's (name, array)
    "__builtin__.tuple": tuple,  # protocol 2
    "builtins.set": set,
    "__builtin__.set": set,
    "collections.OrderedDict": dict,
    "numpy.dtype": DtypeRecord,
    "numpy.ndarray": ArrayRecord,
    "torch.Size": tuple,
    "torch._tensor._rebuild_from_type_v2": lambda function, _, arguments, __: function(*arguments),
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "torch._utils._rebuild_parameter_with_state": lambda tensor, *_: tensor,
    "torch._utils._rebuild_tensor": TensorRecord,
    "torch._utils._rebuild_tensor_v2": lambda *of_tensor: TensorRecord(*of_tensor[:4]),
}
for _core in ("core", "_core"):
    _CALLS[f"numpy.{_core}.multiarray._reconstruct"] = lambda *_: ArrayRecord()
    _CALLS[f"numpy.{_core}.numeric._frombuffer"] = _from_buffer
    _CALLS[f"numpy.{_core}.multiarray.scalar"] = lambda dtype, data: ScalarRecord((), dtype, False, data)
_STORAGES = {  # torch's names of the type of a storage, and of its elements
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "Untyped": "uint8",
    "ComplexDouble": "complex128", "ComplexFloat": "complex64",
    "QInt8": "int8", "QUInt8": "uint8", "QInt32": "int32",  # of quantized tensors
}  # fmt: skip
_BYTES = {dtype: 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize for dtype in _STORAGES.values()}


class Inert(list[Any]):
    """Takes the place of an object of any class. It accepts all that a pickle can do with one, and does nothing.

    A subclass for each class in the file has its full name. It is a list, for objects that are one. entries: the items
    of an object that is a dict, such as a defaultdict. attributes: such as the arguments in a Namespace.
    """

    entries: dict[Any, Any]
    attributes: dict[Any, Any]

    def __new__(cls, *_: Any, **__: Any) -> "Inert":
        inert = super().__new__(cls if isinstance(cls, type) else Inert)  # of a nested class, `cls` is an object
        inert.entries = {}
        inert.attributes = {}
        return inert

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> "Inert":
        return Inert()

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}

    def add(self, item: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # a key of a dict, such as a member of an Enum


class _Unpickler(PythonUnpickler):  # type: ignore[misc]  # of a class without types
    """storages: by their keys in the file. load: key -> the bytes of a storage."""

    def __init__(self, stream: Any, file: Path, load: Callable[[str], Any] = lambda key: b"") -> None:
        super().__init__(stream, encoding="latin1")
        self.file = file
        self.load_bytes = load
        self.storages = dict[str, Storage]()
        self.classes = dict[str, type[Inert]]()

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in _CALLS:
            return _CALLS[full]
        if full.startswith("torch._utils._rebuild_"):
            return lambda *_: TensorRecord()
        if module == "torch" and name in _BYTES:  # such as `momentum_dtype` of timm's adafactorbv
            import torch  # late: few files need it

            return getattr(torch, name)
        if module.startswith("torch") and name.endswith("Storage"):
            return name.removesuffix("Storage")
        return self.classes.setdefault(full, type(full, (Inert,), {}))

    def persistent_load(self, pid: Any) -> Storage:
        kind, of_elements, key, *_ = pid
        if kind == "module":  # of torch before 1.6, with its source
            raise UserError(f"{self.file}: {pickled_model(of_elements.__name__)}")
        if key not in self.storages:
            self.storages[key] = Storage(_STORAGES[of_elements], self.load_bytes(key))
        return self.storages[key]

    def load_build(self) -> None:
        """Sets the state of a record; dicts and the functions of `_CALLS` keep theirs."""
        state = self.stack.pop()
        set_state = getattr(self.stack[-1], "__setstate__", None)
        if set_state:
            set_state(state)

    def load_bytearray8(self) -> None:
        """Python's own would allocate the size that the file states, which may be larger than the file."""
        (size,) = struct.unpack("<Q", self.read(8))
        content = self.read(size)
        if len(content) != size:
            raise EOFError("bytearray")
        self.append(bytearray(content))

    dispatch: ClassVar[dict[int, Callable[..., None]]] = PythonUnpickler.dispatch | {
        pickle.BUILD[0]: load_build,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }


def read_pickle(file: Path, is_plain: bool = False) -> Any:
    """The content of a file of torch, with a record for each tensor and array, and an `Inert` for each other object.

    is_plain: one pickle, as PaddlePaddle writes it.
    Raises UserError: a damaged archive, or a pickled model; Exception: of almost any type, from another damaged file.
    """
    checked_archive_bytes(file)
    with open(file, "rb") as stream:  # reads never exceed the file size; torch takes writable memory only
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    if is_plain:
        return _Unpickler(mapped, file).load()
    if not zipfile.is_zipfile(file):
        return _read_old_file(file, mapped)
    with zipfile.ZipFile(file) as archive:
        return _read_archive(file, archive, memoryview(mapped))


def _read_archive(file: Path, archive: zipfile.ZipFile, mapped: memoryview) -> Any:
    members = {member.filename: member for member in archive.infolist()}
    pickled = next(name for name in members if name.endswith("/data.pkl"))
    folder = pickled.removesuffix("data.pkl")
    if f"{folder}byteorder" in members and archive.read(f"{folder}byteorder") != b"little":
        raise UserError(f"{file}: is of a big-endian machine; save it again on another one")

    def load(key: str) -> Any:
        member = members[f"{folder}data/{key}"]
        if member.compress_type:
            return bytearray(archive.read(member))
        lengths = struct.unpack_from("<HH", mapped, member.header_offset + 26)  # of the name, and of another field
        start = member.header_offset + 30 + sum(lengths)
        return mapped[start : start + member.file_size]

    return _Unpickler(io.BytesIO(archive.read(pickled)), file, load).load()


def _read_old_file(file: Path, mapped: mmap.mmap) -> Any:
    """Of torch before 1.6: pickles of three numbers, the content and the keys of its storages; then the storages."""
    for _ in range(3):
        _Unpickler(mapped, file).load()
    unpickler = _Unpickler(mapped, file)
    content = unpickler.load()
    keys = _Unpickler(mapped, file).load()
    view = memoryview(mapped)
    start = mapped.tell()
    for key in keys:
        storage = unpickler.storages[key]
        count = int.from_bytes(view[start : start + 8], "little")
        start += 8
        end = start + count * _BYTES[storage.dtype]
        storage.data = view[start:end]
        start = end
    return content


def pickled_model(name: str) -> str:
    return f"contains a pickled object ({name[:80]}), which only its program reads; save model.state_dict() there"
