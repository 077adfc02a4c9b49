"""Packs a data set into one file per split, which is faster to read than one file per image.

    python scripts/pack_dataset.py -dataset=imagenet2012 -data_path=/dataset/imagenet -output /fast/imagenet
    python scripts/pack_dataset.py -dataset=folder -data_path=/dataset/birds -output /fast/birds256 -size 256
    python main_single_gpu.py -cfg=... -dataset=packed -data_path=/fast/birds256

Images stay encoded. With -size N they are stored as pixels: the shorter side is resized to N, smaller images keep their
size. Training then decodes nothing, and an image takes a quarter of a megabyte at -size 256. Each image is decoded as a
test. An image that cannot be decoded ends the packing; with -opts DATA.ON_BAD_IMAGE=skip it is left out and listed.
"""

import argparse
import os
import shutil
import sys
import zlib
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.schema import Data
from datasets.decoding.bad_images import BadImageList
from datasets.decoding.decode import decode_image
from datasets.sources.arrays.mapped_arrays import save_arrays
from datasets.sources.arrays.packed import CHECKSUMS, index_checksums
from datasets.sources.arrays.strings import StringPacker, to_arrays
from datasets.sources.samples import EncodedImages
from datasets.transforms.crops import resize
from scripts.flags import add_flag, positive, script_parser, split_flags
from scripts.packing.source import parse_data, read_image_splits, read_usable
from utils.atomic_file import fsync_path
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors


class Packable(NamedTuple):
    """`data` is an encoded image or, with a `shape` (H, W, C), its pixels."""

    data: bytes
    target: int
    name: str
    shape: tuple[int, ...] | None = None


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    data = parse_data(rest)
    if flags.output.exists():
        raise UserError(f"{flags.output}: exists; remove it, or give another folder with -output")
    data, splits = read_image_splits(data)
    torch.set_num_threads(1)  # images are decoded in parallel
    temporary = flags.output.with_name(f".{flags.output.name}.tmp")
    try:
        temporary.mkdir(parents=True)
        bad_images = BadImageList(temporary, 0)
        counts = [pack(temporary, *split, data, flags.size, bad_images) for split in splits.items()]
        fsync_path(temporary)
        os.rename(temporary, flags.output)
        fsync_path(flags.output.parent)
    except FileExistsError as error:
        raise UserError(f"{error.filename}: another packing is running or was killed; if killed, remove it") from error
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"{flags.output}: cannot be written ({error.strerror}); nothing was kept") from error
        raise
    _report(flags.output, list(splits.values()), counts)
    return 0


def _parser() -> argparse.ArgumentParser:
    usage = "-output FOLDER [-size N] [data flags of main_single_gpu.py]"
    parser = script_parser("pack_dataset.py", usage, "Packs a data set into one file per split.")
    add_flag(parser, "output", type=Path, required=True, metavar="FOLDER", help="folder to create")
    add_flag(parser, "size", type=positive, metavar="N", help="store pixels, the shorter side N (default: as encoded)")
    return parser


def _report(output: Path, splits: list[EncodedImages], counts: list[int]) -> None:
    num_bytes = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    num_bad = sum(map(len, splits)) - sum(counts)
    bad = f"; {num_bad} could not be used: see {output / 'bad_images_0.csv'}" if num_bad else ""
    print(f"{output}: {counts[0]} training and {counts[1]} validation images, {num_bytes / 1e9:.3f} GB{bad}")
    print(f"to train on it: -dataset=packed -data_path={output}")


def pack(
    folder: Path, split: str, samples: EncodedImages, data: Data, size: int | None, bad_images: BadImageList
) -> int:
    """Packs a split into files in `folder`, in order; threads read and decode. Returns the number of packed images."""

    def packable(index: int) -> Packable:
        name, target = samples.relative_name(index, data.data_path), int(samples.targets[index])
        encoded = samples.read_bytes(index)
        image = decode_image(encoded, data.image_channels, samples.name(index))
        if size is None:
            return Packable(encoded, target, name)
        pixels = resize_shorter_side(image, size).permute(1, 2, 0).contiguous()
        return Packable(pixels.numpy().tobytes(), target, name, tuple(pixels.shape))

    images = read_usable(packable, range(len(samples)), data, split, bad_images)
    count = write_packed(folder, split, samples.class_names, images)
    if not count:
        raise UserError(f"{data.data_path}: no image of {split} can be used; nothing was packed")
    return count


def resize_shorter_side(image: torch.Tensor, size: int) -> torch.Tensor:
    """torch.uint8 (C, H, W) with its shorter side resized to `size`; an image with a shorter one is unchanged."""
    short = min(image.shape[1:])
    if short <= size:
        return image
    return resize(image, *(side * size // short for side in image.shape[1:]))


def write_packed(folder: Path, split: str, class_names: list[str], images: Iterable[Packable]) -> int:
    """Writes and syncs the files of a split; returns the number of images. See `datasets/sources/arrays/packed.py`.

    All images are encoded, or all are pixels. Raises OSError if the files cannot be written.
    """
    names, ends, crcs, targets, shapes = StringPacker(), array("q"), array("I"), array("q"), array("i")
    with open(folder / f"{split}.blob", "xb") as blob:
        for image in images:
            blob.write(image.data)
            ends.append(blob.tell())
            crcs.append(zlib.crc32(image.data))
            targets.append(image.target)
            names.add(image.name)
            shapes.extend(image.shape or ())
        blob.flush()
        os.fsync(blob.fileno())
    arrays = {"ends": np.asarray(ends), "crcs": np.asarray(crcs), "targets": np.asarray(targets)}
    arrays["shapes"] = np.asarray(shapes).reshape(-1, 3)
    arrays |= to_arrays(names.strings(), "names") | to_arrays(StringPacker(class_names).strings(), "classes")
    index = folder / f"{split}.index"
    index.mkdir()
    save_arrays(index, arrays)
    (index / CHECKSUMS).write_text(index_checksums(index))
    for path in (*index.iterdir(), index):
        fsync_path(path)
    return len(names)


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
