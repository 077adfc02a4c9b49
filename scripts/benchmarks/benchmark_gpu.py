"""Measures a machine with a GPU in calls of nine minutes, without a network.

    python scripts/benchmarks/benchmark_gpu.py -output gpu_figures -cache gpu_cache

The parts, the most important first: the speed of matrix products and of copies within the GPU's memory, the two
ceilings of a training step; `-profile`, eager and compiled; training of ViT-B/16 through the entry script, with and
without dropout, in several precisions and batch sizes, compiled and not, and in a bare loop; the tests that need a GPU;
the loader on JPEGs; timm's train.py; other models; the strategies of PARALLEL (benchmark_parallel.py); the loaders
alone. `-h` lists their names; gpu_plan.py has a line for each.

A part starts if its time limit fits into the time left of `-minutes`, so one that fails or hangs stops no other. At its
end the script prints the command for the parts that were not run. Calls with the same output folder add to its tables.
`figures.md` and `figures.json` are rewritten after every turn of a program, and `figures.tar.gz`, an archive of the
whole folder, after every part. All parts share one compile cache. `-cache FOLDER` reads it from `cache.tar.gz.000` and
the next files of this folder, and writes it there at the end. No file has more than 16 MiB.

All other flags are those of main_single_gpu.py, for example `-cfg=configs/vit_tiny_patch16_224.yaml -batch_sizes=4,8`.
"""

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.benchmarks.benchmark_images import make_images
from scripts.benchmarks.benchmark_train import NO_DROPOUT
from scripts.benchmarks.common import mode_config, parse_batch_sizes, print_progress, write_json
from scripts.benchmarks.gpu_archive import pack_cache, unpack_cache, write_archive
from scripts.benchmarks.gpu_parts import Part, part_environment, run_part
from scripts.benchmarks.gpu_plan import NAMES, TIMED_IMAGES, Plan, default_names, selected_names
from scripts.benchmarks.gpu_report import FIGURES, write_figures
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.errors import run_and_report_errors

SCRIPT = "benchmarks/benchmark_gpu.py"
DEFAULTS = ["-cfg=configs/vit_base_patch16_224.yaml", *NO_DROPOUT]
JPEGS = 512  # different ones


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    deadline = time.monotonic() + 60 * flags.minutes
    selected, batch_sizes = selected_names(flags), parse_batch_sizes(flags.batch_sizes)
    mode_config([*DEFAULTS, *rest], "O1-bf16")  # reports wrong options before the measurements
    flags.output = flags.output.resolve()  # the parts run in another folder
    flags.output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        parts = Plan(flags, [*DEFAULTS, *rest], batch_sizes, Path(folder) / "images").parts()
        add_former_results([part for part in parts if part.name not in selected], flags.output)
        cache = Path(folder) / "cache"
        cache.mkdir()
        if flags.cache:
            unpack_cache(flags.cache, cache)
        try:
            for part in parts:
                if part.name in selected:
                    run(part, parts, flags, deadline, cache, argv)
        finally:
            if flags.cache:
                pack_cache(cache, flags.cache)
    print((flags.output / "figures.md").read_text())
    not_run = [part.name for part in parts if part.outcome.startswith("not run") and part.name in default_names(flags)]
    if not_run:
        print(f"For the parts that were not run:\n\n{next_command(flags, rest, not_run)}")
    ended = ("done", "not run")
    return 0 if all(part.outcome.startswith(ended) for part in parts if part.name in selected) else 1


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures a machine with a GPU within a given time.")
    add_flag(parser, "output", type=Path, default="gpu_figures", metavar="FOLDER", help="default: gpu_figures")
    add_flag(parser, "parts", metavar="A,B", help=f"of {', '.join(NAMES)} (default: in this order, as time permits)")
    add_flag(parser, "minutes", type=float, default=9.0, metavar="N", help="total time (default: 9)")
    add_flag(parser, "cache", type=Path, metavar="FOLDER", help="keep the compile cache in files of this folder")
    add_flag(parser, "batch_sizes", default="64,256", metavar="A,B", help="smallest and largest (default: 64,256)")
    add_flag(parser, "timed_images", type=positive, metavar="N", help=f"per program (default: {TIMED_IMAGES})")
    add_flag(parser, "timm_train", type=existing_file, metavar="PATH", help="train.py of a checkout of timm")
    return parser


def existing_file(text: str) -> Path:
    """argparse type: the absolute path of a file."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file; name the train.py of a checkout of timm")
    return Path(text).resolve()


def add_former_results(parts: list[Part], folder: Path) -> None:
    """Adds the outcomes and results of earlier calls with this output folder."""
    file = folder / FIGURES
    former = {row["name"]: row for row in json.loads(file.read_text())["parts"]} if file.exists() else {}
    for part in parts:
        for key, value in former.get(part.name, {}).items():
            setattr(part, key, value)


def run(
    part: Part, parts: list[Part], flags: argparse.Namespace, deadline: float, cache: Path, argv: list[str]
) -> None:
    """Runs the part, and rewrites the tables and the archive."""

    def write() -> None:
        write_json(flags.json, write_figures(flags.output, parts, SCRIPT, argv))

    if part.images and not part.images.exists():
        make_images(part.images, (500, 375), JPEGS, mean_bytes=106_000)
    try:
        run_part(part, flags.output, deadline - time.monotonic(), part_environment(cache), write)
    finally:
        write()
        write_archive(flags.output)
    print_progress(f"{part.name}: {part.outcome}")


def next_command(flags: argparse.Namespace, rest: list[str], names: list[str]) -> str:
    """Runs the parts, and measures the machine again: it may be another one."""
    values = vars(flags) | {"parts": ",".join(dict.fromkeys(["machine", *names]))}
    words = [f"-{name}={value}" for name, value in values.items() if value is not None]
    return shlex.join(["python", f"scripts/{SCRIPT}", *words, *rest])


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
