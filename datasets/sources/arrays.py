"""Arrays in a file that every process maps: no worker holds a copy, and what it is sent is the open file.

The file: a mark, the header's length (8 bytes, little endian), the SHA-256 of all that follows it, the header (JSON:
what the arrays are about, and of each its name, type and shape), the arrays, each from a multiple of 64 bytes on.
"""

import hashlib
import json
import math
import mmap
import os
import tempfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing import reduction
from typing import Any, BinaryIO

import numpy as np

_MARK = b"ampvit\0\1"
_LENGTH_BYTES = 8
_DIGEST_START = len(_MARK) + _LENGTH_BYTES
_PART_BYTES = 64
_TYPES = ("|u1", "<i4", "<u4", "<i8")


class SharedFile:
    """An open file that is pickled as such: who unpickles it reads the same bytes, whatever its name stands for then.

    It can be pickled for a process that is being started, or for one that this process started.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.file.fileno()),)

    def read_at(self, start: int, length: int) -> bytes:
        """`length` bytes, or fewer where the file ends."""
        parts = []
        while length and (part := os.pread(self.file.fileno(), length, start)):
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __len__(self) -> int:
        return os.fstat(self.file.fileno()).st_size


def _received(descriptor: Any) -> SharedFile:
    return SharedFile(os.fdopen(descriptor.detach(), "rb"))


class SharedArrays(Mapping[str, np.ndarray]):
    """The arrays of a file, to be read only, and what they are `about`. Pickled, it takes some hundred bytes."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        self._map = mmap.mmap(file.file.fileno(), 0, prot=mmap.PROT_READ)
        self.about, self._arrays = _parsed(self._map)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedArrays, (self._file,)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def open_arrays(file: BinaryIO) -> SharedArrays:
    """The arrays of a file, which from here on belongs to them.

    Raises:
        ValueError: it was not written by `write_arrays`, or is not as it was written; the text says which.
    """
    shared = SharedFile(file)
    with _mapped(shared) as content:
        if content[: len(_MARK)] != _MARK:
            raise ValueError("is no index")
        digest_end = _DIGEST_START + hashlib.sha256().digest_size
        with memoryview(content) as view:
            digest = hashlib.sha256(view[digest_end:]).digest()
        if content[_DIGEST_START:digest_end] != digest:
            raise ValueError("is damaged (its checksum does not match)")
    return SharedArrays(shared)


def _mapped(file: SharedFile) -> mmap.mmap:
    if len(file) < _PART_BYTES:
        raise ValueError("is no index")
    return mmap.mmap(file.file.fileno(), 0, prot=mmap.PROT_READ)


def _parsed(content: mmap.mmap) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header's claims are checked before anything is made of them: a forger can write a checksum as well."""
    header_bytes = int.from_bytes(content[len(_MARK) : _DIGEST_START], "little")
    start = _DIGEST_START + hashlib.sha256().digest_size
    arrays = {}
    try:
        header = json.loads(content[start : start + header_bytes])
        about, start = dict(header["about"]), _next_part(start + header_bytes)
        for name, kind, shape in header["arrays"]:
            if kind not in _TYPES or not all(type(side) is int and side >= 0 for side in shape):
                raise ValueError(f"array {name!r}")
            end = start + np.dtype(kind).itemsize * math.prod(shape)
            if end > len(content):
                raise ValueError(f"array {name!r} ends outside")
            arrays[name] = np.ndarray(shape, kind, content, start)
            start = _next_part(end)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError("is damaged (its header makes no sense)") from error
    return about, arrays


def _next_part(place: int) -> int:
    return -(-place // _PART_BYTES) * _PART_BYTES


def write_arrays(file: BinaryIO, about: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes them to a new file, `about` being of what JSON holds; an OSError where that fails."""
    kinds = [(name, values.dtype.str, values.shape) for name, values in arrays.items()]
    header = json.dumps({"about": about, "arrays": kinds}).encode()
    start = _DIGEST_START + hashlib.sha256().digest_size
    padding = bytes(_next_part(start + len(header)) - start - len(header))
    parts = [header + padding]
    for values in arrays.values():
        parts += [np.ascontiguousarray(values).reshape(-1).view(np.uint8), bytes(-values.nbytes % _PART_BYTES)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    file.write(_MARK + len(header).to_bytes(_LENGTH_BYTES, "little") + digest.digest())
    for part in parts:
        file.write(part)
    file.flush()


def shared_arrays(about: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> SharedArrays:
    """The same in a file without a name."""
    file = _nameless_file()
    write_arrays(file, about, arrays)
    return SharedArrays(SharedFile(file))


def _nameless_file() -> BinaryIO:
    """In memory, where the system has such files."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("ampvit"), "w+b")
    return tempfile.TemporaryFile()


class Texts(Sequence[str]):
    """Many texts in two arrays, or the `chosen` of them: a million str objects would be copied into each worker."""

    def __init__(self, encoded: np.ndarray, ends: np.ndarray, chosen: np.ndarray | None = None) -> None:
        self._encoded, self._ends, self._chosen = encoded, ends, chosen

    def __len__(self) -> int:
        return len(self._ends) if self._chosen is None else len(self._chosen)

    def __getitem__(self, place: int) -> str:
        if self._chosen is not None:
            place = self._chosen[place]
        elif not 0 <= place < len(self._ends):
            raise IndexError(place)
        start = self._ends[place - 1] if place else 0
        return self._encoded[start : self._ends[place]].tobytes().decode("utf-8", "surrogateescape")

    def at(self, places: np.ndarray) -> "Texts":
        return Texts(self._encoded, self._ends, places if self._chosen is None else self._chosen[places])


class TextPacker:
    """Takes texts one by one and packs them into arrays."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._encoded, self._ends, self._crcs = bytearray(), array("q"), array("I")
        for text in texts:
            self.add(text)

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, text: str) -> None:
        encoded = text.encode("utf-8", "surrogateescape")
        self._encoded += encoded
        self._ends.append(len(self._encoded))
        self._crcs.append(zlib.crc32(encoded))

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """As `texts_in` takes them: uint8 (bytes,) and int64 (N,)."""
        return {
            name: np.frombuffer(self._encoded, np.uint8),
            f"{name}_ends": np.frombuffer(self._ends, np.int64),
        }

    def crcs(self) -> np.ndarray:
        """uint32 (N,): like texts have the same."""
        return np.frombuffer(self._crcs, np.uint32)


def texts_in(arrays: Mapping[str, np.ndarray], name: str) -> Texts:
    return Texts(arrays[name], arrays[f"{name}_ends"])


def check_kinds(arrays: Mapping[str, np.ndarray], kinds: Mapping[str, tuple[str, int]]) -> None:
    """Raises a ValueError unless there are arrays of these names, each of that type and number of dimensions."""
    for name, (kind, dimensions) in kinds.items():
        found = arrays.get(name)
        if found is None or found.dtype.str != kind or found.ndim != dimensions:
            raise ValueError(f"is damaged (its array {name!r} is not what it should be)")


def check_texts(arrays: Mapping[str, np.ndarray], *names: str) -> None:
    """Raises a ValueError unless there are texts of these names, which lie one behind the other."""
    for name in names:
        check_kinds(arrays, {name: ("|u1", 1), f"{name}_ends": ("<i8", 1)})
        edges = np.concatenate([[0], arrays[f"{name}_ends"], [len(arrays[name])]])
        if not (edges[1:] >= edges[:-1]).all():
            raise ValueError(f"is damaged (its texts {name!r} lie outside)")


def all_texts(values: Any) -> bool:
    """Whether a header's value is a list of texts."""
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
