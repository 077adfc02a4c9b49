"""Measures speed, memory and accuracy of training in each precision; prints a Markdown table.

    python scripts/benchmarks/benchmark_amp.py -cfg=configs/vit_base_patch16_224.yaml -batch_size 64 -json a.json
    python scripts/benchmarks/benchmark_amp.py -table paddlevit
    python scripts/benchmarks/benchmark_amp.py -table colossalai -loader -dataset=caltech101 -data_path=caltech101
    python scripts/benchmarks/benchmark_amp.py -accuracy -seeds 8 -cfg=configs/vit_digits.yaml -modes fp32,O1-bf16

Each turn starts main_single_gpu.py on random images in memory (`-loader`: on the data of the recipe), in a process of
its own: the peak memory belongs to one mode, and running out of memory is a result. Memory is torch's peak allocation
on a GPU, and the peak of the process on a CPU. An iteration is one forward and backward pass. The order of the modes is
reversed in every second round. A speedup is the median of the ratios within the rounds. `-accuracy` trains the recipe
once per mode and seed and compares the top-1 of the last epoch.

`-table` prints the table of a document (documents.py) with its settings and formulas, beside its published figures.
-cfg, -batch_size, -rounds and -steps replace its settings, for example on a CPU.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from configs.reading.flags import entry_parser
from configs.schema import Config
from scripts.benchmarks import paddle_net, turns
from scripts.benchmarks.common import ENTRY, MODES, mode_config, parse_names, print_result
from scripts.benchmarks.documents import DOCUMENTS, PADDLE, PADDLE_PUBLISHED, published_table
from scripts.benchmarks.programs import Program, add_turn_flags, entry_program, run_turn
from scripts.benchmarks.seeds import NOISE, final_top1, seed_table
from scripts.flags import add_flag, flag_parser, positive, positive_number, split_flags
from utils.device import visible_gpus
from utils.distributed import single_process
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/benchmark_amp.py"
GPU_MODES = "fp32,tf32,O1-fp16,O1-bf16,O2-fp16,O2-bf16,O3-fp16"
CPU_MODES = "fp32,O1-bf16,O2-bf16,O3-bf16"  # on a CPU float16 is 10 to 100 times slower
CPU_RECIPE = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-batch_size=32"]
TABLES = {"paddlevit": {"rounds": 7}, "colossalai": {"rounds": 1}, "paddle": {"rounds": 1, "steps": paddle_net.BATCHES}}
_MIN_GROWTH = 0.02  # of the peak memory with twice the images: the peak of a process on a CPU varies
_FEWER = 0.95  # of the images of a batch that did not fit


def main(argv: list[str]) -> int:
    flags, rest = parse_flags(argv)
    if flags.table == "paddle":
        run = partial(paddle_net.train, single_process().device, flags.steps)
        figures = turns.take_turns(list(PADDLE_PUBLISHED), flags.rounds, lambda mode, _: run(mode), flags.json)
        texts = [published_table(figures, PADDLE_PUBLISHED, PADDLE)]
        print_result(SCRIPT, argv, paddle_net.BATCH_SIZE, texts, flags.json, figures=figures)
        return 0
    rows = rows_of(flags)
    config, *_ = [mode_config(rest, mode) for mode in rows.values()]  # reports wrong options before the measurements
    baseline = "fp32" if "fp32" in rows else next(iter(rows))
    with TemporaryDirectory() as temporary:
        folder = (flags.output or Path(temporary)).absolute()
        if flags.accuracy:
            figures = turns.take_turns(
                list(rows), flags.seeds, lambda mode, seed: train(rest, mode, seed, folder), flags.json
            )
            texts = [seed_table(figures, baseline), NOISE]
        else:
            figures = measure_speed(rows, rest, config, flags, folder)
            texts = speed_texts(figures, baseline)
    if document := DOCUMENTS.get(flags.table):
        title = f"Measured: {config.model.name}, {flags.steps} timed iterations per turn. Published: ViT-B/16, float16."
        texts = [title, published_table(figures, document.published[flags.loader], document.columns)]
    print_result(SCRIPT, argv, config.data.batch_size, texts, flags.json, figures=figures)
    return 0


def parse_flags(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the flags of main_single_gpu.py after those of the document or of the default recipe.

    Raises:
        UserError: a flag has no effect, or is missing.
    """
    parser = _parser()
    parser.set_defaults(**TABLES.get(split_flags(parser, argv)[0].table, {}))
    flags, rest = split_flags(parser, argv)
    given = entry_parser(SCRIPT).parse_args(rest)
    if flags.table and (flags.modes or flags.accuracy):
        raise UserError("-table: has the modes of its document; remove -modes and -accuracy")
    if flags.table == "paddle" and (rest or flags.loader):
        raise UserError(f"-table paddle: trains its own network on random data; remove {[*rest, '-loader'][0]}")
    if flags.table == "colossalai" and not (flags.memory_gb or visible_gpus()):
        raise UserError("-table colossalai: on a CPU, give -memory_gb, the limit of the largest batch size")
    if (given.dataset or given.data_path) and not (flags.loader or flags.accuracy):
        raise UserError("-dataset, -data_path: without -loader the images are random, in memory; add -loader")
    recipe = DOCUMENTS[flags.table].flags if flags.table in DOCUMENTS else []
    if not (flags.table or flags.accuracy or given.cfg or given.model or given.resume):
        recipe = gpu_recipe() if visible_gpus() else CPU_RECIPE
        print(f"No -cfg: the default for this device is {' '.join(recipe)}", file=sys.stderr)
    return flags, [*recipe, *rest]


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures speed, memory and accuracy of training in each precision.")
    modes = f"precision modes, of {', '.join(MODES)} (default: {GPU_MODES} on a GPU, {CPU_MODES} on a CPU)"
    add_flag(parser, "modes", metavar="A,B", help=modes)
    tables = "the table of this document, by default with its settings; paddle: -steps different batches"
    add_flag(parser, "table", choices=TABLES, help=tables)
    limit = "-table colossalai: memory for the largest batch size (default: of the GPU)"
    add_flag(parser, "memory_gb", type=positive_number, metavar="X", help=limit)
    add_flag(parser, "loader", action="store_true", help="train on the images of the recipe, not on random ones")
    add_turn_flags(parser, rounds=5, warmup=8, steps=100)
    add_flag(parser, "accuracy", action="store_true", help="compare the top-1 of the recipe over several seeds")
    add_flag(parser, "seeds", type=positive, default=8, metavar="N", help="-accuracy: SEED 0 to N-1 (default: 8)")
    add_flag(parser, "output", type=Path, metavar="FOLDER", help="keep the runs in this folder (default: delete them)")
    return parser


