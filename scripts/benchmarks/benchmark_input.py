"""Compares the speed of reading images with timm's `create_loader`.

    python scripts/benchmarks/benchmark_input.py -json input.json
    python scripts/benchmarks/benchmark_input.py -camera -batch_size=8
    python scripts/benchmarks/benchmark_input.py -sources

The script makes JPEGs of 500x375 (about 106 KB, as in ImageNet) or with `-camera` of 2000x1500 (about 1 MB), or takes
the JPEGs of `-data FOLDER`. All loaders read the same files with `-num_workers` worker processes, apply the same
transforms (a random resized crop, bicubic, and a flip), and end with normalized float32 batches on the device; `uint8`
ends before the normalization. The limit, `decode and resize`, is what the same number of processes decode and resize:
the crops of our loader, of files that are in memory.

The loaders take turns; the order is reversed in every second round. A turn starts a loader, discards the batches that
its workers prefetch, times a few seconds, and ends the loader. A ratio is the median of the ratios within the rounds.
`-timm_train PATH` adds the time from the command to the first step, beside timm's train.py: see `input/first_step.py`.
`-sources` compares the sources of our loader instead: see `input/sources.py`.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Train
from datasets.loading.slots import PREFETCH_FACTOR
from datasets.transforms.host import build_host_transform
from scripts.benchmarks.common import print_result
from scripts.benchmarks.images import CAMERA, IMAGENET, link_images, make_images
from scripts.benchmarks.input.first_step import first_steps
from scripts.benchmarks.input.streams import Streams, limit_batches, measure_turn, our_batches, timm_batches
from scripts.benchmarks.timm_command import add_timm_flag
from scripts.benchmarks.turns import PER_CPU, figures_table, ratio_table, speed, speed_ratios, take_turns
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import keep_freed_memory
from utils.distributed import ProcessContext, single_process
from utils.errors import UserError
from utils.packages import require
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/benchmark_input.py"
DEFAULTS = ["-batch_size=32", "-num_workers=2"]
EPOCH = 20_000  # entries: long enough that pauses between epochs do not count
OURS, UINT8, TIMM, LIMIT = "ours", "ours, uint8", "timm create_loader", "decode and resize"
ALONE = ", one process"
RATIOS = [(OURS, TIMM), (OURS, LIMIT), (UINT8, LIMIT), (UINT8 + ALONE, LIMIT + ALONE)]


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    config = parse_command_line([*DEFAULTS, *rest]).config.model_copy(update={"train": Train()})
    _check_comparable(config)
    if flags.sources:
        require("-sources", "webdataset", "obstore", "braceexpand")
        from scripts.benchmarks.input import sources
    context = single_process()
    torch.set_num_threads(1)  # the workers occupy the cores
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        images = flags.data or folder / "images"
        if not flags.data:
            make_images(images, CAMERA if flags.camera else IMAGENET)
        if flags.sources:
            prepared, pairs = sources.source_streams(images, folder, config, context), sources.RATIOS
        else:
            prepared, pairs = loader_streams(images, folder, config, context), RATIOS
        prefetched = PREFETCH_FACTOR * config.data.num_workers
        with prepared as streams:
            figures = take_turns(
                list(streams),
                flags.rounds,
                lambda name, _: measure_turn(streams[name], prefetched, flags.seconds, context.device),
                flags.json,
            )
        starts, start_texts = first_steps(images, folder, [*DEFAULTS, *rest], flags)
    ratios, cpu_ratios = speed_ratios(figures, pairs), speed_ratios(figures, pairs, PER_CPU)
    columns = {"images/s": speed, "per CPU second": lambda one: speed(one, PER_CPU)}
    texts = [figures_table(figures, columns), ratio_table(ratios)]
    texts += [ratio_table(cpu_ratios, "of images per CPU second"), *start_texts]
    print_result(SCRIPT, argv, config.data.batch_size, texts, flags.json, figures=figures | starts, ratios=ratios)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares the speed of our loader with timm's.")
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    add_flag(parser, "camera", action="store_true", help="make JPEGs of 2000x1500 instead of 500x375")
    sources_help = "compare a folder and tar shards (local, over HTTP, WebDataset) instead of loaders"
    add_flag(parser, "sources", action="store_true", help=sources_help)
    add_timm_flag(parser)
    add_flag(parser, "rounds", type=positive, default=3, metavar="N", help="turns of each contender (default: 3)")
    add_flag(parser, "seconds", type=float, default=2.0, metavar="S", help="length of a turn (default: 2)")
    return parser


def _check_comparable(config: Config) -> None:
    transform = build_host_transform(config.data, config.train, config.seed)
    if config.data.image_channels != 3 or transform.device_operations:
        raise UserError("DATA: the comparison has random crops and flips of RGB images only; remove AFFINE_* and gray")
    if not config.data.num_workers:
        raise UserError("-num_workers 0: the loaders need one worker or more")


@contextmanager
def loader_streams(images: Path, folder: Path, config: Config, context: ProcessContext) -> Iterator[Streams]:
    """Our loader, its limit, and timm's, on links to the images."""
    link_images(images, folder / "linked", EPOCH)
    config = config.with_data(dataset="folder", data_path=str(folder / "linked"))
    alone = config.with_data(num_workers=0)
    yield {
        TIMM: lambda: timm_batches(config.data, context.device),
        OURS: lambda: our_batches(config, context),
        UINT8: lambda: our_batches(config, context, normalizes=False),
        LIMIT: lambda: limit_batches(config, context),
        UINT8 + ALONE: lambda: our_batches(alone, context, normalizes=False),
        LIMIT + ALONE: lambda: limit_batches(alone, context),
    }


if __name__ == "__main__":
    keep_freed_memory()  # as the entry scripts do
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
