"""Measures speed and memory of training in each precision; prints Markdown tables.

    python scripts/benchmarks/benchmark_amp.py -cfg=configs/vit_base_patch16_224.yaml -batch_size 64 -json a.json

The first table has the seconds per 100 iterations of each mode and repeat (as PaddleViT's AMP table). The second table
has memory and throughput of each mode (as Colossal-AI's). An iteration is one forward and backward pass; -accum_iter
iterations make an optimizer step.

`-max_batch` finds the largest batch size that fits in the available memory, or in `-memory_gb`. `-workload linear`
trains the three linear layers of PaddlePaddle's AMP tutorial, without and with gradient accumulation.

Each measurement runs in its own process: the peak memory belongs to one mode, and running out of memory is a result.
The order of the modes is reversed in every second round. A speedup is the median of the ratios within the rounds.
"""

import argparse
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.schema import Config
from scripts.benchmarks.amp_tables import (
    Answers,
    Report,
    draw,
    failure,
    format_seconds,
    measured,
    report_linear,
    report_training,
)
from scripts.benchmarks.amp_worker import (
    LINEAR_BATCH,
    LINEAR_WIDTH,
    OUT_OF_MEMORY,
    kilobytes_in,
    measure_mode,
)
from scripts.benchmarks.common import (
    add_modes_flag,
    baseline_of,
    environment,
    environment_line,
    interleaved,
    last_error,
    mode_config,
    parse_modes,
    print_progress,
    write_json,
)
from scripts.flags import add_flag, flag_parser, new_file, positive, split_flags
from utils.device import visible_gpus
from utils.entry import run_and_report_errors
from utils.errors import UserError
from utils.tables import markdown_table

SCRIPT = "benchmarks/benchmark_amp.py"
ITERATIONS = {"vit": 100, "linear": 250}
LARGEST_BATCH = 65536


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv)
    flags.iterations = flags.iterations or ITERATIONS[flags.workload]
    if flags.worker:
        print(json.dumps(measure_mode(mode_config(rest, flags.worker), flags)))
        return 0
    modes = parse_modes(flags.modes)
    if flags.workload == "linear" and flags.max_batch:
        raise UserError("-workload linear: cannot be combined with -max_batch; remove one of them")
    configs = [mode_config(rest, mode) for mode in modes]  # reports wrong options before the measurements
    if flags.max_batch:
        report = report_largest_batches(modes, argv, flags, configs[0])
    elif flags.workload == "linear":
        report = report_linear(measure(modes, argv, flags.repeats), flags.iterations)
    else:
        report = report_training(measure(modes, argv, flags.repeats), flags.iterations, configs[0].data.batch_size)
    measured_on = environment(SCRIPT, argv, configs[0])
    if flags.workload == "linear":
        measured_on |= {"model": f"three linear layers of {LINEAR_WIDTH}", "batch_size": LINEAR_BATCH}
    print(environment_line(measured_on), *report.texts, sep="\n\n")
    write_json(flags.json, {"environment": measured_on} | report.result)
    if flags.picture:
        draw(flags.picture, report.bars)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures speed and memory of training in each precision.")
    add_modes_flag(parser)
    add_flag(parser, "repeats", type=positive, default=5, metavar="N", help="measurements of each mode (default: 5)")
    add_flag(parser, "iterations", type=positive, metavar="N", help="per measurement (default: 100; linear: 250)")
    add_flag(parser, "max_batch", action="store_true", help="find the largest batch size that fits, to within 5%%")
    add_flag(parser, "memory_gb", type=gigabytes, metavar="X", help="limit the memory to X GB (10^9 bytes)")
    add_flag(parser, "workload", choices=list(ITERATIONS), default="vit", help="the model of -cfg, or linear layers")
    add_flag(parser, "picture", type=new_file, metavar="FILE", help="also draw images/s and memory to this file")
    add_flag(parser, "worker", help=argparse.SUPPRESS)  # measure this mode once, in this process
    return parser


def gigabytes(text: str) -> float:
    """argparse type: a positive number."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
    return number


def measure(modes: list[str], argv: list[str], repeats: int) -> Answers:
    """Measures each mode `repeats` times.

    Raises:
        UserError: all modes failed.
    """
    answers: Answers = {mode: [] for mode in modes}
    for number, mode in interleaved(modes, repeats):
        answer = run_worker(argv, mode)
        answers[mode].append(answer)
        outcome = answer.get("failed") or f"{format_seconds(answer['seconds'])} s"
        print_progress(f"repeat {number + 1} of {repeats}, {mode}: {outcome}")
    if not measured(answers):
        raise UserError(f"all modes failed; {modes[0]}: {failure(answers[modes[0]])}")
    return answers


def run_worker(argv: list[str], mode: str, *more: str) -> dict[str, Any]:
    """Runs this script in a process that measures `mode`, and returns the figures, or the reason under 'failed'.

    Args:
        more: flags added to the command line.
    """
    command = [sys.executable, __file__, *argv, f"-worker={mode}", *more]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode == 0:
        return json.loads(process.stdout.splitlines()[-1])
    if process.returncode == -signal.SIGKILL:  # Linux kills processes this way when memory is exhausted
        return {"failed": OUT_OF_MEMORY}
    if not process.stderr.startswith("error: "):
        print_progress(process.stderr)
    return {"failed": last_error(process)}


def report_largest_batches(modes: list[str], argv: list[str], flags: argparse.Namespace, config: Config) -> Report:
    memory_gb = flags.memory_gb
    if memory_gb is None and not visible_gpus():
        memory_gb = kilobytes_in("/proc/meminfo", "MemAvailable") * 1024 / 1e9
    limit = [] if memory_gb is None else [f"-memory_gb={memory_gb}"]

    def fits(mode: str, batch_size: int) -> bool:
        failed = run_worker(argv, mode, *limit, "-opts", f"DATA.BATCH_SIZE={batch_size}").get("failed")
        print_progress(f"{mode}, batch size {batch_size}: {failed or 'fits'}")
        if failed not in (None, OUT_OF_MEMORY):
            raise UserError(f"{mode}: {failed}")
        return not failed

    largest = {mode: largest_batch(lambda size, mode=mode: fits(mode, size), config.data.batch_size) for mode in modes}
    baseline = baseline_of(modes)
    ratios = {mode: size / largest[baseline] if largest[baseline] else None for mode, size in largest.items()}
    rows = [[mode, str(size), f"{ratios[mode]:.2f}" if largest[baseline] else ""] for mode, size in largest.items()]
    memory = "the GPU's memory" if memory_gb is None else f"{memory_gb:.3g} GB"
    texts = [
        f"Largest batch size in {memory}, to within 5%, at most {LARGEST_BATCH}:",
        markdown_table(["mode", "largest batch size", f"/ {baseline}"], rows),
    ]
    result = {"memory_gb": memory_gb, "largest_batch": largest, "ratio": ratios}
    return Report(result, texts, {"largest batch size": largest})


def largest_batch(fits: Callable[[int], bool], start: int) -> int:
    """The largest batch size that fits, to within 5%; 0 if no size fits. Doubles from `start`, then bisects."""
    low, high = 0, min(start, LARGEST_BATCH)
    while low < LARGEST_BATCH and fits(high):
        low, high = high, min(2 * high, LARGEST_BATCH)
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
