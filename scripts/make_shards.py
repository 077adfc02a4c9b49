"""Writes a data set as tar shards, for -dataset=tar and for every program that reads WebDataset's format.

    python scripts/make_shards.py -dataset=imagenet2012 -data_path=/dataset/imagenet -output /fast/imagenet-tar
    python scripts/make_shards.py -dataset=folder -data_path=/dataset/birds -output /fast/birds256 -size 256
    python main_single_gpu.py -cfg=... -dataset=tar -data_path=/fast/imagenet-tar

Training samples are shuffled once, in an order that is the same each time, because training shuffles within windows of
shards only. The same data give the same bytes. A second start with the same arguments continues where the first ended,
and reads all shards back. With -size N the images are stored decoded, in PPM, and their shorter sides are resized to N;
smaller images keep their size. docs/data.md describes the files.
"""

import argparse
import hashlib
import itertools
import json
import os
import posixpath
import re
import shlex
import sys
import tarfile
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import parse_command_line
from configs.schema import Data
from datasets.decoding.decode import open_image, open_with_pillow
from datasets.decoding.images import BadImage
from datasets.loading.loader import BadImageList
from datasets.loading.workers import default_num_workers
from datasets.registry import has_test_split, read_samples, recognize_dataset
from datasets.shards.index import INDEX_NAME, INFO_FILE, Index, Shard, encode_index, join, to_index
from datasets.shards.records import LABELS_KEY, DamagedShard, chunks_of, join_labels, labels_in, read_records
from datasets.sources.samples import EncodedImages
from datasets.sources.shared_arrays import PackedStrings, StringPacker
from datasets.sources.tables import LABEL_DIGITS
from datasets.transforms.host import resize
from scripts.flags import add_flag, positive, positive_number, script_parser, split_flags
from utils.distributed import single_process
from utils.errors import UserError, error_from, escape_control_characters
from utils.files import atomic_write, fsync_path, open_atomically, open_regular_file, own_file, space_fix
from utils.locks import locked
from utils.processes.entry import run_and_report_errors
from utils.seeding import seeded_generator
from utils.system import own_share

_ANY_NUM_CLASSES = 10**LABEL_DIGITS  # shards do not depend on a model
# Pillow's format -> extension of a member, where it is another word. MPO: a JPEG with further pictures behind it.
_EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif", "HEIF": "heic"}
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")  # WebDataset skips a member whose name has a line break
_LEADING_UNDERSCORES = re.compile("^_{2,}")  # members such as __meta__/x are no samples in WebDataset
GROUP_KEY = "group"  # in the .json of a sample
PROGRESS, _LOCK = "_progress.jsonl", ".lock"
_REPAIR = "remove this file and start again with the same arguments"


class Sample(NamedTuple):
    """An encoded image, its label and its group. `position`: its place in the order of the split.

    label: a number, or of several labels the result of `join_labels`.
    """

    position: int
    key: str
    extension: str
    label: int | str
    data: bytes
    group: str = ""


class WrittenShard(NamedTuple):
    """A finished shard of the positions `start` to `end` - 1 of a split.

    sha256: the result of `hash_rows`. images: of `PlannedSplit.digest`.
    """

    name: str
    num_bytes: int
    num_samples: int
    start: int
    end: int
    sha256: str
    images: str = ""


class Progress(NamedTuple):
    """`finished`: the shards by name. The file has the plan in its first line and one more line for each shard."""

    file: BinaryIO
    finished: dict[str, WrittenShard]

    def add(self, line: dict[str, Any]) -> None:
        """Records a shard that is on the disk; raises OSError."""
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    data, splits = _read_image_splits(rest)
    torch.set_num_threads(1)  # images are decoded in parallel
    planned = {name: PlannedSplit(name, samples, data, flags.size) for name, samples in splits.items()}
    plan = {"format": 1, "shard_mb": flags.shard_mb, "splits": {name: split.plan() for name, split in planned.items()}}
    if flags.size:
        plan["pixels"] = [flags.size, data.image_channels, data.grey_range and list(data.grey_range)]
    output, shards = flags.output, dict[str, list[WrittenShard]]()
    label_key, group_key = LABELS_KEY if data.multi_label else "", GROUP_KEY if data.groups else ""
    try:
        with open_progress(output, plan) as progress:
            bad_images = BadImageList(0, output)
            for name, split in planned.items():
                shards[name] = write_split(output, split, int(flags.shard_mb * 1e6), progress, bad_images)
            index = read_back(output, list(itertools.chain(*shards.values())), group_key, label_key)
            atomic_write(output / INDEX_NAME, encode_index(index))
            atomic_write(output / INFO_FILE, json.dumps(info(shards, splits["train"], label_key), indent=1))
    except OSError as error:
        fix = f"finished shards are kept: {space_fix(error.strerror)} and start again with the same arguments"
        raise error_from(error, f"{output}: cannot be written ({error.strerror}); {fix}") from error
    counts = {name: sum(shard.num_samples for shard in of_split) for name, of_split in shards.items()}
    num_bad = sum(map(len, splits.values())) - sum(counts.values())
    bad = f"; {num_bad} could not be used: see {output / 'bad_images_0.csv'}" if num_bad else ""
    images = ", ".join(f"{count} images of {name} in {len(shards[name])} shards" for name, count in counts.items())
    print(f"{output}: {images}, read back and compared{bad}")
    several = " -opts DATA.MULTI_LABEL=true" * data.multi_label
    print(f"to train on them: -dataset=tar -data_path={shlex.quote(str(output))}{several}")
    return 0


