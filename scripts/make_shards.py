"""Writes a data set as tar shards, for -dataset=tar and for programs that read WebDataset's format.

    python scripts/make_shards.py -dataset=imagenet2012 -data_path=/dataset/imagenet -output /fast/imagenet-tar
    python scripts/make_shards.py -dataset=folder -data_path=/dataset/birds -output /fast/birds256 -size 256
    python main_single_gpu.py -cfg=... -dataset=tar -data_path=/fast/imagenet-tar

Training samples are shuffled once, in an order that is the same each time, because training shuffles within windows of
shards only. The same data give the same bytes. Each shard is read back and compared. With -size N the images are stored
decoded, in PPM, and their shorter sides are resized to N; smaller images keep their size. A script that fails removes
the folder.
docs/data.md describes the files.
"""

import io
import itertools
import json
import os
import posixpath
import re
import shlex
import shutil
import sys
import tarfile
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import parse_command_line
from configs.flags import add_flag, positive
from configs.schema import Data
from configs.yaml_io import Values
from datasets.decoding.decode import open_image, to_pillow
from datasets.decoding.images import HEAD_BYTES, BadImage, kind_of
from datasets.loading.loader import BadImageList
from datasets.loading.workers import default_num_workers
from datasets.reading import read_data
from datasets.recognition import recognize_dataset
from datasets.shards.index import INDEX_NAME, INFO_FILE, Index, Shard, encode_index, join_indexes, to_index
from datasets.shards.records import LABELS_KEY, UNKNOWN_SUFFIX, Label, chunks_of, join_labels, read_records
from datasets.sources.samples import UNKNOWN, EncodedImages
from datasets.sources.shared_arrays import PackedStrings, StringPacker
from datasets.sources.source import Wanted
from datasets.sources.tables.files import LABEL_DIGITS
from datasets.transforms.host import resize
from scripts.flags import script_parser, split_flags
from utils.distributed import single_process
from utils.errors import UserError, error_from, escape_control_characters
from utils.files import atomic_write, file_fix, open_atomically, open_regular_file
from utils.processes.entry import run_script
from utils.seeding import seeded_generator
from utils.system import own_share

_ANY_NUM_CLASSES = 10**LABEL_DIGITS  # shards do not depend on a model
_EXTENSIONS = {"JPEG": "jpg", "TIFF": "tif"}  # of members, where it is another word than the kind of the image
# What WebDataset skips, or a tar must not have: line breaks, names such as __meta__, parts such as `..`.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f]|\.\.(?=/)|(?<![^/])_{2,}")
GROUP_KEY = "group"  # in the .json of a sample


class Sample(NamedTuple):
    """files: the contents of its files by their extensions, first the image. label, group: as in `Record`."""

    key: str
    files: dict[str, bytes]
    label: Label
    group: str


