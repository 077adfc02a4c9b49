"""Shared by the benchmarks: precision modes, the order of measurements, reasons of failures, files."""

import json
import re
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
from utils.atomic_file import atomic_write
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


def mode_config(argv: list[str], mode: str) -> Config:
    """The configuration of the command line, with the precision of the mode."""
    return parse_command_line([*argv, "-opts", *MODES[mode]]).config


# Lists in flags


def parse_names(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """The names of `-flag A,B`. Raises UserError for an unknown name."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(f"-{flag}: unknown {name}{did_you_mean(name, known)} (known: {', '.join(known)})")
    return names


def parse_batch_sizes(text: str) -> list[int]:
    """Raises UserError if the text is not a list of positive integers."""
    sizes = text.split(",")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise UserError(f"-batch_sizes {text}: must be positive integers, separated by commas")
    return sorted(set(map(int, sizes)))


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
    """The reason of a failed process: its signal, or the line of its standard error that names the error."""
    if process.returncode < 0:
        return f"ended by {signal.Signals(-process.returncode).name}"
    return error_line(process.stderr.strip().splitlines()) or f"ended with status {process.returncode}"


def error_line(lines: Sequence[str]) -> str:
    """The last line that names an error: one of ours if there is one, else of another program, else the last line."""
    ours = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    others = [line for line in lines if re.search(r"error|exception|failed|killed", line, re.IGNORECASE)]
    return "".join((ours or others or lines)[-1:]).strip()


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


def print_result(environment: dict[str, Any], texts: Iterable[str], file: Path | None, result: dict[str, Any]) -> None:
    """Prints the texts below a line on the environment, and writes the JSON file."""
    line = "{device}, {threads} threads, torch {torch}; {model}, batch size {batch_size}: `{command}`"
    print(line.format(**environment), *texts, sep="\n\n")
    write_json(file, {"environment": environment} | result)


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Does nothing without a path."""
    if path:
        atomic_write(path, json.dumps(result, indent=2) + "\n")
