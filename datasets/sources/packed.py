"""Images packed into one file per split, and read from it by their places.

A folder holds `train.blob`, the images one behind the other, as they were encoded or as pixels (H, W, C), and
`train.index`: where each ends, its CRC-32, target and name. The same for `val`. It is written by
`scripts/pack_dataset.py`.
"""

import os
import zlib
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch

from configs.schema import Data
from datasets.decoding.bad_images import BadImage
from datasets.decoding.decode import MAX_ASPECT, MAX_PIXELS, Picture
from datasets.sources.arrays import (
    SharedArrays,
    SharedFile,
    TextPacker,
    all_texts,
    check_kinds,
    check_texts,
    open_arrays,
    texts_in,
    write_arrays,
)
from datasets.sources.samples import MAX_FILE_BYTES, NOT_THE_FILES_FAULT, EncodedImages, Samples, with_channels
from utils.errors import UserError
from utils.files import open_regular_file

_FORMAT = "packed 1"
_CURE = "pack the data again"


class Packable(NamedTuple):
    """`data` is an encoded image, or the pixels of one of `shape` (H, W, C)."""

    data: bytes
    target: int
    name: str
    shape: tuple[int, ...] | None = None


def write_packed(folder: Path, split: str, class_names: list[str], images: Iterable[Packable]) -> int:
    """Writes the files of a split, and that they reach the disk; returns how many images they hold.

    The images are all encoded, or all pixels. An OSError where they cannot be written.
    """
    names, ends, crcs, targets, shapes = TextPacker(), array("q"), array("I"), array("q"), array("i")
    with open(folder / f"{split}.blob", "xb") as blob:
        for image in images:
            blob.write(image.data)
            ends.append(blob.tell())
            crcs.append(zlib.crc32(image.data))
            targets.append(image.target)
            names.add(image.name)
            shapes.extend(image.shape or ())
        _reach_disk(blob)
    with open(folder / f"{split}.index", "xb") as index:
        columns = {"ends": ends, "crcs": crcs, "targets": targets}
        arrays = {name: np.asarray(values) for name, values in columns.items()} | names.arrays("names")
        arrays["shapes"] = np.asarray(shapes).reshape(-1, 3)
        write_arrays(index, {"format": _FORMAT, "class_names": class_names}, arrays)
        _reach_disk(index)
    return len(names)


def _reach_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def read_packed(options: Data, split: str) -> Samples:
    """`{split}.index` and `{split}.blob` in DATA_PATH."""
    index, path = (Path(options.data_path) / f"{split}.{ending}" for ending in ("index", "blob"))
    try:
        arrays, blob = open_arrays(open_regular_file(index)), SharedFile(open_regular_file(path))
        _check(arrays, len(blob))
    except OSError as error:
        raise UserError(
            f"{error.filename}: cannot be read ({error.strerror}); check DATA.DATA_PATH, or pack it with "
            "scripts/pack_dataset.py"
        ) from error
    except ValueError as error:
        raise UserError(f"{index}: {error}; {_CURE}") from error
    return (PackedPixels if len(arrays["shapes"]) else PackedImages)(path, blob, arrays)


def _check(arrays: SharedArrays, blob_bytes: int) -> None:
    """Raises a ValueError if anything that is claimed of the blob cannot be so."""
    check_texts(arrays, "names")
    kinds = {"ends": ("<i8", 1), "crcs": ("<u4", 1), "targets": ("<i8", 1), "shapes": ("<i4", 2)}
    check_kinds(arrays, kinds)
    ends, targets, class_names = arrays["ends"], arrays["targets"], arrays.about.get("class_names")
    images = len(texts_in(arrays, "names"))
    if arrays.about.get("format") != _FORMAT or not all_texts(class_names):
        raise ValueError("is no index of packed images")
    if not (0 < images == len(ends) == len(arrays["crcs"]) == len(targets)):
        raise ValueError("is damaged (it does not fit together)")
    if not 0 <= targets.min() <= targets.max() < len(class_names):
        raise ValueError("is damaged (a target has no class)")
    starts = np.append(0, ends[:-1])
    if ends[-1] != blob_bytes:
        raise ValueError(f"is of a blob of {ends[-1]:,} bytes, which now has {blob_bytes:,}")
    if not (starts <= ends).all() or starts.min() < 0 or (ends - starts).max() > MAX_FILE_BYTES:
        raise ValueError("is damaged (an image lies outside the blob)")
    _check_shapes(arrays["shapes"], ends - starts)


def _check_shapes(shapes: np.ndarray, sizes: np.ndarray) -> None:
    """(0, 3) of encoded images, (N, 3) of pixels."""
    if shapes.shape == (0, 3):
        return
    sides, channels = shapes[:, :2].astype(np.int64), shapes[:, 2:]
    if (
        shapes.shape != (len(sizes), 3)
        or not np.isin(channels, (1, 3)).all()
        or not (0 < sides.min() <= sides.max() <= MAX_PIXELS)
        or (sides.max(1) > MAX_ASPECT * sides.min(1)).any()
        or not np.array_equal(shapes.astype(np.int64).prod(1), sizes)
    ):
        raise ValueError("is damaged (an image has not the size of its pixels)")


class Packed(Samples):
    """What both kinds have in common. Pickled, it is two open files."""

    def __init__(self, path: Path, blob: SharedFile, arrays: SharedArrays) -> None:
        super().__init__(arrays.about["class_names"])
        self.path = path
        self._blob, self._arrays = blob, arrays

    @property
    def targets(self) -> np.ndarray:
        return self._arrays["targets"]

    def name(self, index: int) -> str:
        return f"{self.path}: image {index} ({texts_in(self._arrays, 'names')[index]})"

    def where(self, index: int) -> str:
        return self.name(index)

    def read(self, index: int) -> bytes:
        """As it was packed; a BadImage where it is so no more."""
        ends = self._arrays["ends"]
        start = int(ends[index - 1]) if index else 0
        length = int(ends[index]) - start
        try:
            data = self._blob.read_at(start, length)
        except OSError as error:
            if error.errno in NOT_THE_FILES_FAULT:
                raise UserError(
                    f"{self.path}: cannot be read ({error.strerror}); see to the machine, and resume"
                ) from error
            raise BadImage(self.name(index), f"cannot be read ({error.strerror})", _CURE) from error
        if len(data) < length:
            raise BadImage(self.name(index), f"ends after {len(data):,} of {length:,} bytes", _CURE)
        if zlib.crc32(data) != self._arrays["crcs"][index]:
            raise BadImage(self.name(index), "is damaged (its checksum does not match)", _CURE)
        return data


class PackedImages(Packed, EncodedImages):
    """Images as they were encoded."""

    def encoded(self, index: int) -> bytes:
        return self.read(index)


class PackedPixels(Packed):
    """Images that were decoded, and made smaller, when they were packed."""

    def open(self, index: int, channels: int) -> Picture:
        shape = self._arrays["shapes"][index].tolist()
        pixels = torch.frombuffer(bytearray(self.read(index)), dtype=torch.uint8).view(shape)
        return Picture(with_channels(pixels.permute(2, 0, 1), channels))
