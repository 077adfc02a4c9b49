"""Compares the speed of reading images with timm's `create_loader`.

    python scripts/benchmarks/benchmark_input.py -json input.json
    python scripts/benchmarks/benchmark_input.py -camera -batch_size=8
    python scripts/benchmarks/benchmark_input.py -sources

docs/benchmarks.md describes the contenders and a turn; all read the same files and apply the same transforms.
`-timm_train PATH` adds the time from the command to the first log line with a loss, beside timm's train.py.
`-sources` compares the sources of our loader instead, with `-data_path=URL` also the shards of a web server.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from configs.command_line import parse_command_line
from configs.schema import Config, Train
from datasets.batch import PREFETCH_FACTOR
from datasets.transforms.host import build_host_transform
from scripts.benchmarks.benchmark_train import MODEL
from scripts.benchmarks.images import CAMERA, IMAGENET, link_images, make_images
from scripts.benchmarks.programs import Program, build_program, first_step
from scripts.benchmarks.streams import RATIOS, loader_streams, measure_turn, source_streams
from scripts.benchmarks.timm_command import add_timm_flag, check_comparable
from scripts.benchmarks.turns import PER_CPU, Figures, compare, figures_table, ratio_table, speed
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import keep_freed_memory
from utils.distributed import single_process
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors
from utils.system import require

SCRIPT = "benchmarks/benchmark_input.py"
DEFAULTS = ["-batch_size=32", "-num_workers=2"]
FIRST_STEPS = {"main_single_gpu.py": "jpeg", "timm's train.py": "timm"}
_ENTRIES = 3000  # images of the folder that the programs of the first step scan
_LIMIT_SECONDS = 600  # of a first step


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    config = parse_command_line([*DEFAULTS, *rest]).config.model_copy(update={"train": Train()})
    _check_comparable(config)
    if flags.sources:
        require("-sources", "obstore", "braceexpand")
    context = single_process()
    torch.set_num_threads(1)  # the workers occupy the cores
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        images = flags.data or make_images(folder / "images", CAMERA if flags.camera else IMAGENET)
        streams = (source_streams if flags.sources else loader_streams)(images, folder, config, context)
        programs = first_step_programs(images, folder, [*DEFAULTS, *rest], flags.timm_train)
        prefetched, size = PREFETCH_FACTOR * config.data.num_workers, config.data.batch_size

        def measure(name: str, _: int) -> dict[str, float]:
            if name in programs:
                return first_step(programs[name], _LIMIT_SECONDS)
            return measure_turn(streams[name], prefetched, flags.seconds, context.device)

        compare(SCRIPT, argv, size, [*streams, *programs], flags.rounds, measure, tables, flags.json, RATIOS)
    return 0


def tables(figures: Figures) -> list[str]:
    """A table of the streams, one of the programs, and their ratios."""
    starts = {name: figures[name] for name in FIRST_STEPS if name in figures}
    streams = {name: one for name, one in figures.items() if name not in starts}
    texts = [figures_table(streams, {"images/s": speed, "per CPU second": lambda one: speed(one, PER_CPU)})]
    texts.append(ratio_table(figures, RATIOS, PER_CPU, "of images per CPU second"))
    wall, cpu = (partial(speed, figure=figure) for figure in ("wall_seconds", "cpu_seconds"))
    texts += [figures_table(starts, {"first step, wall (s)": wall, "CPU (s)": cpu})] if starts else []
    kinds = {"wall_seconds": "of wall seconds", "cpu_seconds": "of CPU seconds"} if starts else {}
    return [*texts, *(ratio_table(starts, [tuple(FIRST_STEPS)], *kind) for kind in kinds.items())]


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares the speed of our loader with timm's.")
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    add_flag(parser, "camera", action="store_true", help="make JPEGs of 2000x1500 instead of 500x375")
    sources_help = "compare a folder and tar shards (local, over HTTP) instead of loaders"
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


def first_step_programs(images: Path, folder: Path, argv: list[str], timm_train: Path | None) -> dict[str, Program]:
    """The programs whose first step is timed; none without timm's. folder: gets copies of the images, and the runs."""
    if not timm_train:
        return {}
    check_comparable(parse_command_line([*MODEL, *argv]).config)
    folder /= "start"
    link_images(images, folder / "data", _ENTRIES, copies=True)
    return {label: build_program(n, [*MODEL, *argv], 1, folder, timm_train, "val") for label, n in FIRST_STEPS.items()}


if __name__ == "__main__":
    keep_freed_memory()  # as the entry scripts do
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
