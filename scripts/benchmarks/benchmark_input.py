"""Compares the speed of reading images with timm's `create_loader`.

    python scripts/benchmarks/benchmark_input.py -json input.json
    python scripts/benchmarks/benchmark_input.py -sources

The script makes JPEGs of 500x375 (about 106 KB, as in ImageNet) and of 2000x1500 (about 1 MB, as from cameras), or
takes the JPEGs of `-data FOLDER`. All loaders read the same files with `-num_workers` worker processes, apply the same
transforms (a random resized crop, bicubic, and a flip), and end with normalized float32 batches on the device.

The loaders take turns; the order is reversed in every second round. A turn starts a loader, discards the batches that
its workers prefetch, times a few seconds, and ends the loader. A ratio is the median of the ratios within the rounds.
`-sources` compares the sources of our loader instead: see `input/sources.py`.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Train
from datasets.transforms.host import build_host_transform
from scripts.benchmarks.common import environment, median_and_range, print_progress, print_result
from scripts.benchmarks.images import CAMERA, IMAGENET, link_images, make_images, mean_kilobytes
from scripts.benchmarks.input.contenders import loader_contenders, with_data
from scripts.benchmarks.input.turns import measure
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import keep_freed_memory
from utils.distributed import single_process
from utils.errors import UserError
from utils.packages import require
from utils.processes.entry import run_and_report_errors
from utils.tables import markdown_table

SCRIPT = "benchmarks/benchmark_input.py"
DEFAULTS = ["-batch_size=32", "-num_workers=2"]
REMOVED = {"augment": "the benchmark has crops and flips only"}
EPOCH = 20_000  # entries: long enough that pauses between epochs do not count
SIZES = {IMAGENET: 1, CAMERA: 1 / 4}  # -> a factor of the number of images and of the batch size


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv, REMOVED)
    config = parse_command_line([*DEFAULTS, *rest]).config.model_copy(update={"train": Train()})
    _check_comparable(config)
    if flags.sources:
        require("-sources", "webdataset", "obstore", "braceexpand")
    with TemporaryDirectory() as folder:
        measured = _measure_sources if flags.sources else _measure_loaders
        result, text = measured(flags, config, Path(folder))
    measured_on = environment(SCRIPT, argv, config) | {"model": f"{config.data.num_workers} workers"}
    print_result(measured_on, [text], flags.json, result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares the speed of our loader with timm's.")
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    sources_help = "compare a folder, packed images and tar shards (local, over HTTP, WebDataset) instead of loaders"
    add_flag(parser, "sources", action="store_true", help=sources_help)
    add_flag(parser, "images", type=positive, default=256, metavar="N", help="different images to make (default: 256)")
    add_flag(parser, "rounds", type=positive, default=3, metavar="N", help="turns of each contender (default: 3)")
    add_flag(parser, "seconds", type=float, default=2.0, metavar="S", help="length of a turn (default: 2)")
    return parser


def _check_comparable(config: Config) -> None:
    transform = build_host_transform(config.data, config.train, config.seed)
    if config.data.image_channels != 3 or transform.device_operations:
        raise UserError("DATA: the comparison has random crops and flips of RGB images only; remove AFFINE_* and gray")
    if not config.data.num_workers:
        raise UserError("-num_workers 0: the loaders need one worker or more")


def _image_folders(flags: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path, float]]:
    """(name, folder of class folders, factor of the batch size)"""
    if flags.data:
        yield flags.data.name, flags.data, 1
        return
    for size, share in SIZES.items():
        name = f"{size.width}x{size.height}"
        make_images(folder / name, size, count=max(16, round(flags.images * share)))
        yield name, folder / name, share


def _measure_sources(flags: argparse.Namespace, config: Config, folder: Path) -> tuple[dict[str, Any], str]:
    from scripts.benchmarks.input.sources import measure_sources, source_table

    _, images, _ = next(_image_folders(flags, folder))
    result = measure_sources(images, folder, config, flags.rounds, flags.seconds)
    return result, source_table(result)


def _measure_loaders(flags: argparse.Namespace, config: Config, folder: Path) -> tuple[dict[str, Any], str]:
    context, sections, texts = single_process(), [], []
    for name, images, share in _image_folders(flags, folder):
        different = link_images(images, folder / f"{name}-linked", EPOCH)
        size, batch_size = mean_kilobytes(different), max(1, round(config.data.batch_size * share))
        print_progress(f"{name}: {len(different)} JPEGs of {size:.0f} KB")
        data = {"dataset": "folder", "data_path": f"{folder}/{name}-linked", "batch_size": batch_size}
        loaders = loader_contenders(with_data(config, **data), context)
        prefetched = 2 * config.data.num_workers  # batches that torch's loaders prefetch
        speeds = measure(loaders, flags.rounds, flags.seconds, context.device, prefetched)
        sections.append({"name": name, "mean_kilobytes": size, "batch_size": batch_size, "loaders": speeds})
        texts += [f"## {name}: {len(different)} JPEGs of {size:.0f} KB, batch size {batch_size}"]
        texts += [loader_table(speeds, {name: one.normalized_by for name, one in loaders.items()})]
    return {"sections": sections}, "\n\n".join(texts)


def loader_table(speeds: dict[str, dict[str, Any]], normalized_by: dict[str, str]) -> str:
    rows = []
    for name, one in speeds.items():
        ratio = "" if name == one["against"] else median_and_range(one["ratios"], ".2f")
        speed = median_and_range(one["images_per_second"], ".0f")
        rows.append([name, speed, ratio, f"{one['first_batch_seconds']:.2f}", normalized_by[name]])
    return markdown_table(["loader", "images/s", "ours / it", "first batch (s)", "normalized by"], rows)


if __name__ == "__main__":
    keep_freed_memory()  # as the entry scripts do
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
