"""Tar shards as WebDataset reads them: an image `KEY.jpg` and its label `KEY.cls`, one pair after another.

A record of the finished shards lets an interrupted script continue, and refuses other data.
"""

import hashlib
import json
import os
import posixpath
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tqdm import tqdm

from datasets.decoding.decode import open_with_pillow
from datasets.loading.workers import default_num_workers
from datasets.shards.index import Index, Shard, join, to_index
from datasets.shards.records import DamagedShard, chunks_of, read_records
from datasets.sources.shared_arrays import PackedStrings, StringPacker
from utils.errors import UserError
from utils.files import fsync_path, open_atomically, open_regular_file, own_file
from utils.locks import locked
from utils.system import own_share

# Pillow's format -> extension of a member, where it is another word. MPO: a JPEG with further pictures behind it.
_EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif", "HEIF": "heic"}
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")  # WebDataset skips a member whose name has a line break
_LEADING_UNDERSCORES = re.compile("^_{2,}")  # members such as __meta__/x are no samples in WebDataset
GROUP_KEY = "group"  # in the .json of a sample
PROGRESS, _LOCK = "_progress.jsonl", ".lock"
_REPAIR = "remove this file and start again with the same arguments"


class Sample(NamedTuple):
    """An encoded image, its label and its group. `position`: its place in the order of the split."""

    position: int
    key: str
    extension: str
    label: int
    data: bytes
    group: str = ""


class WrittenShard(NamedTuple):
    """A finished shard of the positions `start` to `end` - 1 of a split. `sha256` is the result of `hash_rows`."""

    name: str
    num_bytes: int
    num_samples: int
    start: int
    end: int
    sha256: str


def unique_keys(paths: Iterable[str]) -> PackedStrings:
    """The key of each image, given the images' paths relative to the data: equal ones get a number, in order."""
    keys, used, last_number = StringPacker(), set(), Counter()
    for path in paths:
        base = key = _key_of(path)
        while key in used:
            last_number[base] += 1
            key = f"{base}_{last_number[base] + 1}"
        used.add(key)
        keys.add(key)
    return keys.strings()


def _key_of(path: str) -> str:
    """The path without its extension, relative and without `..`, and no dot in its last part.

    WebDataset's rule: the key of a member ends at the first dot of the last part of its name.
    """
    folder, name = posixpath.split(posixpath.normpath(path.strip("/") or "image"))
    folders = ["__" if part == ".." else part for part in folder.split("/") if part]
    stem = _LEADING_UNDERSCORES.sub("_", os.path.splitext(name)[0].replace(".", "_"))
    key = _CONTROL_CHARACTERS.sub("_", "/".join([*folders, stem]))
    return _LEADING_UNDERSCORES.sub("_", key)


def image_extension(data: bytes) -> str:
    """The extension of the real format of an image that can be decoded."""
    with open_with_pillow(data, str) as image:
        return "pgm" if data.startswith(b"P5") else _EXTENSIONS.get(str(image.format), str(image.format).lower())


def write_shard(
    path: Path, start: int, sample: Sample | None, following: Iterator[Sample], max_bytes: int
) -> tuple[WrittenShard, Sample | None]:
    """Writes `sample` and as many following ones as fit; returns also the first one that does not fit.

    The shard is larger than `max_bytes` only if it has one sample. Raises OSError; then there is no file.
    """
    rows, size, end = [], 0, 0
    with open_atomically(path, "wb") as file:
        while sample:
            name = f"{sample.key}.{sample.extension}"
            members = _member(name, sample.data) + _member(f"{sample.key}.cls", str(sample.label).encode())
            if sample.group:
                members += _member(f"{sample.key}.json", json.dumps({GROUP_KEY: sample.group}).encode())
            if rows and _closed_size(size + len(members)) > max_bytes:
                break
            file.write(members)
            size, end = size + len(members), sample.position + 1
            rows.append((name, sample.label, zlib.crc32(sample.data), *filter(None, [sample.group])))
            sample = next(following, None)
        file.write(bytes(_closed_size(size) - size))
    fsync_path(path.parent)
    return WrittenShard(path.name, _closed_size(size), len(rows), start, end, hash_rows(rows)), sample


