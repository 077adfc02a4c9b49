"""Compares the speed of reading and augmenting images with torchvision's references and timm's `create_loader`.

    python scripts/benchmarks/benchmark_input.py -json input.json
    python scripts/benchmarks/benchmark_input.py -sources

The script makes JPEGs of 500x375 (about 106 KB, as in ImageNet) and of 2000x1500 (about 500 KB and 1 MB, as on the web
and from cameras), or takes the JPEGs of `-data FOLDER`. All contenders read the same files and apply the same
transforms: a random resized crop (bicubic), a flip and nothing else. `-augment deit` adds timm's RandAugment
rand-m9-mstd0.5-inc1, random erasing, mixup and CutMix, and compares the loaders only, with timm's and with our own
variant for PaddleViT's RandAugment. The measurements:

- one process, one thread: decode, crop, resize and flip one image after another;
- loaders with `-num_workers` worker processes, up to normalized float32 batches on the device. The workers have started
  before a turn is timed, and the batches that they have prefetched are discarded;
- fidelity: the mean absolute difference, on a scale of 255, between our crops and Pillow's antialiased bicubic
  resampling of the same boxes. The script exits with status 1 if it is above 0.5.

All processes use one compute thread, because the workers occupy the cores. The contenders take turns of a few seconds;
the order is reversed in every second round. A ratio is the median of the ratios within the rounds.

`-sources` compares where our loader reads the images of 106 KB from: see `source_contenders.py`.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Data, Train
from datasets.loading.batches import build_train_batches
from datasets.loading.sampler import TrainSampler
from datasets.registry import read_samples
from datasets.transforms.crops import random_crop_box
from datasets.transforms.host import build_host_transform
from scripts.benchmarks.augmentation_contenders import DEIT, deit_contenders
from scripts.benchmarks.benchmark_images import link_images, make_images, mean_kilobytes
from scripts.benchmarks.common import (
    environment,
    environment_line,
    median_and_range,
    print_progress,
    write_json,
)
from scripts.benchmarks.input_contenders import loader_contenders, one_process_contenders
from scripts.benchmarks.turns import measure, one_thread
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import keep_freed_memory
from utils.distributed import ProcessContext, single_process
from utils.entry import run_and_report_errors
from utils.errors import UserError
from utils.packages import require
from utils.tables import markdown_table

SCRIPT = "benchmarks/benchmark_input.py"
DEFAULTS = ["-batch_size=32", "-num_workers=2"]
EPOCH = 20_000  # entries: long enough that pauses between epochs do not count
MAX_DIFFERENCE = 0.5  # on a scale of 255


class Size(NamedTuple):
    """Images to make. `share` scales the number of images and the batch size."""

    width: int
    height: int
    mean_bytes: int
    share: float


SIZES = (Size(500, 375, 106_000, 1), Size(2000, 1500, 500_000, 1 / 4), Size(2000, 1500, 1_000_000, 1 / 4))


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    all_flags = [*DEFAULTS, *rest, *(["-opts", *DEIT] if flags.augment == "deit" else [])]
    config = parse_command_line(all_flags).config
    _check_comparable(config)
    context = single_process()
    if flags.sources:
        return _compare_sources(flags, argv, config)
    sections = []
    with TemporaryDirectory() as folder:
        for name, images, share in _image_folders(flags, Path(folder)):
            different = link_images(images, Path(folder) / f"{name}-linked", EPOCH)
            print_progress(f"{name}: {len(different)} JPEGs of {mean_kilobytes(different):.0f} KB")
            batch_size = max(1, round(config.data.batch_size * share))
            batch_size += batch_size % 2 if flags.augment == "deit" else 0  # timm's mixup needs pairs
            data = ["-dataset=folder", f"-data_path={folder}/{name}-linked", f"-batch_size={batch_size}"]
            sized = parse_command_line([*all_flags, *data]).config
            sections.append(measure_section(name, sized, context, different, flags))
    measured_on = environment(SCRIPT, argv, config) | {"model": f"{config.data.num_workers} workers"}
    print(environment_line(measured_on))
    for section in sections:
        print("", *section_texts(section, config.data), sep="\n\n")
    write_json(flags.json, {"environment": measured_on, "sections": sections})
    return 0 if all(section["fidelity"]["largest"] <= MAX_DIFFERENCE for section in sections) else 1


def _compare_sources(flags: argparse.Namespace, argv: list[str], config: Config) -> int:
    if flags.augment != "none":
        raise UserError("-sources: compares crops and flips only; remove -augment")
    require("-sources", "webdataset", "obstore", "braceexpand")
    from scripts.benchmarks.source_contenders import measure_sources, source_table

    with TemporaryDirectory() as folder:
        _, images, _ = next(_image_folders(flags, Path(folder)))
        result = measure_sources(images, Path(folder), config, flags.rounds, flags.seconds)
    measured_on = environment(SCRIPT, argv, config) | {"model": f"{config.data.num_workers} workers"}
    print(environment_line(measured_on), source_table(result), sep="\n\n")
    write_json(flags.json, {"environment": measured_on} | result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares the speed of decoding and of loaders with torchvision's and timm's.")
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    augment_help = "none (default): crops and flips; deit: RandAugment, erasing, mixup and CutMix"
    add_flag(parser, "augment", choices=["none", "deit"], default="none", help=augment_help)
    sources_help = "compare a folder, packed images and tar shards (local, over HTTP, WebDataset) instead of loaders"
    add_flag(parser, "sources", action="store_true", help=sources_help)
    add_flag(parser, "images", type=positive, default=256, metavar="N", help="different images to make (default: 256)")
    add_flag(parser, "rounds", type=positive, default=3, metavar="N", help="turns of each contender (default: 3)")
    add_flag(parser, "seconds", type=float, default=2.0, metavar="S", help="length of a turn (default: 2)")
    return parser


def _check_comparable(config: Config) -> None:
    transform = build_host_transform(config.data, Train(), config.seed)
    if config.data.image_channels != 3 or transform.device_operations:
        raise UserError("DATA: the comparison has random crops and flips of RGB images only; remove AFFINE_* and grey")
    if not config.data.num_workers:
        raise UserError("-num_workers 0: the loaders need one worker or more")


def _image_folders(flags: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path, float]]:
    """(name, folder of class folders, share of the batch size)"""
    if flags.data:
        yield flags.data.name, flags.data, 1
        return
    for size in SIZES:
        name = f"{size.width}x{size.height}-{size.mean_bytes // 1000}KB"
        count = max(16, round(flags.images * size.share))
        make_images(folder / name, (size.width, size.height), count, size.mean_bytes)
        yield name, folder / name, size.share


# Measurements


def measure_section(
    name: str, config: Config, context: ProcessContext, images: list[Path], flags: argparse.Namespace
) -> dict[str, Any]:
    prefetched = 2 * config.data.num_workers  # batches that torch's loaders prefetch
    one_process, loaders = one_process_contenders(config, context), loader_contenders(config, context)
    if flags.augment == "deit":
        one_process, loaders = {}, deit_contenders(config, context)
    with one_thread():
        return {
            "name": name,
            "images": len(images),
            "mean_kilobytes": mean_kilobytes(images),
            "batch_size": config.data.batch_size,
            "one_process": measure(one_process, flags.rounds, flags.seconds, context.device, prefetched=0),
            "loaders": measure(loaders, flags.rounds, flags.seconds, context.device, prefetched),
            "fidelity": fidelity(config, context, len(images)),
        }


# Fidelity


def fidelity(config: Config, context: ProcessContext, count: int) -> dict[str, Any]:
    """Mean absolute difference between `count` of our crops and Pillow's, of 255: the mean and the largest."""
    data = config.data.model_copy(update={"num_workers": 0, "hflip_prob": 0.0})
    config = config.model_copy(update={"data": data, "train": Train()})
    (samples,) = read_samples(data, config.model.num_classes, context, "train")
    sampler = TrainSampler(len(samples), data.batch_size, 1, config.seed)
    batches = build_train_batches(data, config.train, samples, config.seed, context, config.timeout_seconds)
    transform = build_host_transform(data, config.train, config.seed)
    differences = []
    for keys, batch in islice(zip(sampler, batches.iterate(0, 0, 1), strict=False), -(-count // data.batch_size)):
        for key, crop in zip(keys, batch.images.cpu(), strict=True):
            reference = pillow_crop(Path(samples.location(key[1])), data, transform.generator(*key))
            differences.append(np.abs(crop.permute(1, 2, 0).numpy().astype(int) - reference).mean())
    return {"crops": len(differences), "mean": float(np.mean(differences)), "largest": float(np.max(differences))}


def pillow_crop(path: Path, data: Data, rng: Any) -> np.ndarray:
    """Pillow's crop, int (S, S, 3), of the box that the host transform draws first from `rng`."""
    with Image.open(path) as image:
        top, left, height, width = random_crop_box(
            image.height, image.width, data.random_crop_scale, data.random_crop_ratio, rng
        )
        crop = image.convert("RGB").crop((left, top, left + width, top + height))
    return np.asarray(crop.resize((data.image_size, data.image_size), Image.Resampling.BICUBIC)).astype(int)


# Results


def section_texts(section: dict[str, Any], data: Data) -> list[str]:
    crops = section["fidelity"]
    within = "within" if crops["largest"] <= MAX_DIFFERENCE else "NOT within"
    one_process = section["one_process"]
    return [
        f"## {section['name']}: {section['images']} JPEGs of {section['mean_kilobytes']:.0f} KB, "
        f"to {data.image_size}x{data.image_size}",
        *(["One process, one thread:", contender_table(one_process)] if one_process else []),
        f"Loaders with {data.num_workers} workers, batch size {section['batch_size']}:",
        contender_table(section["loaders"]),
        f"Difference of our crops from Pillow's antialiased bicubic: {crops['mean']:.3f} of 255 on average, "
        f"{crops['largest']:.3f} at most ({crops['crops']} crops): {within} {MAX_DIFFERENCE}.",
    ]


def contender_table(results: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, one in results.items():
        ratio = "" if name == one["against"] else median_and_range(one["ratios"], ".2f")
        speed = median_and_range(one["images_per_second"], ".0f")
        rows.append([name, speed, ratio, f"{one['first_batch_seconds']:.2f}", one["ends_as"]])
    return markdown_table(["loader", "images/s", "ours / it", "first batch (s)", "output"], rows)


if __name__ == "__main__":
    keep_freed_memory()  # as the entry scripts do
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
