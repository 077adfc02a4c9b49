"""Packs a data set into one file per split, which is read faster than a file per image.

    python scripts/pack_dataset.py -dataset=imagenet2012 -data_path=/dataset/imagenet -output /fast/imagenet
    python scripts/pack_dataset.py -dataset=folder -data_path=/dataset/birds -output /fast/birds256 -size 256
    python main_single_gpu.py -cfg=... -dataset=packed -data_path=/fast/birds256

Images stay as they are encoded, or with -size become pixels whose shorter side has that length (smaller images stay as
they are): no decoding is left to training, which takes a quarter of a megabyte an image at -size 256. Each image is
decoded to see that it can be. One that cannot ends the packing, or with -opts DATA.ON_BAD_IMAGE=skip is left out and
listed.
"""

import argparse
import os
import shutil
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import Parser, parse_command_line
from configs.schema import Config
from datasets.decoding.bad_images import BadImage, BadImageList
from datasets.decoding.decode import decode_image, resize
from datasets.loading.workers import default_num_workers
from datasets.registry import read_samples
from datasets.sources.listing import LABEL_DIGITS
from datasets.sources.packed import Packable, write_packed
from datasets.sources.samples import EncodedImages
from scripts.benchmarks.common import add_flag, positive, split_flags
from utils.atomic_file import fsync_folder, temporary_path
from utils.distributed import single_process
from utils.errors import UserError, run_and_report_errors

SPLITS = ("train", "val")
# What a run is refused for does not matter here: fewer images than a batch, more classes than its model has.
ANY_RUN = ("DATA.BATCH_SIZE=1", f"MODEL.NUM_CLASSES={10**LABEL_DIGITS}")


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    config = parse_command_line([*rest, "-opts", *ANY_RUN]).config
    if flags.output.exists():
        raise UserError(f"{flags.output}: exists; remove it, or name another folder with -output")
    splits = read_samples(config, single_process(), *SPLITS)
    if not isinstance(splits[0], EncodedImages):
        raise UserError(f"-dataset {config.data.dataset}: has no files of images; there is nothing to pack")
    torch.set_num_threads(1)  # images are decoded side by side
    temporary = temporary_path(flags.output)
    try:
        temporary.mkdir(parents=True)
        left_out = BadImageList(temporary, 0)
        counts = [pack(temporary, *split, config, flags.size, left_out) for split in zip(SPLITS, splits, strict=True)]
        fsync_folder(temporary)
        os.rename(temporary, flags.output)
        fsync_folder(flags.output.parent)
    except FileExistsError as error:
        raise UserError(f"{error.filename}: another packing goes on, or was killed; then remove it") from error
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"{flags.output}: cannot be written ({error.strerror}); nothing is left of it") from error
        raise
    _tell(flags.output, splits, counts)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="scripts/pack_dataset.py",
        usage="%(prog)s -output FOLDER [-size N] [flags of main_single_gpu.py that say which data]",
        description="Packs a data set into one file per split.",
        epilog="Every other flag, such as -dataset or -opts KEY=VALUE, is main_single_gpu.py's: see its -h.",
    )
    add_flag(parser, "output", type=Path, required=True, metavar="FOLDER", help="folder to make")
    add_flag(parser, "size", type=positive, metavar="N", help="store pixels, the shorter side N (default: as encoded)")
    return parser


def _tell(output: Path, splits: list[EncodedImages], counts: list[int]) -> None:
    size = sum(path.stat().st_size for path in output.iterdir())
    left_out = sum(map(len, splits)) - sum(counts)
    listed = f"; {left_out} could not be used: see {output / 'bad_images_0.csv'}" if left_out else ""
    print(f"{output}: {counts[0]} training and {counts[1]} validation images, {size / 1e9:.3f} GB{listed}")
    print(f"to train on it: -dataset=packed -data_path={output}")


def pack(
    folder: Path, split: str, samples: EncodedImages, config: Config, size: int | None, left_out: BadImageList
) -> int:
    """Packs a split into files in `folder`; returns how many images they hold."""

    def usable() -> Iterator[Packable]:
        images = packables(samples, config, size)
        for image in tqdm(images, split, len(samples), unit="image", leave=False, disable=None):
            if isinstance(image, BadImage):
                left_out.add([image])
            else:
                yield image

    count = write_packed(folder, split, samples.class_names, usable())
    if not count:
        raise UserError(f"{config.data.data_path}: no image of {split} can be used, so there is nothing to pack")
    return count


def packables(samples: EncodedImages, config: Config, size: int | None) -> Iterator[Packable | BadImage]:
    """In order, read and decoded by threads, few of them ahead of what is taken."""
    root = os.path.join(config.data.data_path, "")

    def packable(index: int) -> Packable | BadImage:
        try:
            return _packable(samples, index, config.data.image_channels, size, root)
        except BadImage as error:
            if config.data.on_bad_image == "error":
                raise
            return error

    threads = default_num_workers(1) if config.data.num_workers is None else max(1, config.data.num_workers)
    waiting: deque[Future[Packable | BadImage]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for index in range(len(samples)):
            waiting.append(pool.submit(packable, index))
            if len(waiting) > 4 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _packable(samples: EncodedImages, index: int, channels: int, size: int | None, root: str) -> Packable:
    name, target = samples.name(index), int(samples.targets[index])
    data = samples.encoded(index)
    image = decode_image(data, channels, name)
    if size is None:
        return Packable(data, target, name.removeprefix(root))
    pixels = shrunk(image, size).permute(1, 2, 0).contiguous()
    return Packable(pixels.numpy().tobytes(), target, name.removeprefix(root), tuple(pixels.shape))


def shrunk(image: torch.Tensor, size: int) -> torch.Tensor:
    """torch.uint8 (C, H, W) with its shorter side resized to `size`, unless it is no longer than that."""
    short = min(image.shape[1:])
    if short <= size:
        return image
    return resize(image, *(side * size // short for side in image.shape[1:]))


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