def _parser() -> argparse.ArgumentParser:
    usage = "-output FOLDER [-shard_mb N] [-size N] [data flags of main_single_gpu.py]"
    parser = script_parser("make_shards.py", usage, "Writes a data set as tar shards that WebDataset reads.")
    add_flag(parser, "output", type=Path, required=True, metavar="FOLDER", help="folder to create, or to continue")
    size_help = "size of a shard, MB (default: 256)"
    add_flag(parser, "shard_mb", type=positive_number, default=256.0, metavar="N", help=size_help)
    add_flag(parser, "size", type=positive, metavar="N", help="store PPM, the shorter side N (default: as encoded)")
    return parser


def _read_image_splits(argv: list[str]) -> tuple[Data, dict[str, EncodedImages]]:
    """The DATA options, and the splits 'train', 'val' and, if there is one, 'test'.

    Raises UserError for a wrong option and a data set without files; and as `read_samples`.
    """
    data = parse_command_line([*argv, "-opts", "DATA.BATCH_SIZE=1"]).config.data
    without_gpu = single_process("cpu")
    data = recognize_dataset(data, without_gpu)
    names = ["train", "val", *(["test"] if has_test_split(data, without_gpu)[0] else [])]
    splits = read_samples(data, _ANY_NUM_CLASSES, without_gpu, *names, is_new=True)
    if not isinstance(splits[0], EncodedImages):
        raise UserError(f"-dataset {data.dataset}: has no image files; use it without shards")
    return data, dict(zip(names, splits, strict=True))


class PlannedSplit:
    """The samples of a split in the order in which they are written.

    order: sample indices, int64 (N,). keys: by index. size: of the shorter side of a stored image; None: stay encoded.
    """

    def __init__(self, name: str, samples: EncodedImages, data: Data, size: int | None) -> None:
        self.name, self.samples, self.data, self.size = name, samples, data, size
        self.keys = unique_keys(samples.relative_name(index, data.data_path) for index in range(len(samples)))
        self.states = samples.states()  # before the images are read
        self.order = np.arange(len(samples))
        if name == "train":
            self.order = torch.randperm(len(samples), generator=seeded_generator("tar shards")).numpy()

    def plan(self) -> dict[str, Any]:
        """Returns a checksum of class names, keys and labels: with the images, all that the shards depend on."""
        rows = ((self.keys[index], self._label(index), *self._group(index)) for index in self.order.tolist())
        return {"num_samples": len(self.order), "sha256": hash_rows(rows, json.dumps(self.samples.class_names))}

    def digest(self, start: int, end: int) -> str:
        """SHA-256 of the states of the images at these positions, which changes if one of them is replaced."""
        return hashlib.sha256(self.states[self.order[start:end]]).hexdigest()

    def read(self, position: int) -> Sample:
        index = int(self.order[position])
        encoded, name = self.samples.read_bytes(index), partial(self.samples.name, index)
        pixels = open_image(encoded, self.data.image_channels, name, self.samples.decoding).pixels
        if self.size:
            encoded = encode_ppm(pixels, self.size)
        extension = image_extension(encoded)
        return Sample(position, self.keys[index], extension, self._label(index), encoded, *self._group(index))

    def _label(self, index: int) -> int | str:
        target = self.samples.targets[index]
        return int(target) if target.ndim == 0 else join_labels(np.flatnonzero(target).tolist())

    def _group(self, index: int) -> list[str]:
        return [self.samples.groups[index]] if self.samples.groups else []


