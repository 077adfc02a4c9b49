"""Measures a machine with a GPU in calls of nine minutes, without a network.

    python scripts/benchmarks/benchmark_gpu.py -output gpu_figures -cache gpu_cache

The parts, the most important first: the speed of matrix products and of copies within the GPU's memory, the two
ceilings of a training step; `-profile`, eager and compiled; training of ViT-B/16 through the entry script, with and
without dropout, in several precisions and batch sizes, compiled and not, and in a bare loop; the tests that need a GPU;
the loader on JPEGs; timm's train.py; other models; the strategies of PARALLEL; the loaders alone. `-h` lists their
names; gpu/plan.py has a line for each.

A part starts if its time limit fits into the time left of `-minutes`, so one that fails or hangs stops no other. At its
end the script prints the command for the parts that are not done. Calls with the same output folder add to its tables.
`figures.md`, `figures.json` and `figures.tar.gz`, an archive of the whole folder, are rewritten after every part. All
parts share one compile cache. `-cache FOLDER` reads it from `cache.tar.gz.000` and the next files of this folder, and
writes it there at the end. No file has more than 16 MiB.

All other flags are flags of main_single_gpu.py, for example `-cfg=configs/vit_tiny_patch16_224.yaml`.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.benchmarks.benchmark_train import NO_DROPOUT, check_supported
from scripts.benchmarks.common import mode_config, parse_batch_sizes, parse_names, print_progress, write_json
from scripts.benchmarks.gpu.archive import drop_incomplete, pack_cache, unpack_cache, write_archive
from scripts.benchmarks.gpu.parts import NOT_RUN, Part, part_environment, run_part
from scripts.benchmarks.gpu.plan import FP32_TIMED_IMAGES, NAMES, TIMED_IMAGES, Plan, default_names
from scripts.benchmarks.gpu.report import FIGURES, write_figures
from scripts.benchmarks.images import IMAGENET, make_images
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import visible_gpus
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/benchmark_gpu.py"
DEFAULTS = ["-cfg=configs/vit_base_patch16_224.yaml", *NO_DROPOUT]
JPEGS = 512  # different ones
RESERVED_SECONDS = 15  # to stop the last part, and to pack the compile cache


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    deadline = time.monotonic() + 60 * flags.minutes - RESERVED_SECONDS
    selected = parse_names("parts", flags.parts, NAMES) if flags.parts else default_names(flags)
    batch_sizes = parse_batch_sizes(flags.batch_sizes)
    check_supported(mode_config([*DEFAULTS, *rest], "O1-bf16").train)  # before the measurements
    if not visible_gpus():
        print_progress("warning: no GPU is visible; the parts run on the CPU")
    flags.output = flags.output.resolve()  # the parts run in another folder
    flags.output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        parts = Plan(flags, [*DEFAULTS, *rest], batch_sizes, Path(folder) / "images").parts()
        reported = with_former_results(parts, flags.output)

        def write() -> None:
            write_json(flags.json, write_figures(flags.output, list(reported.values()), SCRIPT, argv))

        write()
        cache = Path(folder) / "cache"
        cache.mkdir()
        if flags.cache:
            unpack_cache(flags.cache, cache)
        try:
            for part in parts:
                if part.name in selected and part.limit_seconds <= deadline - time.monotonic():
                    reported[part.name] = part
                    run(part, flags.output, cache, write)
        finally:
            if flags.cache:
                pack_cache(cache, flags.cache)
    print((flags.output / "figures.md").read_text())
    missing = [part.name for part in reported.values() if not part.is_done and part.name in default_names(flags)]
    if missing:
        print(f"For the parts that are not done:\n\n{next_command(flags, rest, missing)}")
    return 0 if all(part.is_done or part.outcome.startswith(NOT_RUN) for part in parts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures a machine with a GPU within a given time.")
    parser.usage = "%(prog)s [-cfg FILE] [flags] [flags of main_single_gpu.py]"
    add_flag(parser, "output", type=Path, default="gpu_figures", metavar="FOLDER", help="default: gpu_figures")
    add_flag(parser, "parts", metavar="A,B", help=f"of {', '.join(NAMES)} (default: in this order, as time permits)")
    add_flag(parser, "minutes", type=float, default=9.0, metavar="N", help="total time (default: 9)")
    add_flag(parser, "cache", type=Path, metavar="FOLDER", help="keep the compile cache in files of this folder")
    sizes = "the batch sizes of the `_small` parts and of the others (default: 64,256)"
    add_flag(parser, "batch_sizes", default="64,256", metavar="A,B", help=sizes)
    images = f"images per timed turn of a program (default: {TIMED_IMAGES}; fp32: {FP32_TIMED_IMAGES})"
    add_flag(parser, "timed_images", type=positive, metavar="N", help=images)
    add_flag(parser, "timm_train", type=existing_file, metavar="PATH", help="train.py of a checkout of timm")
    return parser


def existing_file(text: str) -> Path:
    """argparse type: the absolute path of a file."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file; name the train.py of a checkout of timm")
    return Path(text).resolve()


def with_former_results(parts: list[Part], folder: Path) -> dict[str, Part]:
    """The parts by name, with the outcomes and results of earlier calls with this output folder."""
    file = folder / FIGURES
    rows = json.loads(file.read_text())["parts"] if file.exists() else []
    former = {row["name"]: row for row in rows if not row["outcome"].startswith(NOT_RUN)}
    return {part.name: replace(part, **former.get(part.name, {})) for part in parts}


def run(part: Part, folder: Path, cache: Path, write: Callable[[], None]) -> None:
    """Runs the part, and rewrites the tables and the archive."""
    if part.images and not part.images.exists():
        make_images(part.images, IMAGENET, JPEGS)
    try:
        run_part(part, folder, part_environment(cache))
    finally:
        if not part.is_done:
            drop_incomplete(cache, since=time.time() - part.seconds)
        write()
        write_archive(folder)
    print_progress(f"{part.name}: {part.outcome}")


def next_command(flags: argparse.Namespace, rest: list[str], names: list[str]) -> str:
    """Runs the parts, and measures the machine again: it may be another one."""
    values = vars(flags) | {"parts": ",".join(dict.fromkeys(["machine", *names]))}
    words = [f"-{name}={value}" for name, value in values.items() if value is not None]
    packages = ["env", f"PYTHONPATH={os.environ['PYTHONPATH']}"] if os.environ.get("PYTHONPATH") else []
    return shlex.join([*packages, sys.executable, f"scripts/{SCRIPT}", *words, *rest])


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
