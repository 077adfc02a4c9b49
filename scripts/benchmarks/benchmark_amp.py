"""Measures speed, memory and accuracy of training in each precision; prints a Markdown table.

    python scripts/benchmarks/benchmark_amp.py -cfg=configs/vit_base_patch16_224.yaml -batch_size 64 -json a.json
    python scripts/benchmarks/benchmark_amp.py -table paddlevit
    python scripts/benchmarks/benchmark_amp.py -table colossalai -loader -dataset=caltech101 -data_path=caltech101
    python scripts/benchmarks/benchmark_amp.py -accuracy -seeds 8 -cfg=configs/vit_digits.yaml -modes fp32,O1-bf16

Each turn starts main_single_gpu.py on random images in memory (`-loader`: on the data of the recipe), in a process of
its own: the peak memory belongs to one mode, and running out of memory is a result. Memory is torch's peak allocation
on a GPU, and the peak of the process on a CPU. An iteration is one forward and backward pass. The order of the modes is
reversed in every second round. A speedup is the median of the ratios within the rounds. `-accuracy` trains the recipe
once per mode, seed and number of epochs, and compares the top-1 of the last epoch.

`-table` prints the table of a document (documents.py) with its settings, presets and formulas, beside its published
figures. -cfg, -batch_size, -rounds and -steps replace its settings, for example on a CPU.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from configs.reading.command_line import parse_command_line
from configs.reading.flags import entry_parser
from configs.schema import Config
from engine.training.batch_size import largest_size
from scripts.benchmarks import paddle_net
from scripts.benchmarks.common import ENTRY, MODES, parse_names, print_result
from scripts.benchmarks.documents import DOCUMENTS, SPEED_COLUMNS
from scripts.benchmarks.programs import add_turn_flags, entry_program, run_turn
from scripts.benchmarks.seeds import NOISE, final_top1, seed_table
from scripts.benchmarks.turns import SPEED, figures_table, ratio_table, speed_ratios, take_turns
from scripts.flags import add_flag, flag_parser, numbers, positive, positive_number, split_flags
from utils.device import visible_gpus
from utils.distributed import single_process
from utils.errors import UserError
from utils.processes.entry import run_and_report_errors

SCRIPT = "benchmarks/benchmark_amp.py"
GPU_MODES = "fp32,tf32,O1-fp16,O1-bf16,O2-fp16,O2-bf16,O3-fp16"
CPU_MODES = "fp32,O1-bf16,O2-bf16,O3-bf16"  # on a CPU float16 is 10 to 100 times slower
DEFAULTS = ["-cfg=configs/vit_tiny_patch16_224.yaml", "-batch_size=32"]  # 2.6 GB in float32
_NEXT, _MAX_GROWTH = 1.05, 1000  # candidates of the largest batch size: steps, and the last one / the first one


def main(argv: list[str]) -> int:
    flags, rest = parse_flags(argv)
    document, rows = DOCUMENTS.get(flags.table), rows_of(flags)
    commands = {row: [*rest, "-opts", *options] for row, options in rows.items()}
    configs = {row: parse_command_line(command).config for row, command in commands.items()}  # reports wrong options
    with TemporaryDirectory() as temporary:
        folder = (flags.output or Path(temporary)).absolute()

        def measure(row: str, number: int) -> dict[str, float]:
            if flags.table == "paddle":
                return paddle_net.train(configs[row], single_process().device, flags.steps)
            if flags.accuracy:
                return train(commands[row], number, folder / f"{row}-seed{number}")
            return measure_speed(commands[row], configs[row], flags, folder / row)

        figures = take_turns(list(rows), flags.seeds if flags.accuracy else flags.rounds, measure, flags.json)
    baseline, *others = rows
    if document:
        first = figures[baseline].get("seconds")
        compared = {row: one | {"first": first} for row, one in figures.items()}
        texts = [figures_table(compared, document.columns, document.published[-1 if flags.loader else 0])]
    elif flags.accuracy:
        endings = [f", {number} epochs" for number in flags.epochs] or [""]
        tables = [{row: figures[row] for row in rows if row.endswith(ending)} for ending in endings]
        texts = [*(seed_table(table, next(iter(table))) for table in tables), NOISE]
    else:
        ratios = speed_ratios(figures, [(row, baseline) for row in others])
        texts = [figures_table(figures, SPEED_COLUMNS), ratio_table(ratios)]
    print_result(SCRIPT, argv, configs[baseline].data.batch_size, texts, flags.json, figures=figures)
    return 0


def parse_flags(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The script's flags, and flags of main_single_gpu.py: of the document or the default recipe, then the user's.

    Raises:
        UserError: a flag has no effect, or is missing.
    """
    parser = _parser()
    document = DOCUMENTS.get(parser.parse_known_args(argv)[0].table)
    parser.set_defaults(**document.defaults if document else {})
    flags, rest = split_flags(parser, argv)
    given, table = entry_parser(SCRIPT).parse_args(rest), flags.table
    is_random, on_gpu = not (flags.loader or flags.accuracy), visible_gpus() > 0
    refused = {
        "-table: remove -modes and -accuracy; it has its own modes": table and (flags.modes or flags.accuracy),
        "-table paddle: remove -loader and flags of training": table == "paddle" and (rest or flags.loader),
        "-table caltech256: remove -batch_size; it has 256 and 512": table == "caltech256" and given.batch_size,
        "-table colossalai: on a CPU, give -memory_gb": table == "colossalai" and not (flags.memory_gb or on_gpu),
        "-epochs: is a flag of -accuracy; add it": flags.epochs and not flags.accuracy,
        "-dataset, -data_path: add -loader; the images are random": is_random and (given.dataset or given.data_path),
    }
    for message in (message for message, is_wrong in refused.items() if is_wrong):
        raise UserError(message)
    defaults = document.flags if document else []
    if not (document or flags.accuracy or given.cfg or given.model or given.resume):
        print(f"No -cfg: the default is {' '.join(defaults := DEFAULTS)}", file=sys.stderr)
    return flags, [*defaults, *rest]