def encode_ppm(image: torch.Tensor, size: int) -> bytes:
    """torch.uint8 (3, H, W) as PPM, (1, H, W) as PGM; a shorter side of more than `size` pixels is resized to it."""
    if (short := min(image.shape[1:])) > size:
        image = resize(image, *(side * size // short for side in image.shape[1:]))
    channels, height, width = image.shape
    return b"P%d\n%d %d\n255\n" % (6 if channels == 3 else 5, width, height) + image.permute(1, 2, 0).numpy().tobytes()


def write_split(
    folder: Path, split: PlannedSplit, max_bytes: int, progress: Progress, bad_images: BadImageList
) -> list[WrittenShard]:
    """Writes the shards of a split from the first one that lacks images or has other ones; returns all.

    Raises UserError without any image.
    """
    shards: list[WrittenShard] = []
    paths = (folder / f"{split.name}-{number:06d}.tar" for number in itertools.count())
    position, path = 0, next(paths)
    while (shard := progress.finished.get(path.name)) and shard.start == position and path.exists():
        lacks_images = shard.num_samples < shard.end - position
        if shard.images != split.digest(position, shard.end) or (lacks_images and split.data.on_bad_image == "error"):
            break
        shards.append(shard)
        position, path = shard.end, next(paths)
    samples = _read_usable(split, position, bad_images)
    sample = next(samples, None)
    while sample:
        shard, sample = write_shard(path, position, sample, samples, max_bytes)
        shard = shard._replace(images=split.digest(position, shard.end))
        progress.add(shard._asdict())
        shards.append(shard)
        position, path = shard.end, next(paths)
    if not shards:
        raise UserError(f"{split.data.data_path}: no image of {split.name} can be used; no shard was written")
    return shards


def _read_usable(split: PlannedSplit, start: int, bad_images: BadImageList) -> Iterator[Sample]:
    """The samples of a split from the place `start` on, read by threads that are a few ahead, with a progress bar.

    With DATA.ON_BAD_IMAGE: skip, bad images are listed in `bad_images`; else the first one is raised.
    """
    data, count = split.data, len(split.order)
    threads = default_num_workers(own_share(), on_gpu=False) if data.num_workers is None else max(1, data.num_workers)
    bar = tqdm(total=count, desc=split.name, initial=start, unit="image", leave=False, disable=None)
    with bar, ThreadPoolExecutor(threads) as pool:
        reads = (pool.submit(split.read, position) for position in range(start, count))
        pending = deque(itertools.islice(reads, 4 * threads))
        while pending:
            pending.extend(itertools.islice(reads, 1))
            try:
                yield pending.popleft().result()
            except BadImage as error:
                if data.on_bad_image == "error":
                    raise
                bad_images.add([error])
            bar.update()


def info(shards: dict[str, list[WrittenShard]], train: EncodedImages, label_key: str) -> dict[str, Any]:
    """timm's description of a data set of shards, and the class names if the data have names."""
    splits = {}
    for name, of_split in shards.items():
        lengths = [shard.num_samples for shard in of_split]
        lists = {"filenames": [shard.name for shard in of_split], "shard_lengths": lengths}
        splits[name] = {"name": name, **lists, "num_samples": sum(lengths), "alt_label": label_key}
    class_names = [escape_control_characters(name) for name in train.class_names]
    return {"splits": splits} | ({"class_names": class_names} if train.has_class_names else {})


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
            members, about = _member(name, sample.data), {GROUP_KEY: sample.group} if sample.group else {}
            if isinstance(sample.label, str):
                about |= {LABELS_KEY: sorted(map(int, labels_in(sample.label)))}
            else:
                members += _member(f"{sample.key}.cls", str(sample.label).encode())
            if about:
                members += _member(f"{sample.key}.json", json.dumps(about).encode())
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


def read_back(folder: Path, shards: Sequence[WrittenShard], group_key: str = "", label_key: str = "") -> Index:
    """The index of the shards in `folder`, which it reads as training does. Without versions, it is valid for copies.

    Raises OSError, and UserError: a shard is damaged, or its keys, labels or CRC-32 differ from the written ones.
    """

    def index_of(shard: WrittenShard) -> Index:
        path = folder / shard.name
        try:
            chunks = chunks_of(open_regular_file(path))
            records, _ = read_records(chunks, str(path), shard.num_bytes, label_key, group_key)
        except DamagedShard as error:
            raise UserError(f"{error}; {_REPAIR}") from error
        rows = ((record.name, record.label, record.crc, *filter(None, [record.group])) for record in records)
        if hash_rows(rows) != shard.sha256:
            raise UserError(f"{path}: read back, it is not as it was written; {_REPAIR}")
        return to_index(Shard(shard.name, shard.num_bytes), records, str(path), group_key)

    with ThreadPoolExecutor(default_num_workers(own_share(), on_gpu=False)) as pool:
        bar = tqdm(pool.map(index_of, shards), "reading back", len(shards), unit="shard", leave=False, disable=None)
        return join(list(bar), label_key, group_key)


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
            problem = f"{folder}: contains shards of other data, -shard_mb or -size"
            raise UserError(f"{problem}; give the same, or another -output")
        progress = Progress(file, finished)
        if not lines:
            progress.add(plan)
        yield progress


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
