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
import itertools
import json
import shlex
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import parse_command_line
from configs.schema import Data
from datasets.decoding.decode import open_image
from datasets.decoding.images import BadImage, BadImageList
from datasets.loading.workers import default_num_workers
from datasets.registry import has_test_split, read_samples, recognize_dataset
from datasets.shards.index import INDEX_NAME, INFO_FILE, encode_index
from datasets.sources.files.rows import LABEL_DIGITS
from datasets.sources.samples import EncodedImages
from datasets.transforms.host import resize
from scripts.flags import add_flag, positive, positive_number, script_parser, split_flags
from scripts.sharding import tar
from scripts.sharding.tar import Progress, Sample, WrittenShard
from utils.distributed import single_process
from utils.errors import UserError, error_from, escape_control_characters
from utils.files import atomic_write, space_fix
from utils.processes.entry import run_and_report_errors
from utils.seeding import seeded_generator
from utils.system import own_share

_ANY_NUM_CLASSES = 10**LABEL_DIGITS  # shards do not depend on a model


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    data, splits = _read_image_splits(parse_data(rest))
    torch.set_num_threads(1)  # images are decoded in parallel
    planned = {name: PlannedSplit(name, samples, data, flags.size) for name, samples in splits.items()}
    plan = {"format": 1, "shard_mb": flags.shard_mb, "splits": {name: split.plan() for name, split in planned.items()}}
    if flags.size:
        plan["pixels"] = [flags.size, data.image_channels, data.grey_range and list(data.grey_range)]
    output, max_bytes = flags.output, int(flags.shard_mb * 1e6)
    try:
        with tar.open_progress(output, plan) as progress:
            bad_images = BadImageList(0, output)
            shards = {
                name: write_split(output, split, max_bytes, progress, bad_images) for name, split in planned.items()
            }
            index = tar.read_back(output, list(itertools.chain(*shards.values())), tar.GROUP_KEY if data.groups else "")
            atomic_write(output / INDEX_NAME, encode_index(index))
            atomic_write(output / INFO_FILE, json.dumps(info(shards, splits["train"]), indent=1))
    except OSError as error:
        fix = f"finished shards are kept: {space_fix(error.strerror)} and start again with the same arguments"
        raise error_from(error, f"{output}: cannot be written ({error.strerror}); {fix}") from error
    _report(output, splits, shards)
    return 0


def _parser() -> argparse.ArgumentParser:
    usage = "-output FOLDER [-shard_mb N] [-size N] [data flags of main_single_gpu.py]"
    parser = script_parser("make_shards.py", usage, "Writes a data set as tar shards that WebDataset reads.")
    add_flag(parser, "output", type=Path, required=True, metavar="FOLDER", help="folder to create, or to continue")
    add_flag(
        parser, "shard_mb", type=positive_number, default=256.0, metavar="N", help="size of a shard, MB (default: 256)"
    )
    add_flag(parser, "size", type=positive, metavar="N", help="store PPM, the shorter side N (default: as encoded)")
    return parser


def parse_data(argv: list[str]) -> Data:
    """The DATA options of flags; raises UserError if one of them is wrong, or if images have several labels."""
    data = parse_command_line([*argv, "-opts", "DATA.BATCH_SIZE=1"]).config.data
    if data.multi_label:
        raise UserError("DATA.MULTI_LABEL: shards have one label per image; train from the CSV files")
    return data


def _read_image_splits(data: Data) -> tuple[Data, dict[str, EncodedImages]]:
    """The completed options, and the splits 'train', 'val' and, if there is one, 'test'; raises as `read_samples`."""
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
        self.keys = tar.unique_keys(samples.relative_name(index, data.data_path) for index in range(len(samples)))
        self.order = np.arange(len(samples))
        if name == "train":
            self.order = torch.randperm(len(samples), generator=seeded_generator("tar shards")).numpy()

    def plan(self) -> dict[str, Any]:
        """Returns a checksum of class names, keys and labels: with the images, all that the shards depend on."""
        rows = ((self.keys[index], self.samples.targets[index], *self._group(index)) for index in self.order.tolist())
        return {"num_samples": len(self.order), "sha256": tar.hash_rows(rows, json.dumps(self.samples.class_names))}

    def read(self, position: int) -> Sample:
        index = int(self.order[position])
        encoded, name = self.samples.read_bytes(index), partial(self.samples.name, index)
        pixels = open_image(encoded, self.data.image_channels, name, self.samples.decoding).pixels
        if self.size:
            encoded = encode_ppm(pixels, self.size)
        label, extension = int(self.samples.targets[index]), tar.image_extension(encoded)
        return Sample(position, self.keys[index], extension, label, encoded, *self._group(index))

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
    """Writes the shards of a split that follow the finished ones; returns all. Raises UserError without any image."""
    shards: list[WrittenShard] = []
    paths = (folder / f"{split.name}-{number:06d}.tar" for number in itertools.count())
    position, path = 0, next(paths)
    while (shard := progress.finished.get(path.name)) and shard.start == position and path.exists():
        if shard.num_samples < shard.end - position and split.data.on_bad_image == "error":
            break  # it lacks images
        shards.append(shard)
        position, path = shard.end, next(paths)
    samples = _read_usable(split, position, bad_images)
    sample = next(samples, None)
    while sample:
        shard, sample = tar.write_shard(path, position, sample, samples, max_bytes)
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


def info(shards: dict[str, list[WrittenShard]], train: EncodedImages) -> dict[str, Any]:
    """timm's description of a data set of shards, and the class names if the data have names."""
    splits = {}
    for name, of_split in shards.items():
        lengths = [shard.num_samples for shard in of_split]
        lists = {"filenames": [shard.name for shard in of_split], "shard_lengths": lengths}
        splits[name] = {"name": name, **lists, "num_samples": sum(lengths), "alt_label": ""}
    class_names = [escape_control_characters(name) for name in train.class_names]
    return {"splits": splits} | ({"class_names": class_names} if train.has_class_names else {})


def _report(output: Path, splits: dict[str, EncodedImages], shards: dict[str, list[WrittenShard]]) -> None:
    counts = {name: sum(shard.num_samples for shard in of_split) for name, of_split in shards.items()}
    num_bad = sum(map(len, splits.values())) - sum(counts.values())
    bad = f"; {num_bad} could not be used: see {output / 'bad_images_0.csv'}" if num_bad else ""
    images = ", ".join(f"{count} images of {name} in {len(shards[name])} shards" for name, count in counts.items())
    print(f"{output}: {images}, read back and compared{bad}")
    print(f"to train on them: -dataset=tar -data_path={shlex.quote(str(output))}")


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
