"""Measures a machine with a GPU in calls of nine minutes: python scripts/benchmarks/benchmark_gpu.py -output FOLDER

Each part is one turn of a program of benchmark_train.py, the most important first. A part starts if its time limit fits
into the time left of `-minutes`, so one that fails or hangs stops no other. The next call with the same output folder
runs the other parts; `-parts` repeats parts. See docs/benchmarks.md, GPU.
"""

import argparse
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from configs.flags import add_flag
from datasets.loading.workers import default_num_workers
from scripts.benchmarks.benchmark_train import NO_DROPOUT, check_supported, link_images, make_images
from scripts.benchmarks.programs import MODES, add_number, benchmark_parser, build_command, parse_names, run_turn
from scripts.benchmarks.turns import CORES, figures_table, memory, speed, write_json
from scripts.flags import split_flags
from utils.device import visible_gpus
from utils.errors import UserError
from utils.files import atomic_write, read_json
from utils.processes.entry import run_script
from utils.system import own_share

DEFAULTS = ["-cfg=configs/vit_base_patch16_224.yaml", *NO_DROPOUT]
WARMUP_STEPS = 20
INTERVAL = 10  # steps between log lines


class Measurement(NamedTuple):
    """A program of benchmark_train.py, its precision, and further flags.

    limit_seconds: about twice the time on an H200, so that a slow disk ends no part.
    """

    mode: str
    program: str = "ready"
    words: str = ""
    limit_seconds: int = 60


O1 = "O1-bf16"
O2 = "O2-bf16"
WHOLE = "-compile -opts TRAIN.COMPILE=model"
PARTS = {
    "O1": Measurement(O1),
    "O2": Measurement(O2),
    "torch_ops": Measurement(O1, words="-opts MODEL.FUSED_BLOCKS=false"),
    "float32_sums": Measurement(O1, words="-opts AMP.CUSTOM_BLACK_LIST=[add]"),
    "compiled": Measurement(O1, words="-compile", limit_seconds=80),
    "O2_compiled": Measurement(O2, words="-compile", limit_seconds=80),
    "stream_compiled": Measurement(O1, words="-compile -opts AMP.PRESET=bf16_stream", limit_seconds=80),
    "jpeg_eager": Measurement(O1, "jpeg"),
    "timm_eager": Measurement(O1, "timm"),
    "jpeg": Measurement(O1, "jpeg", "-compile", 80),
    "timm": Measurement(O1, "timm", WHOLE, 120),
    "jpeg_whole": Measurement(O1, "jpeg", WHOLE, 120),
    "droppath_compiled": Measurement(O1, words="-compile -opts MODEL.DROPPATH=0.2", limit_seconds=80),
    "muon": Measurement(O1, words="-opts TRAIN.OPTIMIZER.NAME=muon"),
    "dropout": Measurement(O1, words="-opts MODEL.DROPOUT=0.1 MODEL.ATTENTION_DROPOUT=0.1"),  # the shipped recipe's
    "fp16": Measurement("O1-fp16"),
    "fp32": Measurement("fp32"),
}


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    deadline = time.monotonic() + 60 * flags.minutes
    check_supported(parse_command_line([*DEFAULTS, *rest]).config.train)
    selected = parse_names("parts", flags.parts, PARTS) if flags.parts else list(PARTS)
    flags.output.mkdir(parents=True, exist_ok=True)
    file = flags.output / "figures.json"
    figures = read_json(file)
    has_failed = False
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if {PARTS[name].program for name in selected} & {"jpeg", "timm"}:
            images = flags.data or make_images(folder / "images")
            link_images(images, folder / "data", 2 * flags.timed_images + 2 * WARMUP_STEPS * flags.large_batch)
        for name in selected:
            part = PARTS[name]
            is_done = name in figures and not flags.parts
            cannot_run = part.program == "timm" and not flags.timm_train
            if is_done or cannot_run or part.limit_seconds > deadline - time.monotonic():
                continue
            program = build_command(part.program, argv_of(part, flags, rest), INTERVAL, folder, flags.timm_train)
            timed_images = flags.timed_images // (4 if part.mode == "fp32" else 1)
            steps = max(INTERVAL, timed_images // flags.large_batch)
            try:
                measured = run_turn(program, WARMUP_STEPS, steps, part.limit_seconds, flags.large_batch)
                figures[name] = {key: [value] for key, value in measured.items()}
            except UserError as error:
                figures[name] = {"failed": str(error)}
                has_failed = True
            print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
            for path in (file, flags.json):
                write_json(path, figures)
    columns = {"images/s": speed, "peak memory (GB)": memory, "CPU cores": partial(speed, figure=CORES)}
    table = figures_table(figures, columns)
    atomic_write(flags.output / "figures.md", f"{table}\n")
    print(table)
    return int(has_failed)


def argv_of(part: Measurement, flags: argparse.Namespace, rest: list[str]) -> list[str]:
    """The flags of main_single_gpu.py for a part."""
    workers = default_num_workers(own_share(), on_gpu=visible_gpus() > 0)
    sizes = [f"-batch_size={flags.large_batch}", f"-num_workers={workers}"]
    return [*DEFAULTS, *rest, *sizes, *shlex.split(part.words), "-opts", *MODES[part.mode]]


def _parser() -> argparse.ArgumentParser:
    parser = benchmark_parser("benchmark_gpu.py", "Measures a machine with a GPU within a given time.")
    add_flag(parser, "output", type=Path, default="gpu_figures", metavar="FOLDER", help="default: gpu_figures")
    parts = f"of {', '.join(PARTS)} (default: all that have not run)"
    add_flag(parser, "parts", metavar="A,B", help=parts)
    add_number(parser, "minutes", 9.0, "total time", float)
    add_number(parser, "large_batch", 256, "of the parts")
    add_number(parser, "timed_images", 16384, "images per part, a quarter of them in fp32")
    return parser


if __name__ == "__main__":
    run_script(main)
