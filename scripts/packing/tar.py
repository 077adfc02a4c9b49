"""Tar shards as WebDataset reads them: an image `KEY.jpg` and its label `KEY.cls`, one pair after another."""

import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from datasets.decoding.decode import FORMATS
from utils.atomic_file import fsync_path, open_atomically

# Pillow's format -> extension of a member. MPO: a JPEG with further pictures behind it.
_EXTENSIONS = {
    "JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "TIFF": "tif", "PPM": "ppm",
}  # fmt: skip
REPAIR = "remove this file and start again with the same arguments"


class Sample(NamedTuple):
    """An encoded image and its label. `position`: its place in the order of the split."""

    position: int
    key: str
    extension: str
    label: int
    data: bytes


class WrittenShard(NamedTuple):
    """A finished shard of the positions `start` to `end` - 1 of a split. `sha256` is the result of `hash_rows`."""

    name: str
    num_bytes: int
    num_samples: int
    start: int
    end: int
    sha256: str


def image_extension(data: bytes) -> str:
    """The extension of the real format of an image that can be decoded."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        return _EXTENSIONS[image.format]


def write_shard(
    path: Path, start: int, sample: Sample, following: Iterator[Sample], max_bytes: int
) -> tuple[WrittenShard, Sample | None]:
    """Writes `sample` and as many following ones as fit; returns also the first one that does not fit.

    The shard is larger than `max_bytes` only if it has one sample. Raises OSError if it cannot be written; then there
    is no file.
    """
    rows, size, end, following_sample = [], 0, 0, sample
    with open_atomically(path, "wb") as file:
        while following_sample is not None:
            sample = following_sample
            name = f"{sample.key}.{sample.extension}"
            members = _member(name, sample.data) + _member(f"{sample.key}.cls", str(sample.label).encode())
            if rows and _closed_size(size + len(members)) > max_bytes:
                break
            file.write(members)
            size, end = size + len(members), sample.position + 1
            rows.append((name, sample.label, zlib.crc32(sample.data)))
            following_sample = next(following, None)
        file.write(bytes(_closed_size(size) - size))
    fsync_path(path.parent)
    return WrittenShard(path.name, _closed_size(size), len(rows), start, end, hash_rows(rows)), following_sample


def _member(name: str, content: bytes) -> bytes:
    """A tar member whose bytes depend on nothing else: no time, no user."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    header = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def _closed_size(size: int) -> int:
    """The size of an archive with `size` bytes of members: two empty blocks end it, and it has whole records."""
    return -(-(size + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def hash_rows(rows: Iterable[tuple[str, int, int]]) -> str:
    """SHA-256 of the samples of a shard: the image's member name, the label, the CRC-32 of the image."""
    sha256 = hashlib.sha256()
    for name, label, crc in rows:
        sha256.update(f"{name}\0{label}\0{crc}\n".encode("utf-8", "surrogateescape"))
    return sha256.hexdigest()
