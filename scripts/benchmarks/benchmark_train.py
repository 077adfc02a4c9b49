"""Compares training through the entry script with a bare loop of the same model and with timm's train.py.

    python scripts/benchmarks/benchmark_train.py -timm_train ~/pytorch-image-models/train.py -json train.json

By default it trains configs/vit_tiny_patch16_224.yaml at batch size 32 with -amp and without dropout, because timm's
train.py has no dropout by default. The programs:

- `jpeg`: main_single_gpu.py on JPEGs, which the script makes, or on the JPEGs of `-data FOLDER`;
- `jpeg_whole`: the same with the whole model compiled (TRAIN.COMPILE=model), as timm compiles it; needs `-compile`,
  which compiles the others block by block;
- `ready`: main_single_gpu.py on random images in memory, without crops (`-dataset=fake`);
- `bare`: forward pass, loss, backward pass, clipping and AdamW on ready tensors;
- `timm`: timm's train.py with the same JPEGs, model, batch size, workers, precision, optimizer and drop rates;
- `timm_explicit`: the same with TIMM_FUSED_ATTN=0, its best setting on a CPU.

The programs take turns; the order is reversed in every second round. A turn starts a program in its own processes and
ends it. The first `-warmup` steps are not timed. Then the loading workers are paused until the program has used their
prefetched batches. The next `-steps` steps are timed by the clock of this script, between the arrivals of two log
lines. A ratio is the median of the ratios within the rounds. `-json` is rewritten after every turn.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.reading.command_line import parse_command_line
from configs.schema import Config, Data, Train
from datasets.loading.loader import PREFETCH_FACTOR
from scripts.benchmarks.common import (
    ENTRY,
    environment,
    interleaved,
    median_and_range,
    parse_names,
    print_progress,
    print_result,
    write_json,
)
from scripts.benchmarks.images import IMAGENET, link_images, make_images
from scripts.benchmarks.programs import BARE, OURS, TIMM, Program, ProgramError, Window, run_turn
from scripts.benchmarks.timm_command import check_comparable, timm_flags
from scripts.benchmarks.training_parts import bare_loop, build_state, ready_batches
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import peak_memory_bytes, synchronize, visible_gpus
from utils.distributed import single_process
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors
from utils.tables import markdown_table

SCRIPT = "benchmarks/benchmark_train.py"
NO_DROPOUT = ["-opts", "MODEL.DROPOUT=0.0", "MODEL.ATTENTION_DROPOUT=0.0"]
DEFAULTS = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-batch_size=32", "-num_workers=2", "-amp", *NO_DROPOUT]
OTHERS = ("bare", "timm", "timm_explicit")  # not the entry script
PROGRAMS = ("jpeg", "jpeg_whole", "ready", *OTHERS)
RATIOS = (
    *(("jpeg", "timm"), ("jpeg_whole", "timm"), ("jpeg", "timm_explicit")),
    *(("ready", "bare"), ("jpeg", "ready"), ("bare", "timm")),
)
READY_OPTIONS = ("DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.0, 1.0]", "DATA.HFLIP_PROB=0.0")
SUPPORTED = {"accum_iter": 1, "model_ema": False, "mixup_alpha": 0.0, "cutmix_alpha": 0.0}  # the only values
IMAGES = 256  # different JPEGs

Results = dict[str, list[Window] | ProgramError]  # the turns of each program, or its error


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    config = parse_command_line([*DEFAULTS, *rest]).config
    if flags.worker:
        for line in run_bare_loop(config, flags.interval):
            print(line, flush=True)
    names = checked_programs(flags, config)
    with TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        if set(names) - {"ready", "bare"}:
            images = flags.data or Path(folder) / "images"
            if not flags.data:
                make_images(images, IMAGENET, IMAGES)
            link_images(images, data, entries=max_steps(flags, config.data) * config.data.batch_size)
        programs = {name: build_program(name, rest, config, flags, Path(folder)) for name in names}
        results = measure(programs, config, flags, lambda results: write_json(flags.json, figures_of(results, config)))
    figures = figures_of(results, config)
    print_result(environment(SCRIPT, argv, config), texts(**figures, flags=flags), flags.json, figures)
    if all("failed" in one for one in figures["programs"].values()):
        raise UserError(f"all programs failed; {names[0]}: {results[names[0]]}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Compares training through the entry script with a bare loop and timm's train.py.")
    add_flag(parser, "timm_train", type=Path, metavar="PATH", help="train.py of a checkout of timm")
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    add_flag(parser, "programs", metavar="A,B", help=f"of {', '.join(PROGRAMS)} (default: all that can run here)")
    add_flag(parser, "rounds", type=positive, default=6, metavar="N", help="turns of each program (default: 6)")
    add_flag(parser, "warmup", type=positive, default=8, metavar="N", help="first steps, not timed (default: 8)")
    add_flag(parser, "steps", type=positive, default=12, metavar="N", help="timed steps per turn (default: 12)")
    add_flag(parser, "interval", type=positive, default=4, metavar="N", help="steps between log lines (default: 4)")
    add_flag(parser, "limit", type=positive, default=600, metavar="S", help="seconds per turn at most (default: 600)")
    add_flag(parser, "worker", action="store_true", help=argparse.SUPPRESS)  # run the bare loop in this process
    return parser


def checked_programs(flags: argparse.Namespace, config: Config) -> list[str]:
    """The programs to run. Raises UserError for flags and options that cannot be compared."""
    if flags.programs:
        names = parse_names("programs", flags.programs, PROGRAMS)
    else:
        timms = () if flags.timm_train is None else ("timm",) if visible_gpus() else ("timm", "timm_explicit")
        whole = ("jpeg_whole",) if config.train.compile == "default" else ()
        names = ["jpeg", *whole, "ready", "bare", *timms]
    for name in names:
        if name == "jpeg_whole" and config.train.compile != "default":
            raise UserError("-programs jpeg_whole: compares two ways of compilation; add -compile")
        if name.startswith("timm"):
            if flags.timm_train is None:
                raise UserError(f"-programs {name}: needs -timm_train PATH, the train.py of a checkout of timm")
            check_comparable(config)
    if flags.timm_train and not flags.timm_train.is_file():
        raise UserError(f"-timm_train {flags.timm_train}: no such file; name the train.py of a checkout of timm")
    check_supported(config.train)
    if config.amp.enabled and config.amp.level != "O1" and any(name in OTHERS for name in names):
        raise UserError(f"AMP.LEVEL {config.amp.level}: {', '.join(OTHERS)} support O1 only; use -programs=jpeg,ready")
    return names


def check_supported(train: Train) -> None:
    """Raises UserError for options that not all programs have, or that change their work per step."""
    others = {key: value for key, value in SUPPORTED.items() if getattr(train, key) != value}
    if others:
        fixes = " ".join(f"TRAIN.{key.upper()}={str(value).lower()}" for key, value in others.items())
        raise UserError(f"the comparison does not support this recipe; add -opts {fixes}")


def max_steps(flags: argparse.Namespace, data: Data) -> int:
    """Upper bound of the steps of a program in a turn. An epoch is at least as long."""
    return flags.warmup + flags.steps + (PREFETCH_FACTOR + 1) * data.num_workers + 3 * flags.interval


# Programs


def build_program(name: str, rest: list[str], config: Config, flags: argparse.Namespace, folder: Path) -> Program:
    if name == "bare":
        return Program([sys.executable, __file__, "-worker", f"-interval={flags.interval}", *rest], {}, BARE)
    if name.startswith("timm"):
        explicit = {"TIMM_FUSED_ATTN": "0"} if name == "timm_explicit" else {}
        command = [
            sys.executable,
            str(flags.timm_train),
            *timm_flags(config, folder / "data", folder / "timm", flags.interval),
        ]
        return Program(command, explicit, TIMM, config.data.num_workers > 0)
    command = [sys.executable, str(ENTRY), *DEFAULTS, *rest, f"-output={folder}/{name}", *data_flags(name, folder)]
    options = [f"REPORT_FREQ={flags.interval}", "VALIDATE_FREQ=1000000", "SAVE_FREQ=1000000", "SAVE_FREQ_MINUTES=null"]
    if name == "jpeg_whole":
        options += ["TRAIN.COMPILE=model"]
    if name == "ready":
        options += READY_OPTIONS
    prefetches = config.data.num_workers > 0 and not (name == "ready" and not visible_gpus())
    return Program([*command, "-opts", *options], {}, OURS, prefetches)


def data_flags(name: str, folder: Path) -> list[str]:
    """The data of a program of the entry script; JPEGs are in `folder / "data"`."""
    if name != "ready":
        return ["-dataset=folder", f"-data_path={folder}/data"]
    # On a CPU a worker would take a core from the model.
    return ["-dataset=fake", *([] if visible_gpus() else ["-num_workers=0"])]


def run_bare_loop(config: Config, interval: int) -> Iterator[str]:
    """Trains without end and yields a log line after every `interval` steps."""
    context = single_process()
    loop = bare_loop(build_state(config, context), config.train, ready_batches(config, context))
    for steps in count(interval, interval):
        loop(interval)
        synchronize(context.device)
        yield f"bare loop, step {steps - 1}, {peak_memory_bytes(context.device) / 1e9:.3f}G"


# Measurements


def measure(
    programs: dict[str, Program], config: Config, flags: argparse.Namespace, after_turn: Callable[[Results], None]
) -> Results:
    """A program that failed gets no more turns."""
    results: Results = {name: [] for name in programs}
    for number, name in interleaved(list(programs), flags.rounds):
        if isinstance(results[name], ProgramError):
            continue
        try:
            window = run_turn(programs[name], flags.warmup, flags.steps, flags.limit)
            results[name].append(window)
            outcome = f"{window.steps * config.data.batch_size / window.seconds:.1f} images/s"
        except ProgramError as error:
            results[name], outcome = error, f"failed: {error}"
        print_progress(f"round {number + 1} of {flags.rounds}, {name}: {outcome}")
        after_turn(results)
    return results


def figures_of(results: Results, config: Config) -> dict[str, Any]:
    """The figures of the turns so far, and their ratios. A program without a complete turn is missing."""
    figures = {name: program_figures(windows, config.data.batch_size) for name, windows in results.items() if windows}
    return {"programs": figures, "ratios": speed_ratios(figures)}


def program_figures(windows: list[Window] | ProgramError, images_per_step: int) -> dict[str, Any]:
    """One value per round, or the reason under 'failed'."""
    if isinstance(windows, ProgramError):
        return {"failed": str(windows)}
    return {
        "images_per_second": [window.steps * images_per_step / window.seconds for window in windows],
        "data_wait_share": [window.waiting_share for window in windows],
        "peak_memory_bytes": max(window.memory_bytes for window in windows) or None,
    }


def speed_ratios(figures: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """'one / other' -> the ratio in each round that both completed, for all pairs that were measured."""
    speeds = {name: one["images_per_second"] for name, one in figures.items() if "failed" not in one}
    return {
        f"{one} / {other}": [mine / its for mine, its in zip(speeds[one], speeds[other], strict=False)]
        for one, other in RATIOS
        if one in speeds and other in speeds
    }


def texts(programs: dict[str, dict[str, Any]], ratios: dict[str, list[float]], flags: argparse.Namespace) -> list[str]:
    rows = []
    for name, one in programs.items():
        if "failed" in one:
            rows.append([name, f"failed: {one['failed']}", "", ""])
            continue
        memory = one["peak_memory_bytes"]
        wait = "" if name in OTHERS else f"{statistics.median(one['data_wait_share']):.1%}"
        speed = median_and_range(one["images_per_second"], ".1f")
        rows.append([name, speed, wait, f"{memory / 1e9:.2f}" if memory else ""])
    header = ["program", "images/s", "data wait", "peak memory (GB)"]
    ratio_rows = [[name, median_and_range(values, ".3f")] for name, values in ratios.items()]
    return [
        f"{flags.rounds} turns of {flags.steps} steps each, after {flags.warmup} warm-up steps:",
        markdown_table(header, rows),
        markdown_table(["ratio", "of images/s"], ratio_rows),
    ]


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
