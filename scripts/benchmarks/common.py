"""What the benchmark scripts share: precision modes, flags, turns, ready batches, tables, and where it was measured."""

import argparse
import json
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from configs.command_line import Parser, entry_parser, parse_command_line
from configs.schema import Config
from datasets.batch import Batch
from utils.device import device_name
from utils.device import timed as timed
from utils.distributed import ProcessContext, visible_gpus
from utils.errors import UserError, did_you_mean
from utils.tables import markdown_table as markdown_table


def _half(level: str, dtype: str) -> tuple[str, ...]:
    return "AMP.ENABLED=true", f"AMP.DTYPE={dtype}", f"AMP.LEVEL={level}", "AMP.TF32=true"


MODES = {
    "fp32": ("AMP.ENABLED=false", "AMP.TF32=false"),
    "tf32": ("AMP.ENABLED=false", "AMP.TF32=true"),
    "O1-fp16": _half("O1", "float16"),
    "O1-bf16": _half("O1", "bfloat16"),
    "O2-fp16": _half("O2", "float16"),
    "O2-bf16": _half("O2", "bfloat16"),
    "O3-fp16": _half("O3", "float16"),
    "O3-bf16": _half("O3", "bfloat16"),
}
GPU_MODES = ("fp32", "tf32", "O1-fp16", "O1-bf16", "O2-fp16", "O3-fp16")
CPU_MODES = ("fp32", "O1-bf16", "O2-bf16", "O3-bf16")  # float16 is 10 to 100 times slower there


def flag_parser(script: str, description: str) -> argparse.ArgumentParser:
    """A parser of a script's own flags, `-json` among them; `split_flags` returns the other flags unparsed."""
    parser = Parser(
        prog=f"scripts/{script}",
        usage="%(prog)s -cfg FILE [flags] [flags of main_single_gpu.py]",
        description=description,
        epilog="Every other flag, -opts KEY=VALUE included, is main_single_gpu.py's: see its -h.",
    )
    add_flag(parser, "json", type=new_file, metavar="FILE", help="write the figures there as well")
    return parser


def add_flag(parser: argparse.ArgumentParser, name: str, **options: Any) -> None:
    parser.add_argument(f"-{name}", f"--{name}", **options)


def add_modes_flag(parser: argparse.ArgumentParser) -> None:
    defaults = f"default: {','.join(GPU_MODES)} on a GPU, {','.join(CPU_MODES)} on a CPU"
    add_flag(parser, "modes", metavar="A,B", help=f"precision modes, of {', '.join(MODES)} ({defaults})")


def split_flags(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The script's own flags, and what is left for `configs.command_line`.

    Raises:
        UserError: a flag that neither knows.
    """
    flags, rest = parser.parse_known_args(argv)
    others, unknown = entry_parser(parser.prog).parse_known_args(rest)
    if unknown:
        flag = unknown[0].partition("=")[0]
        parser.error(f"unknown flag {flag}{did_you_mean(flag, (f'-{name}' for name in vars(flags) | vars(others)))}")
    return flags, rest


def positive(text: str) -> int:
    """An argparse type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1 up")
    return int(text)


def new_file(text: str) -> Path:
    """An argparse type: found unwritable before the measurements, not after them."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no file in a folder that is there")
    return path


def chosen_modes(text: str | None) -> list[str]:
    """The modes of `-modes A,B`, or this machine's default ones.

    Raises:
        UserError: an unknown mode, or one that has no meaning here.
    """
    on_gpu = visible_gpus() > 0
    if text is None:
        return list(GPU_MODES if on_gpu else CPU_MODES)
    modes = list(dict.fromkeys(text.split(",")))
    for mode in modes:
        if mode not in MODES:
            raise UserError(f"-modes: unknown mode {mode}{did_you_mean(mode, MODES)} (known: {', '.join(MODES)})")
    if "tf32" in modes and not on_gpu:
        raise UserError("-modes: tf32 means something on a GPU only, and none is visible; leave it out")
    return modes


def mode_config(argv: list[str], mode: str) -> Config:
    """The options of a command line with a mode's laid over them."""
    return parse_command_line([*argv, "-opts", *MODES[mode]]).config


def baseline_of(modes: Iterable[str]) -> str:
    modes = list(modes)
    return "fp32" if "fp32" in modes else modes[0]


def interleaved(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """(round, name): all names in each round, backwards in every second, so that a machine's drift falls on all."""
    for number in range(rounds):
        for name in reversed(names) if number % 2 else names:
            yield number, name


def ready_batches(config: Config, context: ProcessContext) -> list[Batch]:
    shape = (config.data.batch_size, config.data.image_channels, config.data.image_size, config.data.image_size)
    generator = torch.Generator().manual_seed(0)
    return [
        Batch(
            torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(context.device),
            torch.randint(0, config.model.num_classes, shape[:1], generator=generator).to(context.device),
        )
        for _ in range(4)
    ]


def spread(values: Sequence[float], form: str) -> str:
    """'median (least to most)', each number in the form given."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def tell(progress: str) -> None:
    """On standard error: standard output is the result's."""
    print(progress, file=sys.stderr, flush=True)


def last_error(process: subprocess.CompletedProcess[str]) -> str:
    """Why a process failed, in the last line it said."""
    if process.returncode < 0:
        return f"ended by {signal.Signals(-process.returncode).name}"
    lines = process.stderr.strip().splitlines() or [f"ended with status {process.returncode}"]
    return lines[-1].removeprefix("error: ")


def environment(script: str, argv: list[str], config: Config) -> dict[str, Any]:
    """What the figures were measured on. It may open the GPU: ask after the measurements."""
    return {
        "device": device_name(torch.device("cuda" if visible_gpus() else "cpu")),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "model": config.model.name,
        "batch_size": config.data.batch_size,
        "command": f"python scripts/{script} {shlex.join(argv)}",
    }


def environment_line(found: dict[str, Any]) -> str:
    return (
        f"{found['device']}, {found['threads']} threads, torch {found['torch']}; {found['model']}, "
        f"batch size {found['batch_size']}: `{found['command']}`"
    )


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Does nothing without a path."""
    if path:
        path.write_text(json.dumps(result, indent=2) + "\n")
