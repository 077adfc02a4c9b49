"""Compares the top-1 of one recipe in each precision over several seeds; prints a Markdown table.

    python scripts/benchmarks/compare_precision.py -cfg=configs/vit_digits.yaml -seeds 5 -modes fp32,O1-bf16

Trains with main_single_gpu.py once per mode and seed; the order of the modes is reversed in every second round. A mode
is worse if its mean is below the mean of fp32 by more than the standard deviation over the seeds of fp32. The result
lists failed runs with their reasons.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.benchmarks.common import (
    ENTRY,
    MODES,
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
from scripts.benchmarks.seed_figures import failure_lines, percent, seed_cells, seed_figures, seed_header
from scripts.flags import add_flag, flag_parser, positive, split_flags
from utils.entry import run_and_report_errors
from utils.tables import markdown_table

SCRIPT = "benchmarks/compare_precision.py"


def main(argv: list[str]) -> int:
    parser = flag_parser(SCRIPT, "Compares the top-1 of one recipe in each precision over several seeds.")
    add_modes_flag(parser)
    add_flag(parser, "seeds", type=positive, default=5, metavar="N", help="number of seeds: SEED 0 to N-1 (default: 5)")
    add_flag(parser, "output", type=Path, metavar="FOLDER", help="keep the runs in this folder (default: delete them)")
    flags, rest = split_flags(parser, argv)
    modes = parse_modes(flags.modes)
    configs = [mode_config(rest, mode) for mode in modes]  # reports wrong options before the runs
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory() as temporary:
        for seed, mode in interleaved(modes, flags.seeds):
            run = train(rest, mode, seed, (flags.output or Path(temporary)) / f"{mode}-seed{seed}")
            runs[mode].append(run)
            print_progress(f"seed {seed}, {mode}: {run.get('failed') or percent(run['top1'])}")
    figures = mode_figures(runs)
    measured_on = environment(SCRIPT, argv, configs[0])
    print(environment_line(measured_on), table(figures), "\n".join(verdicts(figures)), sep="\n\n")
    write_json(flags.json, {"environment": measured_on, "seeds": flags.seeds, "modes": figures})
    return 0


def train(argv: list[str], mode: str, seed: int, output: Path) -> dict[str, Any]:
    """Top-1 in percent and training seconds of one run, or the reason under 'failed'."""
    options = [*MODES[mode], f"SEED={seed}", f"SAVE={json.dumps(str(output))}"]
    command = [sys.executable, str(ENTRY), *argv, "-opts", *options]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        return {"failed": last_error(process)}
    results = sorted(output.glob("*/result.json"), key=lambda path: path.stat().st_mtime)
    result = json.loads(results[-1].read_text()) if results else {}
    if result.get("top1") is None:
        return {"failed": "the run has no evaluation"}
    return {"top1": result["top1"], "train_seconds": result["train_seconds"]}


def mode_figures(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The figures of each mode over its runs, one run per seed."""
    figures = {mode: _figures(runs_of_mode) for mode, runs_of_mode in runs.items()}
    baseline = figures[baseline_of(figures)]
    for mode in figures.values():
        known = mode["mean"] is not None and baseline["standard_deviation"] is not None
        mode["below_baseline"] = mode["mean"] < baseline["mean"] - baseline["standard_deviation"] if known else None
    return figures


def _figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [run["train_seconds"] for run in runs if "train_seconds" in run]
    return seed_figures(runs) | {"train_seconds": statistics.mean(seconds) if seconds else None}


def table(figures: dict[str, dict[str, Any]]) -> str:
    rows = []
    for mode, one in figures.items():
        seconds = "" if one["train_seconds"] is None else f"{one['train_seconds']:.1f}"
        rows.append([mode, *seed_cells(one), seconds])
    return markdown_table(["mode", *seed_header(figures), "training (s)"], rows)


def verdicts(figures: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each mode, and for each failed run."""
    name = baseline_of(figures)
    baseline = figures[name]
    lines = []
    for mode, one in figures.items():
        lines += failure_lines(mode, one)
        if mode == name:
            continue
        if one["below_baseline"] is None:
            lines.append(f"- {mode}: no verdict; it needs two finished runs of {name} and one of {mode}")
            continue
        word = "worse" if one["below_baseline"] else "not worse"
        lines.append(
            f"- {mode}: {one['mean'] - baseline['mean']:+.2f} points from {name}'s mean, "
            f"{word} by more than the spread of {name}'s seeds ({baseline['standard_deviation']:.2f})"
        )
    return lines


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
