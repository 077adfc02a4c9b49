"""Arrays that all processes share: read-only .npy files, which every process maps, and many strings in two arrays.

A pickled `MappedArrays` is the path of its folder; the receiving process opens the files again.
"""

import logging
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from utils.files import TemporaryFolder
from utils.notes import RUN_LOG

_CHUNK = 4096  # strings that are decoded together
Arrays = Mapping[str, np.ndarray]  # by name


class MappedArrays(dict[str, np.ndarray]):
    """The arrays in the files `{name}.npy` of a folder, which `share_arrays` has written. Raises OSError."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder = folder
        try:
            for name in names:
                # Unlike np.load, open_memmap reads no pickles. A plain view is faster to index than a memmap.
                self[name] = np.lib.format.open_memmap(folder / f"{name}.npy", mode="r").view(np.ndarray)
        except FileNotFoundError:  # the owner ends, as by a signal: a worker of it exits without a word
            raise SystemExit(1) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedArrays, (self.folder, list(self))


def share_arrays(arrays: Arrays) -> Arrays:
    """Writes the arrays to a temporary folder and maps them; without room for it, each process gets a copy of them.

    The folder exists as long as the returned object, at most until this process exits.
    """
    try:
        folder = TemporaryFolder("samples")
        for name, values in arrays.items():
            np.save(Path(folder.name, f"{name}.npy"), values, allow_pickle=False)
        mapped = MappedArrays(Path(folder.name), arrays)
    except OSError:
        _warn_of_copies()
        return arrays
    weakref.finalize(mapped, folder.cleanup)
    return mapped


@cache
def _warn_of_copies() -> None:
    logging.getLogger(RUN_LOG).warning(
        f"{tempfile.gettempdir()}: has no room for the list of images, of which each process has a copy now; "
        "free space, or set TMPDIR"
    )


def to_nfc(text: str) -> str:
    """The text in the form in which names and paths are compared."""
    return normalize("NFC", text)


@dataclass(eq=False)
class PackedStrings:
    """N strings: `encoded` uint8 (bytes,) is their UTF-8 text, `ends` int64 (N,) is the end of each in it.

    A million `str` objects would be copied into every worker process.
    """

    encoded: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _CHUNK):
            part = self.part(first, min(first + _CHUNK, len(self)))
            encoded = part.encoded.tobytes()
            start = 0
            for end in part.ends.tolist():
                yield encoded[start:end].decode("utf-8", "surrogateescape")
                start = end

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self.ends):
            raise IndexError(index)
        start = self.ends[index - 1] if index else 0
        return self.encoded[start : self.ends[index]].tobytes().decode("utf-8", "surrogateescape")

    def part(self, start: int, end: int) -> "PackedStrings":
        """The strings from `start` to `end` - 1, as views."""
        first, last = (int(self.ends[index - 1]) if index else 0 for index in (start, end))
        return PackedStrings(self.encoded[first:last], self.ends[start:end] - first)

    def select(self, indices: np.ndarray) -> "PackedStrings":
        """A copy of the strings at `indices`, which are sorted and unique."""
        lengths = np.diff(self.ends, prepend=0)
        is_selected = np.zeros(len(self), dtype=bool)
        is_selected[indices] = True
        return PackedStrings(self.encoded[np.repeat(is_selected, lengths)], np.cumsum(lengths[indices]))


class StringPacker:
    """Collects strings one by one."""

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._encoded = bytearray()
        self._ends = array("q")
        self._crcs = array("I")
        for string in strings:
            self.add(string)

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, string: str) -> None:
        encoded = in_nfc = string.encode("utf-8", "surrogateescape")
        if not string.isascii():  # of a million paths, nearly all are
            in_nfc = to_nfc(string).encode("utf-8", "surrogateescape")
        self._encoded += encoded
        self._ends.append(len(self._encoded))
        self._crcs.append(zlib.crc32(in_nfc))

    def strings(self) -> PackedStrings:
        return PackedStrings(np.frombuffer(self._encoded, np.uint8), np.frombuffer(self._ends, np.int64))

    def crcs(self) -> np.ndarray:
        """CRC-32 of each string in NFC, uint32 (N,): equal strings have equal values."""
        return np.frombuffer(self._crcs, np.uint32)


def select_rows(arrays: Arrays, indices: np.ndarray) -> dict[str, np.ndarray]:
    """The rows at `indices`, (M,), sorted and unique, of arrays of N rows and of packed strings."""
    selected = dict[str, np.ndarray]()
    for name, values in arrays.items():
        if f"{name}_ends" in arrays:
            selected |= to_arrays(strings_in(arrays, name).select(indices), name)
        elif not name.endswith("_ends"):
            selected[name] = values[indices]
    return selected


def strings_in(arrays: Arrays, name: str) -> PackedStrings:
    """The strings that are stored as the arrays `name` and `name`_ends."""
    return PackedStrings(arrays[name], arrays[f"{name}_ends"])


def to_arrays(strings: PackedStrings | Iterable[str], name: str) -> dict[str, np.ndarray]:
    """The inverse of `strings_in`."""
    packed = strings if isinstance(strings, PackedStrings) else StringPacker(strings).strings()
    return {name: packed.encoded, f"{name}_ends": packed.ends}
