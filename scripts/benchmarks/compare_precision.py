"""Top-1 of one recipe in each precision, over several seeds, as a table in Markdown.

    python scripts/benchmarks/compare_precision.py -cfg=configs/vit_digits.yaml -seeds 5 -modes fp32,O1-bf16

trains with main_single_gpu.py once for each mode and seed, the modes taking turns. A mode is called worse where its
mean lies below fp32's by more than the standard deviation of fp32's own seeds. A run that fails is counted, with why.
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
    MODES,
    add_flag,
    add_modes_flag,
    baseline_of,
    chosen_modes,
    environment,
    environment_line,
    flag_parser,
    interleaved,
    last_error,
    markdown_table,
    mode_config,
    positive,
    split_flags,
    tell,
    write_json,
)
from utils.errors import run_and_report_errors

SCRIPT = "compare_precision.py"
TRAINING_SCRIPT = str(Path(__file__).parents[2] / "main_single_gpu.py")


def main(argv: list[str]) -> int:
    parser = flag_parser(SCRIPT, "Top-1 of one recipe in each precision, over several seeds.")
    add_modes_flag(parser)
    add_flag(parser, "seeds", type=positive, default=5, metavar="N", help="train with SEED 0 to N-1 (default: 5)")
    add_flag(parser, "output", type=Path, metavar="FOLDER", help="keep the runs there (default: they are removed)")
    flags, rest = split_flags(parser, argv)
    modes = chosen_modes(flags.modes)
    configs = [mode_config(rest, mode) for mode in modes]  # a mistake in the options shows now
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory() as temporary:
        for seed, mode in interleaved(modes, flags.seeds):
            one = train(rest, mode, seed, (flags.output or Path(temporary)) / f"{mode}-seed{seed}")
            runs[mode].append(one)
            tell(f"seed {seed}, {mode}: {one.get('failed') or _percent(one['top1'])}")
    figures = mode_figures(runs)
    found = environment(SCRIPT, argv, configs[0])
    print(environment_line(found), table(figures), "\n".join(verdicts(figures)), sep="\n\n")
    write_json(flags.json, {"environment": found, "seeds": flags.seeds, "modes": figures})
    return 0


def train(argv: list[str], mode: str, seed: int, output: Path) -> dict[str, Any]:
    """One run's top-1 in percent and training time, or why it 'failed'."""
    options = [*MODES[mode], f"SEED={seed}", f"SAVE={json.dumps(str(output))}"]
    command = [sys.executable, TRAINING_SCRIPT, *argv, "-opts", *options]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        return {"failed": last_error(process)}
    results = sorted(output.glob("train-*/result.json"), key=lambda path: path.stat().st_mtime)
    result = json.loads(results[-1].read_text()) if results else {}
    if result.get("top1") is None:
        return {"failed": "the run was not evaluated"}
    return {"top1": result["top1"], "train_seconds": result["train_seconds"]}


def mode_figures(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Of each mode's runs, one per seed. The seeds that failed count in `failed` alone."""
    figures = {mode: _figures(of_seeds) for mode, of_seeds in runs.items()}
    baseline = figures[baseline_of(figures)]
    for mode in figures.values():
        known = mode["mean"] is not None and baseline["standard_deviation"] is not None
        mode["below_baseline"] = mode["mean"] < baseline["mean"] - baseline["standard_deviation"] if known else None
    return figures


def _figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    top1 = [run["top1"] for run in runs if "top1" in run]
    seconds = [run["train_seconds"] for run in runs if "top1" in run]
    return {
        "top1": [run.get("top1") for run in runs],
        "mean": statistics.mean(top1) if top1 else None,
        "standard_deviation": statistics.stdev(top1) if len(top1) > 1 else None,
        "min": min(top1, default=None),
        "train_seconds": statistics.mean(seconds) if seconds else None,
        "failed": {seed: run["failed"] for seed, run in enumerate(runs) if "failed" in run},
    }


def table(figures: dict[str, dict[str, Any]]) -> str:
    seeds = max(len(one["top1"]) for one in figures.values())
    header = ["mode", *(f"seed {seed}" for seed in range(seeds)), "mean", "standard deviation", "min", "training (s)"]
    rows = []
    for mode, one in figures.items():
        tries = ["failed" if top1 is None else _percent(top1) for top1 in one["top1"]]
        spread = "" if one["standard_deviation"] is None else f"{one['standard_deviation']:.2f}"
        seconds = "" if one["train_seconds"] is None else f"{one['train_seconds']:.1f}"
        rows.append([mode, *tries, _percent(one["mean"]), spread, _percent(one["min"]), seconds])
    return markdown_table(header, rows)


def _percent(top1: float | None) -> str:
    return "" if top1 is None else f"{top1:.2f}%"


def verdicts(figures: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each mode, and one for each run that failed."""
    name = baseline_of(figures)
    baseline = figures[name]
    lines = []
    for mode, one in figures.items():
        lines += [f"- {mode}, seed {seed}: failed: {reason}" for seed, reason in one["failed"].items()]
        if mode == name:
            continue
        if one["below_baseline"] is None:
            lines.append(f"- {mode}: no verdict: it takes two finished runs of {name} and one of {mode}")
            continue
        word = "worse, by more than" if one["below_baseline"] else "not worse by more than"
        lines.append(
            f"- {mode}: {one['mean'] - baseline['mean']:+.2f} points from {name}'s mean, "
            f"{word} the spread of {name}'s seeds ({baseline['standard_deviation']:.2f})"
        )
    return lines


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