def gpu_recipe() -> list[str]:
    """ViT-B/16 needs 0.2 GB per image and 1.7 GB in float32 (27.2 GB at batch size 128, Colossal-AI)."""
    batch_size = max(1, min(64, int(3.5e-9 * gpu_memory_bytes()) // 8 * 8))
    return ["-cfg=configs/vit_base_patch16_224.yaml", f"-batch_size={batch_size}"]


def gpu_memory_bytes() -> int:
    return torch.cuda.get_device_properties(0).total_memory


def rows_of(flags: argparse.Namespace) -> dict[str, str]:
    """The precision of each row."""
    if flags.table:
        half = "fp16" if visible_gpus() else "bf16"
        rows = DOCUMENTS[flags.table].rows
        return {row: mode if mode == "fp32" else f"{mode}-{half}" for row, mode in rows.items()}
    modes = parse_names("modes", flags.modes or (GPU_MODES if visible_gpus() else CPU_MODES), MODES)
    if "tf32" in modes and not visible_gpus():
        raise UserError("-modes: tf32 needs a GPU, and no GPU is visible; remove it")
    return {mode: mode for mode in modes}


def measure_speed(
    rows: dict[str, str], rest: list[str], config: Config, flags: argparse.Namespace, folder: Path
) -> turns.Figures:
    """Figures of each row; for Colossal-AI's table also at the largest batch size."""
    # As the random images have.
    classes = [] if flags.loader else [f"MODEL.NUM_CLASSES={max(1000, config.model.num_logits)}"]
    size, accum_iter = config.data.batch_size, config.train.accum_iter

    def program(row: str, batch_size: int) -> Program:
        options = [*MODES[rows[row]], *classes, f"DATA.BATCH_SIZE={batch_size}"]
        return entry_program([*rest, "-opts", *options], flags.interval, folder / row, [] if flags.loader else None)

    def run(row: str, batch_size: int) -> dict[str, float]:
        return run_turn(program(row, batch_size), flags.warmup, flags.steps, flags.limit, batch_size * accum_iter)

    figures = turns.take_turns(list(rows), flags.rounds, lambda row, _: run(row, size), flags.json)
    for row, one in figures.items():
        one["seconds"] = [100 * size / value for value in one.get(turns.SPEED, [])]
        if flags.table == "colossalai" and "failed" not in one:
            limit_bytes = 1e9 * flags.memory_gb if flags.memory_gb else gpu_memory_bytes()
            one |= largest_batch(partial(run, row), size, max(one["peak_memory_bytes"]), limit_bytes)
    return figures


def largest_batch(
    run: Callable[[int], dict[str, float]], base: int, peak_bytes: float, limit_bytes: float
) -> dict[str, Any]:
    """A batch size within 5% (or 8 images) of the largest in this memory, and its images/s; empty if none fits.

    Args:
        run: trains with a batch size. base, peak_bytes: a batch size and its peak memory, which grows linearly.
    """
    half = base // 2
    growth = peak_bytes - run(half)["peak_memory_bytes"]
    per_image = max(growth, _MIN_GROWTH * peak_bytes) / (base - half)
    size = int(base + (limit_bytes - peak_bytes) / per_image) // 8 * 8
    while size > 0:
        try:
            found = run(size)
            if found["peak_memory_bytes"] <= limit_bytes:
                return {"largest_batch_size": size, "largest_images_per_second": found[turns.SPEED]}
        except UserError as error:
            if not re.search("memory|SIGKILL", str(error)):
                return {"largest_batch_size": f"failed: {error}"}
        size = int(size * _FEWER) // 8 * 8
    return {}


def train(argv: list[str], mode: str, seed: int, folder: Path) -> dict[str, float]:
    """The final top-1 of a run in percent. Raises UserError as `final_top1`."""
    output = folder / f"{mode}-seed{seed}"
    options = [*MODES[mode], f"SEED={seed}", f"SAVE={json.dumps(str(output))}"]
    command = [sys.executable, str(ENTRY), *argv, "-opts", *options]
    return {"top1": final_top1(command, output, "metrics.csv", "val_top1")}


def speed_texts(figures: turns.Figures, baseline: str) -> list[str]:
    """The table of speed and memory, and the speedups."""
    columns = {
        "seconds per 100 iterations": lambda one: turns.median_and_range(one["seconds"], ".2f"),
        "images/s": turns.speed,
        "peak memory (GB)": turns.memory,
        "data wait": turns.data_wait,
    }
    ratios = turns.speed_ratios(figures, [(mode, baseline) for mode in figures if mode != baseline])
    return [turns.figures_table(figures, columns), turns.ratio_table(ratios)]


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
