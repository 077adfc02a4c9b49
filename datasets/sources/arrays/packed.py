"""Packed data sets, written by `scripts/pack_dataset.py`: all images of a split in one file.

DATA_PATH contains `train.blob`, the images one after another, encoded or as pixels (H, W, C), and the folder
`train.index` with one .npy file per entry of `COLUMNS` and their checksums in `SHA256SUMS`; the same for `val`.
"""

import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.schema import Data
from datasets.decoding.bad_images import BadImage
from datasets.decoding.decode import MAX_ASPECT, MAX_PIXELS, LazyImage, convert_channels
from datasets.sources.arrays.mapped_arrays import MappedArrays
from datasets.sources.arrays.strings import strings_in, to_nfc
from datasets.sources.samples import MAX_FILE_BYTES, EncodedImages, Samples, read_error
from utils.errors import UserError
from utils.files import open_regular_file

CHECKSUMS = "SHA256SUMS"
# Name -> type and number of dimensions. N images: the end of each in the blob, its CRC-32, its label, its size (N, 3)
# as height, width, channels, or (0, 3) if the images are encoded; their names and the class names as packed strings.
COLUMNS = {
    "ends": ("<i8", 1),
    "crcs": ("<u4", 1),
    "targets": ("<i8", 1),
    "shapes": ("<i4", 2),
    "names": ("|u1", 1),
    "names_ends": ("<i8", 1),
    "classes": ("|u1", 1),
    "classes_ends": ("<i8", 1),
}
_FIX = "pack the data again with scripts/pack_dataset.py"


def packed(data: Data, split: str) -> Samples:
    """`{split}.index` and `{split}.blob` in DATA_PATH."""
    index, path = (Path(data.data_path) / f"{split}.{extension}" for extension in ("index", "blob"))
    try:
        checksums = index_checksums(index).encode()
        with open_regular_file(index / CHECKSUMS) as file:
            is_damaged = file.read(len(checksums) + 1) != checksums
        if is_damaged:
            raise ValueError("is damaged (a checksum does not match)")
        arrays = MappedArrays(index, COLUMNS)
        if not _is_consistent(arrays):
            raise ValueError("is damaged (its columns contradict each other)")
        if arrays["ends"][-1] != (blob_bytes := os.stat(path).st_size):
            raise ValueError(f"describes a blob of {arrays['ends'][-1]:,} bytes, but the blob has {blob_bytes:,}")
        return (PackedPixels if len(arrays["shapes"]) else PackedImages)(path, arrays)
    except OSError as error:
        raise UserError(
            f"{error.filename}: cannot be read ({error.strerror}); check DATA.DATA_PATH, or {_FIX}"
        ) from error
    except ValueError as error:
        raise UserError(f"{index}: {error}; {_FIX}") from error


def index_checksums(index: Path) -> str:
    """The checksums of the files of an index, in the format of `sha256sum`; raises OSError if a file is missing."""
    lines = []
    for name in COLUMNS:
        with open_regular_file(index / f"{name}.npy") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}.npy\n")
    return "".join(lines)


def _is_consistent(arrays: Mapping[str, np.ndarray]) -> bool:
    """Tells whether the columns fit each other: checksums do not prevent forgery."""
    if any(arrays[name].dtype.str != dtype or arrays[name].ndim != ndim for name, (dtype, ndim) in COLUMNS.items()):
        return False
    for name in ("names", "classes"):
        edges = np.concatenate([[0], arrays[f"{name}_ends"], [len(arrays[name])]])
        if not (edges[1:] >= edges[:-1]).all():
            return False
    ends, targets, shapes = arrays["ends"], arrays["targets"], arrays["shapes"].astype(np.int64)
    if not 0 < len(arrays["names_ends"]) == len(ends) == len(arrays["crcs"]) == len(targets):
        return False
    sizes = np.diff(ends, prepend=0)  # bytes
    if not (0 <= sizes.min() <= sizes.max() <= MAX_FILE_BYTES):
        return False
    if not (0 <= targets.min() <= targets.max() < len(arrays["classes_ends"])):
        return False
    if shapes.shape == (0, 3):
        return True
    return bool(
        shapes.shape == (len(ends), 3)
        and np.isin(shapes[:, 2], (1, 3)).all()
        and 0 < shapes[:, :2].min() <= shapes[:, :2].max() <= MAX_PIXELS
        and (shapes[:, :2].max(1) <= MAX_ASPECT * shapes[:, :2].min(1)).all()
        and np.array_equal(shapes.prod(1), sizes)
    )


class _Packed(Samples):
    """Images in a blob. Pickled, it is the paths of the blob, the index and the labels."""

    def __init__(self, path: Path, arrays: MappedArrays, labels: MappedArrays | None = None) -> None:
        """`labels`: `targets` that replace the labels of the index."""
        super().__init__(list(map(to_nfc, strings_in(arrays, "classes"))))
        self.has_class_names = self.class_names != [str(label) for label in range(len(self.class_names))]
        self.path = path
        self._file, self._arrays, self._labels = open_regular_file(path), arrays, labels or arrays

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self._arrays, self._labels)

    def checksums(self) -> np.ndarray:
        return self._arrays["crcs"]

    def name(self, index: int) -> str:
        return f"{self.path}: image {index} ({strings_in(self._arrays, 'names')[index]})"

    def read_bytes(self, index: int) -> bytes:
        """The image as it was packed; raises BadImage if it cannot be read or has changed."""
        ends = self._arrays["ends"]
        start = int(ends[index - 1]) if index else 0
        length = int(ends[index]) - start
        try:
            data = os.pread(self._file.fileno(), length, start)
        except OSError as error:
            raise read_error(error, str(self.path), self.name(index), _FIX) from error
        if len(data) < length:
            raise BadImage(self.name(index), f"ends after {len(data):,} of {length:,} bytes", _FIX)
        if zlib.crc32(data) != self._arrays["crcs"][index]:
            raise BadImage(self.name(index), "is damaged (its checksum does not match)", _FIX)
        return data


class PackedImages(_Packed, EncodedImages):
    """Encoded images."""

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {"grey_range": self.grey_range}

    def relative_name(self, index: int, folder: str) -> str:
        """Returns the path that the image had when it was packed."""
        return strings_in(self._arrays, "names")[index]


class PackedPixels(_Packed):
    """Images that were decoded and resized when they were packed."""

    def open(self, index: int, channels: int) -> LazyImage:
        shape = self._arrays["shapes"][index].tolist()
        pixels = torch.frombuffer(bytearray(self.read_bytes(index)), dtype=torch.uint8).view(shape)
        return LazyImage(convert_channels(pixels.permute(2, 0, 1), channels))
