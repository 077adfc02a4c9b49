"""Tar archives for tests, written by the standard library, and small data sets of shards with real images."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def tar_of(
    files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], tar_format: int = tarfile.PAX_FORMAT, **headers: str
) -> bytes:
    """An archive of these files: names, which may contain surrogates for invalid UTF-8, and contents."""
    options: Any = {"format": tar_format, "encoding": "utf-8", "errors": "surrogateescape", "pax_headers": headers}
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode="w", **options) as tar:
        for name, content in files.items() if isinstance(files, Mapping) else files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def numbered(count: int, first: int = 0) -> dict[str, bytes]:
    """Samples 000000.jpg with a label in .cls; the "images" are texts of several sizes."""
    files = {}
    for number in range(first, first + count):
        files[f"{number:06d}.jpg"] = f"image {number} ".encode() * (1 + 37 * number % 200)
        files[f"{number:06d}.cls"] = str(number % 7).encode()
    return files


def with_header(archive: bytes, position: int, **fields: bytes) -> bytes:
    """The archive with other fields in the header at `position`, and a checksum that fits it."""
    places = {"name": 0, "size": 124, "type": 156, "linkname": 157, "magic": 257, "prefix": 345}
    header = bytearray(archive[position : position + 512])
    for field, value in fields.items():
        header[places[field] : places[field] + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return archive[:position] + bytes(header) + archive[position + 512 :]


def jpeg(seed: int, size: tuple[int, int] = (24, 20)) -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "JPEG")
    return buffer.getvalue()


def write_shard(path: Path, numbers: Iterable[int], classes: int = 2) -> None:
    """Samples `000007.jpg`, `000007.cls` of these numbers, with the labels number % classes."""
    files = {}
    for number in numbers:
        files |= {f"{number:06d}.jpg": jpeg(number), f"{number:06d}.cls": str(number % classes).encode()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of(files))


def write_shards(root: Path, train: int = 4, per_shard: int = 10, val: int = 12) -> Path:
    """`train` shards of `per_shard` samples, and one of `val` samples."""
    for number in range(train):
        write_shard(root / f"train-{number:04d}.tar", range(number * per_shard, (number + 1) * per_shard))
    write_shard(root / "val-0000.tar", range(1000, 1000 + val))
    return root
