"""Measures speed and memory of training in each precision; prints Markdown tables.

    python scripts/benchmarks/benchmark_amp.py -cfg=configs/vit_base_patch16_224.yaml -batch_size 64 -json a.json
    python scripts/benchmarks/benchmark_amp.py -accuracy -seeds 8 -cfg=configs/vit_digits.yaml -modes fp32,O1-bf16

The first table has the seconds per 100 iterations of each mode and repeat (as PaddleViT's AMP table). The second table
has memory and throughput of each mode (as Colossal-AI's). An iteration is one forward and backward pass; -accum_iter
iterations make an optimizer step. `-accuracy` trains the recipe once per mode and seed and compares the top-1.

Each measurement runs in its own process: the peak memory belongs to one mode, and running out of memory is a result.
The order of the modes is reversed in every second round. A speedup is the median of the ratios within the rounds.
"""

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.benchmarks.amp.accuracy import train_modes
from scripts.benchmarks.amp.measurement import OUT_OF_MEMORY, measure_mode
from scripts.benchmarks.amp.tables import Answers, baseline_of, failure, mode_figures, texts
from scripts.benchmarks.common import (
    MODES,
    environment,
    interleaved,
    last_error,
    mode_config,
    parse_names,
    print_progress,
    print_result,
)
from scripts.benchmarks.seeds import seed_figures, seed_table, seed_verdicts
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
    "memory_gb": _PLAN,
}  # fmt: skip


def main(argv: list[str]) -> int:
    flags, rest = split_flags(_parser(), argv, REMOVED)
    if flags.worker:
        print(json.dumps(measure_mode(mode_config(rest, flags.worker), flags.iterations)))
        return 0
    modes = parse_names("modes", flags.modes or (GPU_MODES if visible_gpus() else CPU_MODES), MODES)
    if "tf32" in modes and not visible_gpus():
        raise UserError("-modes: tf32 needs a GPU, and no GPU is visible; remove it")
    configs = [mode_config(rest, mode) for mode in modes]  # reports wrong options before the measurements
    if flags.accuracy:
        baseline = baseline_of(modes)
        figures = seed_figures(train_modes(rest, modes, flags.seeds, flags.output), baseline)
        result, printed = {"modes": figures}, [seed_table(figures), seed_verdicts(figures, baseline)]
    else:
        answers = measure(modes, argv, flags.repeats)
        figures = mode_figures(answers, flags.iterations, configs[0].data.batch_size)
        result, printed = {"iterations": flags.iterations, "modes": figures}, texts(figures)
    print_result(environment(SCRIPT, argv, configs[0]), printed, flags.json, result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures speed, memory and accuracy of training in each precision.")
    modes = f"precision modes, of {', '.join(MODES)} (default: {GPU_MODES} on a GPU, {CPU_MODES} on a CPU)"
    add_flag(parser, "modes", metavar="A,B", help=modes)
    add_flag(parser, "repeats", type=positive, default=5, metavar="N", help="measurements of each mode (default: 5)")
    add_flag(parser, "iterations", type=positive, default=100, metavar="N", help="per measurement (default: 100)")
    add_flag(parser, "accuracy", action="store_true", help="compare the top-1 of the recipe over several seeds")
    add_flag(parser, "seeds", type=positive, default=8, metavar="N", help="-accuracy: SEED 0 to N-1 (default: 8)")
    kept = "-accuracy: keep the runs in this folder (default: delete them)"
    add_flag(parser, "output", type=Path, metavar="FOLDER", help=kept)
    add_flag(parser, "worker", help=argparse.SUPPRESS)  # measure this mode once, in this process
    return parser


def measure(modes: list[str], argv: list[str], repeats: int) -> Answers:
    """Measures each mode `repeats` times.

    Raises:
        UserError: all modes failed.
    """
    answers: Answers = {mode: [] for mode in modes}
    for number, mode in interleaved(modes, repeats):
        answer = run_worker(argv, mode)
        answers[mode].append(answer)
        outcome = answer.get("failed") or f"{answer['seconds']:.2f} s"
        print_progress(f"repeat {number + 1} of {repeats}, {mode}: {outcome}")
    if all(map(failure, answers.values())):
        raise UserError(f"all modes failed; {modes[0]}: {failure(answers[modes[0]])}")
    return answers


def run_worker(argv: list[str], mode: str) -> dict[str, Any]:
    """Runs this script in a process that measures `mode`, and returns the figures, or the reason under 'failed'."""
    command = [sys.executable, __file__, *argv, f"-worker={mode}"]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode == 0:
        return json.loads(process.stdout.splitlines()[-1])
    if process.returncode == -signal.SIGKILL:  # Linux kills processes this way when memory is exhausted
        return {"failed": OUT_OF_MEMORY}
    if not process.stderr.startswith("error: "):
        print_progress(process.stderr)
    return {"failed": last_error(process)}


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
