"""Measures speed, memory and accuracy of training in each precision; prints a Markdown table.

    python scripts/benchmarks/benchmark_amp.py -cfg=configs/vit_base_patch16_224.yaml -batch_size 64 -json a.json
    python scripts/benchmarks/benchmark_amp.py -accuracy -seeds 8 -cfg=configs/vit_digits.yaml -modes fp32,O1-bf16

Seconds per 100 iterations as in PaddleViT's AMP table, memory and throughput as in Colossal-AI's. Each turn starts
main_single_gpu.py on random images in memory, in a process of its own: the peak memory belongs to one mode, and running
out of memory is a result. Memory is torch's peak allocation on a GPU, and the peak of the process on a CPU. An
iteration is one forward and backward pass. The order of the modes is reversed in every second round. A speedup is the
median of the ratios within the rounds. `-accuracy` trains the recipe once per mode and seed and compares the top-1 of
the last epoch.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.benchmarks.common import ENTRY, MODES, mode_config, parse_names, print_result
from scripts.benchmarks.programs import add_turn_flags, entry_program, measure_programs
from scripts.benchmarks.seeds import NOISE, final_top1, seed_table
from scripts.benchmarks.turns import (
    Figures,
    figures_table,
    median_and_range,
    memory,
    ratio_table,
    speed,
    speed_ratios,
    take_turns,
)
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.device import visible_gpus
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/benchmark_amp.py"
GPU_MODES = "fp32,tf32,O1-fp16,O1-bf16,O2-fp16,O2-bf16,O3-fp16"
CPU_MODES = "fp32,O1-bf16,O2-bf16,O3-bf16"  # on a CPU float16 is 10 to 100 times slower
_PLAN = "scripts/plan.py predicts the memory of a batch size"
REMOVED = {
    "workload": "the model of -cfg is measured", "picture": "use the figures of -json", "max_batch": _PLAN,
    "memory_gb": _PLAN, "repeats": "use -rounds", "iterations": "use -steps",
}  # fmt: skip


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv, REMOVED)
    modes = parse_names("modes", flags.modes or (GPU_MODES if visible_gpus() else CPU_MODES), MODES)
    if "tf32" in modes and not visible_gpus():
        raise UserError("-modes: tf32 needs a GPU, and no GPU is visible; remove it")
    config, *_ = [mode_config(rest, mode) for mode in modes]  # reports wrong options before the measurements
    baseline = "fp32" if "fp32" in modes else modes[0]
    with TemporaryDirectory() as temporary:
        folder = (flags.output or Path(temporary)).absolute()
        if flags.accuracy:
            figures = take_turns(modes, flags.seeds, lambda mode, seed: train(rest, mode, seed, folder), flags.json)
            texts = [seed_table(figures, baseline), NOISE]
        else:
            classes = f"MODEL.NUM_CLASSES={max(1000, config.model.num_logits)}"  # as the random images have
            options = {mode: [*rest, "-opts", *MODES[mode], classes] for mode in modes}
            programs = {mode: entry_program(options[mode], flags.interval, folder / mode, None) for mode in modes}
            images = config.data.batch_size * config.train.accum_iter
            figures = measure_programs(programs, flags, images)
            texts = speed_texts(figures, baseline, config.data.batch_size)
    print_result(SCRIPT, argv, config, texts, flags.json, figures=figures)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures speed, memory and accuracy of training in each precision.")
    modes = f"precision modes, of {', '.join(MODES)} (default: {GPU_MODES} on a GPU, {CPU_MODES} on a CPU)"
    add_flag(parser, "modes", metavar="A,B", help=modes)
    add_turn_flags(parser, rounds=5, warmup=8, steps=100)
    add_flag(parser, "accuracy", action="store_true", help="compare the top-1 of the recipe over several seeds")
    add_flag(parser, "seeds", type=positive, default=8, metavar="N", help="-accuracy: SEED 0 to N-1 (default: 8)")
    add_flag(parser, "output", type=Path, metavar="FOLDER", help="keep the runs in this folder (default: delete them)")
    return parser


def train(argv: list[str], mode: str, seed: int, folder: Path) -> dict[str, float]:
    """The final top-1 of a run in percent. Raises UserError as `final_top1`."""
    output = folder / f"{mode}-seed{seed}"
    options = [*MODES[mode], f"SEED={seed}", f"SAVE={json.dumps(str(output))}"]
    command = [sys.executable, str(ENTRY), *argv, "-opts", *options]
    return {"top1": final_top1(command, output, "metrics.csv", "val_top1")}


def speed_texts(figures: Figures, baseline: str, batch_size: int) -> list[str]:
    """The table of speed and memory, and the speedups."""

    def seconds(one: dict[str, Any]) -> str:
        return median_and_range([100 * batch_size / value for value in one["images_per_second"]], ".2f")

    columns = {"seconds per 100 iterations": seconds, "images/s": speed, "peak memory (GB)": memory}
    ratios = speed_ratios(figures, [(mode, baseline) for mode in figures if mode != baseline])
    return [figures_table(figures, columns), ratio_table(ratios)]


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