def _member(name: str, content: bytes) -> bytes:
    """A tar member whose bytes depend on nothing else: no time, no user."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    header = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def _closed_size(size: int) -> int:
    """The size of an archive with `size` bytes of members: two empty blocks end it, and it has whole records."""
    return -(-(size + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def hash_rows(rows: Iterable[tuple[object, ...]], header: str = "") -> str:
    """SHA-256 of rows of values; in a row of a shard: the image's member name, the label, the CRC-32 of the image."""
    sha256 = hashlib.sha256(header.encode())
    for row in rows:
        sha256.update("\0".join(map(str, row)).encode("utf-8", "surrogateescape") + b"\n")
    return sha256.hexdigest()


def read_back(folder: Path, shards: Sequence[WrittenShard], group_key: str = "") -> Index:
    """The index of the shards in `folder`, which it reads as training does. Without versions, it is valid for copies.

    Raises OSError, and UserError: a shard is damaged, or its keys, labels or CRC-32 differ from the written ones.
    """

    def index_of(shard: WrittenShard) -> Index:
        path = folder / shard.name
        try:
            chunks = chunks_of(open_regular_file(path))
            records, _ = read_records(chunks, str(path), shard.num_bytes, group_key=group_key)
        except DamagedShard as error:
            raise UserError(f"{error}; {_REPAIR}") from error
        rows = ((record.name, record.label, record.crc, *filter(None, [record.group])) for record in records)
        if hash_rows(rows) != shard.sha256:
            raise UserError(f"{path}: read back, it is not as it was written; {_REPAIR}")
        return to_index(Shard(shard.name, shard.num_bytes), records, str(path), group_key)

    with ThreadPoolExecutor(default_num_workers(own_share(), on_gpu=False)) as pool:
        bar = tqdm(pool.map(index_of, shards), "reading back", len(shards), unit="shard", leave=False, disable=None)
        return join(list(bar), group_key=group_key)


class Progress(NamedTuple):
    """`finished`: the shards by name. The file has the plan in its first line and one more line for each shard."""

    file: BinaryIO
    finished: dict[str, WrittenShard]

    def add(self, line: dict[str, Any]) -> None:
        """Records a shard that is on the disk; raises OSError."""
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())


@contextmanager
def open_progress(folder: Path, plan: dict[str, Any]) -> Iterator[Progress]:
    """Creates `folder` or continues it, and locks it until the block ends. `plan`: all that the shards depend on.

    Raises OSError, and UserError: the folder has other files or shards of another plan, or another process uses it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(path.name for path in folder.iterdir() if not path.match(".*"))
    if others and PROGRESS not in others:
        raise UserError(f"{folder}: contains other files ({others[0]}); give another folder with -output")
    lock = locked(folder / _LOCK, 0.0, "wait, or give another -output", is_essential=True)
    with lock, open(folder / PROGRESS, "ab+", opener=own_file) as file:
        for path in folder.glob(".*.tmp"):  # of a writer that was killed
            path.unlink()
        file.seek(0)
        # The last part is empty, or a line that a crash left incomplete.
        *lines, incomplete = file.read().split(b"\n")
        file.truncate(file.tell() - len(incomplete))
        try:
            before, *rows = map(json.loads, lines or [json.dumps(plan)])
            finished = {shard.name: shard for shard in (WrittenShard(**row) for row in rows)}
        except (ValueError, TypeError) as error:
            raise UserError(f"{folder / PROGRESS}: is damaged; remove {folder} and start again") from error
        if before != plan:
            raise UserError(
                f"{folder}: contains shards of other data, -shard_mb or -size; give the same, or another -output"
            )
        progress = Progress(file, finished)
        if not lines:
            progress.add(plan)
        yield progress