def _parser() -> argparse.ArgumentParser:
    parser = flag_parser(SCRIPT, "Measures speed, memory and accuracy of training in each precision.")
    modes = f"precision modes, of {', '.join(MODES)} (default: {GPU_MODES} on a GPU, {CPU_MODES} on a CPU)"
    add_flag(parser, "modes", metavar="A,B", help=modes)
    tables = "the table of this document, by default with its settings; paddle: -steps different batches"
    add_flag(parser, "table", choices=DOCUMENTS, help=tables)
    limit = "a mode that needs more has failed (default for the largest batch size: the memory of the GPU)"
    add_flag(parser, "memory_gb", type=positive_number, metavar="X", help=limit)
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
        return {**DOCUMENTS[flags.table].rows}
    modes = parse_names("modes", flags.modes or (GPU_MODES if visible_gpus() else CPU_MODES), MODES)
    if "tf32" in modes and not visible_gpus():
        raise UserError("-modes: tf32 needs a GPU, and no GPU is visible; remove it")
    modes.sort(key=lambda mode: mode != "fp32")
    epochs = {f", {number} epochs": [f"TRAIN.NUM_EPOCHS={number}"] for number in flags.epochs} or {"": []}
    return {mode + ending: [*MODES[mode], *options] for ending, options in epochs.items() for mode in modes}


def measure_speed(argv: list[str], config: Config, flags: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Figures of a turn; for Colossal-AI's table also at the largest batch size.

    Raises:
        UserError: as `run_turn`, or the peak memory is above -memory_gb.
    """
    size, accum_iter = config.data.batch_size, config.train.accum_iter
    # As the random images have.
    classes = [] if flags.loader else [f"MODEL.NUM_CLASSES={max(1000, config.model.num_logits)}"]

    def run(batch_size: int) -> dict[str, float]:
        options = [*argv, *classes, f"DATA.BATCH_SIZE={batch_size}"]
        program = entry_program(options, flags.interval, folder, [] if flags.loader else None)
        figures = run_turn(program, flags.warmup, flags.steps, flags.limit, batch_size * accum_iter)
        if flags.memory_gb and figures["peak_memory_bytes"] > 1e9 * flags.memory_gb:
            needed = f"{figures['peak_memory_bytes'] / 1e9:.2f}"
            raise UserError(f"out of memory: needs {needed} GB of {flags.memory_gb:g} GB")
        return figures

    figures = run(size)
    figures["seconds"] = 100 * size / figures[SPEED]
    figures["cpu_seconds"] = figures["seconds"] * figures["cpu_seconds_per_second"]
    if flags.table == "colossalai":
        limit = 1e9 * flags.memory_gb if flags.memory_gb else torch.cuda.get_device_properties(0).total_memory
        figures |= largest_batch(run, size, figures, limit)
    return figures


def largest_batch(
    run: Callable[[int], dict[str, float]], base: int, figures: dict[str, float], limit_bytes: float
) -> dict[str, float]:
    """A batch size within 5% (or 8 images) of the largest in this memory, and its images/s.

    Args:
        run: trains with a batch size; raises UserError if it needs more memory.
        base, figures: a batch size that fits, and its figures.
    """
    measured, sizes = {base: figures}, [base // 2, base]

    def peak_bytes(size: int) -> float:
        try:
            measured[size] = measured.get(size) or run(size)
        except UserError as error:
            if not re.search("memory|SIGKILL", str(error)):
                raise
            return math.inf
        return measured[size]["peak_memory_bytes"]

    while sizes[-1] < _MAX_GROWTH * base:
        sizes.append(max(sizes[-1] + 8, int(_NEXT * sizes[-1])) // 8 * 8)
    size = largest_size(sizes, peak_bytes, limit_bytes)
    return {"largest_batch_size": size, "largest_images_per_second": measured[size][SPEED]}


def train(command: list[str], seed: int, output: Path) -> dict[str, float]:
    """The final top-1 of a run in percent. Raises UserError as `final_top1`."""
    options = [f"SEED={seed}", f"SAVE={json.dumps(str(output))}"]
    return {"top1": final_top1([sys.executable, str(ENTRY), *command, *options], output, "metrics.csv", "val_top1")}


if __name__ == "__main__":
    sys.exit(run_and_report_errors(main, sys.argv[1:]))
