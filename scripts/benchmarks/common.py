"""Shared by the scripts: precision modes, the order of measurements, Markdown tables, the environment."""

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from configs.reading.command_line import parse_command_line
from configs.schema import Config
from scripts.benchmarks.programs import error_line
from scripts.flags import add_flag
from utils.atomic_file import temporary_path
from utils.device import device_name, visible_gpus
from utils.errors import UserError, did_you_mean

ENTRY = Path(__file__).parents[2] / "main_single_gpu.py"


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
GPU_MODES = ("fp32", "tf32", "O1-fp16", "O1-bf16", "O2-fp16", "O2-bf16", "O3-fp16")
CPU_MODES = ("fp32", "O1-bf16", "O2-bf16", "O3-bf16")  # on a CPU float16 is 10 to 100 times slower


# Precision modes


def add_modes_flag(parser: argparse.ArgumentParser) -> None:
    defaults = f"default: {','.join(GPU_MODES)} on a GPU, {','.join(CPU_MODES)} on a CPU"
    add_flag(parser, "modes", metavar="A,B", help=f"precision modes, of {', '.join(MODES)} ({defaults})")


def parse_modes(text: str | None) -> list[str]:
    """The modes of `-modes A,B`; without the flag, the default modes of this machine.

    Raises:
        UserError: a mode is unknown, or needs a GPU and no GPU is visible.
    """
    on_gpu = visible_gpus() > 0
    if text is None:
        return list(GPU_MODES if on_gpu else CPU_MODES)
    modes = list(dict.fromkeys(text.split(",")))
    for mode in modes:
        if mode not in MODES:
            raise UserError(f"-modes: unknown mode {mode}{did_you_mean(mode, MODES)} (known: {', '.join(MODES)})")
    if "tf32" in modes and not on_gpu:
        raise UserError("-modes: tf32 needs a GPU, and no GPU is visible; remove it")
    return modes


def parse_batch_sizes(text: str) -> list[int]:
    """Raises UserError if the text is not a list of positive integers."""
    sizes = text.split(",")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise UserError(f"-batch_sizes {text}: must be positive integers, separated by commas")
    return sorted(set(map(int, sizes)))


def mode_config(argv: list[str], mode: str) -> Config:
    """The configuration of the command line, with the precision of the mode."""
    return parse_command_line([*argv, "-opts", *MODES[mode]]).config


def baseline_of(names: Iterable[str]) -> str:
    """The mode that the others are compared with: fp32, or the first mode if fp32 is missing."""
    names = list(names)
    return "fp32" if "fp32" in names else names[0]


# Measurements


def interleaved(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """(round, name) for all names in each round, in reverse order in every second round.

    Slow changes of a machine's speed then affect all names equally.
    """
    for number in range(rounds):
        for name in reversed(names) if number % 2 else names:
            yield number, name


def median_and_range(values: Sequence[float], number_format: str) -> str:
    """'median (minimum to maximum)'"""
    median, low, high = (
        format(value, number_format) for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({low} to {high})"


def print_progress(text: str) -> None:
    """Prints to standard error; standard output is for the result."""
    print(text, file=sys.stderr, flush=True)


def last_error(process: subprocess.CompletedProcess[str]) -> str:
    """The reason of a failed process: its signal, or the last line of its standard error that names an error."""
    if process.returncode < 0:
        return f"ended by {signal.Signals(-process.returncode).name}"
    return error_line(process.stderr.strip().splitlines()) or f"ended with status {process.returncode}"


# Results


def environment(script: str, argv: list[str], config: Config) -> dict[str, Any]:
    """Device, software, model and command of the measurements. May initialize CUDA: call it after the measurements."""
    return {
        "device": device_name(torch.device("cuda" if visible_gpus() else "cpu")),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "model": config.model.name,
        "batch_size": config.data.batch_size,
        "command": f"python scripts/{script} {shlex.join(argv)}",
    }


def environment_line(measured_on: dict[str, Any]) -> str:
    return "{device}, {threads} threads, torch {torch}; {model}, batch size {batch_size}: `{command}`".format(
        **measured_on
    )


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Does nothing without a path."""
    if path:
        replace_text(path, json.dumps(result, indent=2) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Writes a temporary file and renames it, so that the file is never incomplete."""
    temporary = temporary_path(path)
    temporary.write_text(text)
    os.replace(temporary, path)
