"""Measures speed, memory and accuracy of training in each precision; prints a Markdown table.

    python scripts/benchmarks/benchmark_amp.py -cfg=configs/vit_base_patch16_224.yaml -batch_size 64 -json a.json
    python scripts/benchmarks/benchmark_amp.py -accuracy -seeds 8 -cfg=configs/vit_digits.yaml -modes fp32,O1-bf16

Each turn is a process of main_single_gpu.py, so that the peak memory belongs to one mode: of torch on a GPU, and of the
process on a CPU. Running out of memory is a result. See docs/benchmarks.md.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from configs.command_line import parse_command_line
from configs.flags import entry_parser
from configs.schema import Config
from scripts.benchmarks.programs import ENTRY, MODES, add_turn_flags, build_program, final_top1, parse_names, run_turn
from scripts.benchmarks.turns import (
    NOISE,
    SPEED,
    Columns,
    Figures,
    compare,
    figures_table,
    median_and_range,
    memory,
    seed_table,
    speed,
)
from scripts.flags import add_flag, flag_parser, numbers, positive, positive_number, split_flags
from utils.device import visible_gpus
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/benchmark_amp.py"
GPU_MODES = "fp32,tf32,O1-fp16,O1-bf16,O2-fp16,O2-bf16,O3-fp16"
CPU_MODES = "fp32,O1-bf16,O2-bf16,O3-bf16"  # on a CPU float16 is 10 to 100 times slower
DEFAULTS = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-batch_size=32"]  # 2.6 GB in float32


class Document(NamedTuple):
    """The table of a document on AMP: its settings, labels and published figures. The user's flags replace its own."""

    rows: dict[str, Sequence[str]]  # label -> -opts
    columns: Columns
    published: list[str]  # rows of `figures_table`
    flags: list[str]  # of main_single_gpu.py
    defaults: dict[str, Any]  # of this script


def _speedup(one: dict[str, Any]) -> str:
    """The ratio of the averages; '-' for the first row."""
    first, seconds = one["first"], one["seconds"]
    return f"{statistics.mean(first) / statistics.mean(seconds):.3f}" if first not in (None, seconds) else "-"


SPEED_COLUMNS: Columns = {
    "seconds per 100 iterations": lambda one: median_and_range(one["seconds"], ".2f"),
    "images/s": speed,
    "peak memory (GB)": memory,
    "data wait": lambda one: f"{statistics.mean(one['data_wait_share']):.0%}" if "data_wait_share" in one else "",
    "CPU seconds per 100 iterations": lambda one: median_and_range(one["cpu_seconds"], ".2f"),
}
_REPEATS: Columns = {
    name: lambda one, at=at: "".join(f"{value:.4g}s" for value in one["seconds"][at : at + 1])
    for at, name in enumerate(("1st", "2nd", "3rd", "4th", "5th", "6th", "7th"))
}
_FP32, _VIT_B = ["AMP.PRESET=fp32"], "-cfg=configs/vit_base_patch16_224.yaml"

DOCUMENTS = {
    "paddlevit": Document(  # docs/paddlevit-amp.md, V100
        rows={"AMP off": _FP32, "AMP on": ["AMP.PRESET=torch"]},
        columns=_REPEATS | {"Average": lambda one: f"{statistics.mean(one['seconds']):.2f}s", "Speedup": _speedup},
        published=["78s|78s|79s|78s|78s|79s|78s|78.29s|-", "42s|41s|41s|41s|41s|41s|41s|41.14s|1.903"],
        flags=[_VIT_B, "-batch_size=64"],
        defaults={"rounds": 7},
    ),
    "caltech256": Document(  # a PyTorch tutorial, GPU with 6 GB: batch size 512 fits with AMP only
        rows={
            f"{size}, {name}": [f"DATA.BATCH_SIZE={size}", f"AMP.PRESET={preset}"]
            for size in (256, 512)
            for name, preset in (("fp32", "fp32"), ("AMP", "torch"))
        },
        columns=SPEED_COLUMNS,
        published=[],
        flags=["-cfg=configs/resnet50_caltech256.yaml", "-opts", "MODEL.PRETRAINED=null"],
        defaults={"rounds": 1, "memory_gb": 6.0},
    ),
}


def main(argv: list[str]) -> int:
    flags, rest = parse_flags(argv)
    rows = rows_of(flags)
    commands = {row: [*rest, "-opts", *options] for row, options in rows.items()}
    configs = {row: parse_command_line(command).config for row, command in commands.items()}  # reports wrong options
    size, baseline = next(iter(configs.values())).data.batch_size, next(iter(rows))
    with TemporaryDirectory() as temporary:
        folder = (flags.output or Path(temporary)).absolute()

        def measure(row: str, number: int) -> dict[str, float]:
            if not flags.accuracy:
                return measure_speed(commands[row], configs[row], flags, folder / row)
            output = folder / f"{row}-seed{number}"
            options = [f"SEED={number}", f"SAVE={json.dumps(str(output))}"]
            command = [sys.executable, str(ENTRY), *commands[row], *options]
            return {"top1": final_top1(command, output, "metrics.csv", "val_top1")}

        rounds = flags.seeds if flags.accuracy else flags.rounds
        pairs = [] if flags.table or flags.accuracy else [(row, baseline) for row in rows if row != baseline]
        compare(SCRIPT, argv, size, rows, rounds, measure, lambda found: tables(flags, found), flags.json, pairs)
    return 0