def main(argv: list[str]) -> int:
    usage = "-output FOLDER [-shard_mb N] [-size N] [data flags of main_single_gpu.py]"
    parser = script_parser("make_shards.py", usage, "Writes a data set as tar shards that WebDataset reads.")
    add_flag(parser, "output", type=Path, required=True, metavar="FOLDER", help="folder to create")
    size_help = "size of a shard, MB (default: 256)"
    add_flag(parser, "shard_mb", type=float, default=256.0, metavar="N", help=size_help)
    add_flag(parser, "size", type=positive, metavar="N", help="store PPM, the shorter side N (default: as encoded)")
    flags, rest = split_flags(parser, argv)
    if not flags.shard_mb > 0:  # also NaN
        raise UserError(f"-shard_mb={flags.shard_mb:g}: give a number greater than 0")
    data = parse_command_line([*rest, "-opts", "DATA.BATCH_SIZE=1"]).config.data
    without_gpu = single_process("cpu")
    data = recognize_dataset(data, without_gpu)
    number = None if data.multi_label else _ANY_NUM_CLASSES  # several labels have a column for each class
    wanted = Wanted(data, ("train", "val"), num_classes=number, is_new=True, with_test=True)
    read = read_data(wanted, without_gpu)
    splits = {}
    for name, samples in read.splits.items():
        if not isinstance(samples, EncodedImages):
            raise UserError(f"-dataset {data.dataset}: has no image files; use it without shards")
        splits[name] = samples
    torch.set_num_threads(1)  # images are decoded in parallel
    output = flags.output
    written = {}
    extensions = set[str]()
    label_key = LABELS_KEY if data.multi_label else ""
    group_key = GROUP_KEY if data.groups else ""
    try:
        output.mkdir(parents=True)
    except OSError as error:
        raise error_from(
            error, f"{output}: cannot be created ({error.strerror}); give another folder with -output"
        ) from error
    try:
        bad_images = BadImageList(0).open(output)
        for name, images in splits.items():
            split = OrderedSplit(name, images, data, flags.size)
            written[name] = write_split(output, split, flags.shard_mb * 1e6, bad_images, label_key, group_key)
            extensions |= split.extensions
        index = join_indexes(list(itertools.chain(*written.values())), label_key, group_key)
        atomic_write(output / INDEX_NAME, encode_index(index))
        atomic_write(output / INFO_FILE, json.dumps(info(written, splits["train"], label_key), indent=1))
    except BaseException as error:
        shutil.rmtree(output, ignore_errors=True)  # a part of the images must not look like all of them
        if not isinstance(error, OSError):
            raise
        raise error_from(
            error, f"{output}: cannot be written ({error.strerror}); {file_fix(error)} and start again"
        ) from error
    counts = {name: sum(map(len, shards)) for name, shards in written.items()}
    num_bad = sum(map(len, splits.values())) - sum(counts.values())
    bad = f"; {num_bad} could not be used: see {output / 'bad_images_0.csv'}" if num_bad else ""
    images = ", ".join(f"{count} images of {name} in {len(written[name])} shards" for name, count in counts.items())
    print(f"{output}: {images}, read back{bad}")
    if len(extensions) > 1:
        kinds = ", ".join(f".{extension}" for extension in sorted(extensions))
        print(f"images are {kinds}: `datasets` and Ray read shards of one kind only; -size N stores all as .ppm")
    several = " -opts DATA.MULTI_LABEL=true" * data.multi_label
    print(f"to train on them, beside the -cfg of a recipe: -dataset=tar -data_path={shlex.quote(str(output))}{several}")
    return 0


class OrderedSplit:
    """The samples of a split in the order in which they are written.

    order: sample indices, int64 (N,). keys: by index. size: of the shorter side of a stored image; None: stay encoded.
    extensions: of the images that were read.
    """

    def __init__(self, name: str, samples: EncodedImages, data: Data, size: int | None) -> None:
        self.name = name
        self.samples = samples
        self.data = data
        self.size = size
        self.keys = unique_keys(samples.relative_name(index, data.data_path) for index in range(len(samples)))
        self.extensions = set[str]()
        self.order = np.arange(len(samples))
        if name == "train":
            self.order = torch.randperm(len(samples), generator=seeded_generator("tar shards")).numpy()

    def read(self, position: int) -> Sample:
        index = int(self.order[position])
        samples = self.samples
        encoded = samples.read_bytes(index)
        name = partial(samples.name, index)
        pixels = open_image(encoded, self.data.image_channels, name, samples.decoding).pixels
        if self.size:
            if (short := min(pixels.shape[1:])) > self.size:
                pixels = resize(pixels, *(side * self.size // short for side in pixels.shape[1:]))
            file = io.BytesIO()
            to_pillow(pixels).save(file, "PPM")
            encoded = file.getvalue()
        kind = "PGM" if encoded.startswith(b"P5") else kind_of(encoded[:HEAD_BYTES]) or ""
        extension = _EXTENSIONS.get(kind, kind.lower())
        self.extensions.add(extension)
        files = {extension: encoded}
        about = {}
        group = samples.groups[index] if samples.groups else ""
        if group:
            about[GROUP_KEY] = group
        target = samples.targets[index]
        if target.ndim:
            about[LABELS_KEY] = np.flatnonzero(target > 0).tolist()
            unknown = np.flatnonzero(target == UNKNOWN).tolist()
            if unknown:
                about[f"{LABELS_KEY}{UNKNOWN_SUFFIX}"] = unknown
            label: Label = join_labels(about[LABELS_KEY], unknown)
        else:
            label = int(target)
            files["cls"] = str(label).encode()
        if about:
            files["json"] = json.dumps(about).encode()
        return Sample(self.keys[index], files, label, group)


def write_split(
    folder: Path, split: OrderedSplit, max_bytes: float, bad_images: BadImageList, label_key: str, group_key: str
) -> list[Index]:
    """Writes the shards of a split and reads them back, as training does; returns the index of each.

    An index has no version, and is valid for copies. Raises OSError, and UserError: no image can be used; a shard
    that was read back is another one.
    """
    indexes = list[Index]()
    samples = _read_usable(split, bad_images)
    for sample in samples:
        path = folder / f"{split.name}-{len(indexes):06d}.tar"
        written = write_shard(path, itertools.chain([sample], samples), max_bytes)
        shard = Shard(path.name, path.stat().st_size)
        records, _ = read_records(chunks_of(open_regular_file(path)), str(path), label_key, group_key)
        if [record[2:] for record in records] != written:
            raise UserError(f"{path}: read back, it is not as it was written; check the disk and start again")
        indexes.append(to_index(shard, records, str(path)))
    if not indexes:
        raise UserError(f"{split.data.data_path}: no image of {split.name} can be used; no shard was written")
    return indexes


def _read_usable(split: OrderedSplit, bad_images: BadImageList) -> Iterator[Sample]:
    """The samples of a split, read by threads that are a few ahead, with a progress bar.

    With DATA.ON_BAD_IMAGE: skip, bad images are listed in `bad_images`; else the first one is raised.
    """
    data = split.data
    count = len(split.order)
    threads = default_num_workers(own_share(), on_gpu=False) if data.num_workers is None else max(1, data.num_workers)
    bar = tqdm(total=count, desc=split.name, unit="image", leave=False, disable=None)
    with bar, ThreadPoolExecutor(threads) as pool:
        reads = (pool.submit(split.read, position) for position in range(count))
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


def info(written: dict[str, list[Index]], train: EncodedImages, label_key: str) -> Values:
    """timm's description of a data set of shards, and the class names if the data have names."""
    splits = {}
    for name, indexes in written.items():
        lengths = list(map(len, indexes))
        lists = {"filenames": [index.shards[0].name for index in indexes], "shard_lengths": lengths}
        splits[name] = {"name": name, **lists, "num_samples": sum(lengths), "alt_label": label_key}
    class_names = [escape_control_characters(name) for name in train.class_names]
    return {"splits": splits} | ({"class_names": class_names} if train.has_class_names else {})


def unique_keys(paths: Iterable[str]) -> PackedStrings:
    """The key of each image, given the images' paths relative to the data: equal ones get a number, in order.

    A key is the path without its extension, relative and without `..`, and no dot in its last part. WebDataset's rule:
    the key of a member ends at the first dot of the last part of its name.
    """
    keys = StringPacker()
    used = set()
    last_number = Counter()
    for path in paths:
        folder, name = posixpath.split(posixpath.normpath(path.strip("/")))
        stem = os.path.splitext(name)[0].replace(".", "_")
        base = key = _UNSAFE.sub("_", posixpath.join(folder, stem))
        while key in used:
            last_number[base] += 1
            key = f"{base}_{last_number[base] + 1}"
        used.add(key)
        keys.add(key)
    return keys.strings()


def write_shard(path: Path, samples: Iterable[Sample], max_bytes: float) -> list[tuple[int, Label, str, str]]:
    """Writes samples until the shard has `max_bytes`; returns the last four values of the `Record` of each."""
    written = []
    with (
        open_atomically(path, "wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar,
    ):
        for key, files, label, group in samples:
            for ending, content in files.items():
                member = tarfile.TarInfo(f"{key}.{ending}")  # without time and user: equal data give equal bytes
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            extension, image = next(iter(files.items()))
            written.append((zlib.crc32(image), label, f"{key}.{extension}", group))
            if file.tell() >= max_bytes:
                break
    return written


if __name__ == "__main__":
    run_script(main)