def tables(flags: argparse.Namespace, figures: Figures) -> list[str]:
    """The tables of all figures, of an interrupted measurement too."""
    if flags.table:
        document, first = DOCUMENTS[flags.table], next(iter(figures.values())).get("seconds")
        compared = {row: one | {"first": first} for row, one in figures.items()}
        return [figures_table(compared, document.columns, document.published)]
    if not flags.accuracy:
        return [figures_table(figures, SPEED_COLUMNS)]
    endings = [f", {number} epochs" for number in flags.epochs] or [""]
    found = [{row: one for row, one in figures.items() if row.endswith(ending)} for ending in endings]
    return [*(seed_table(table, next(iter(table))) for table in found), NOISE]


def parse_flags(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The script's flags, and flags of main_single_gpu.py: of the document or the default recipe, then the user's.

    Raises UserError: a flag has no effect, or is missing.
    """
    parser = _parser()
    document = DOCUMENTS.get(parser.parse_known_args(argv)[0].table)
    parser.set_defaults(**document.defaults if document else {})
    flags, rest = split_flags(parser, argv)
    given, table = entry_parser(SCRIPT).parse_args(rest), flags.table
    if table and (flags.modes or flags.accuracy):
        raise UserError("-table: remove -modes and -accuracy; it has its own modes")
    if table == "caltech256" and given.batch_size:
        raise UserError("-table caltech256: remove -batch_size; it has 256 and 512")
    if flags.epochs and not flags.accuracy:
        raise UserError("-epochs: is a flag of -accuracy; add it")
    if not (flags.loader or flags.accuracy) and (given.dataset or given.data_path):
        raise UserError("-dataset, -data_path: add -loader; the images are random")
    defaults = document.flags if document else []
    if not (document or flags.accuracy or given.cfg or given.model or given.resume):
        print(f"No -cfg: the default is {' '.join(defaults := DEFAULTS)}", file=sys.stderr)
    return flags, [*defaults, *rest]


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures speed, memory and accuracy of training in each precision.")
    modes = f"precision modes, of {', '.join(MODES)} (default: {GPU_MODES} on a GPU, {CPU_MODES} on a CPU)"
    add_flag(parser, "modes", metavar="A,B", help=modes)
    add_flag(parser, "table", choices=DOCUMENTS, help="the table of this document, by default with its settings")
    add_flag(parser, "memory_gb", type=positive_number, metavar="X", help="a mode that needs more has failed")
    add_flag(parser, "loader", action="store_true", help="train on the images of the recipe, not on random ones")
    add_turn_flags(parser, rounds=5, warmup=8, steps=100)
    add_flag(parser, "accuracy", action="store_true", help="compare the top-1 of the recipe over several seeds")
    add_flag(parser, "seeds", type=positive, default=8, metavar="N", help="-accuracy: SEED 0 to N-1 (default: 8)")
    epochs = "-accuracy: numbers of epochs, such as 50,90,250 (default: the recipe's)"
    add_flag(parser, "epochs", type=numbers, default=[], metavar="A,B", help=epochs)
    add_flag(parser, "output", type=Path, metavar="FOLDER", help="keep the runs in this folder (default: delete them)")
    return parser


def rows_of(flags: argparse.Namespace) -> dict[str, Sequence[str]]:
    """The -opts of each row; the first row is the baseline of the others."""
    if flags.table:
        return DOCUMENTS[flags.table].rows
    modes = parse_names("modes", flags.modes or (GPU_MODES if visible_gpus() else CPU_MODES), MODES)
    if "tf32" in modes and not visible_gpus():
        raise UserError("-modes: tf32 needs a GPU, and no GPU is visible; remove it")
    modes.sort(key=lambda mode: mode != "fp32")
    epochs = {f", {number} epochs": [f"TRAIN.NUM_EPOCHS={number}"] for number in flags.epochs} or {"": []}
    return {mode + ending: [*MODES[mode], *options] for ending, options in epochs.items() for mode in modes}


def measure_speed(argv: list[str], config: Config, flags: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Figures of a turn.

    Raises UserError: as `run_turn`, or the peak memory is above -memory_gb.
    """
    size, program = config.data.batch_size, "recipe" if flags.loader else "ready"
    # As the random images have.
    classes = [] if flags.loader else [f"MODEL.NUM_CLASSES={max(1000, config.model.num_logits)}"]
    built = build_program(program, [*argv, *classes], flags.interval, folder)
    figures = run_turn(built, flags.warmup, flags.steps, flags.limit, size * config.train.accum_iter)
    if flags.memory_gb and figures["peak_memory_bytes"] > 1e9 * flags.memory_gb:
        needed = f"{figures['peak_memory_bytes'] / 1e9:.2f}"
        raise UserError(f"out of memory: needs {needed} GB of {flags.memory_gb:g} GB")
    figures["seconds"] = 100 * size / figures[SPEED]
    figures["cpu_seconds"] = figures["seconds"] * figures["cpu_seconds_per_second"]
    return figures


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
