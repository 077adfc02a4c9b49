"""Shared by the benchmarks: precision modes, names in flags, reasons of failures, printed and written results."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from configs.reading.command_line import parse_command_line
from configs.schema import Config
from utils.atomic_file import atomic_write
from utils.device import device_name, visible_gpus
from utils.errors import UserError, did_you_mean

_LOAD = os.getloadavg()[0]  # before the measurements, which add to it
ENTRY = Path(__file__).parents[2] / "main_single_gpu.py"
MODES = {"fp32": ("AMP.ENABLED=false", "AMP.TF32=false"), "tf32": ("AMP.ENABLED=false", "AMP.TF32=true")}
MODES |= {
    f"{level}-{name}": ("AMP.ENABLED=true", f"AMP.DTYPE={dtype}", f"AMP.LEVEL={level}", "AMP.TF32=true")
    for level in ("O1", "O2", "O3")
    for name, dtype in (("fp16", "float16"), ("bf16", "bfloat16"))
}


def mode_config(argv: list[str], mode: str) -> Config:
    """The configuration of the command line, with the precision of the mode."""
    return parse_command_line([*argv, "-opts", *MODES[mode]]).config


def parse_names(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """The names of `-flag A,B`. Raises UserError for an unknown name."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(f"-{flag}: unknown {name}{did_you_mean(name, known)} (known: {', '.join(known)})")
    return names


def failure_reason(status: int, lines: Sequence[str]) -> str:
    """The reason of a failed process: its signal, or the last line of its output that names an error."""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    ours = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    others = [line for line in lines if re.search(r"error|exception|failed|killed", line, re.IGNORECASE)]
    return "".join((ours or others or lines)[-1:]).strip() or f"ended with status {status}"


def print_result(
    script: str, argv: list[str], batch_size: int, texts: Iterable[str], file: Path | None, **result: Any
) -> None:
    """Prints the environment and the texts, and writes the JSON file. May initialize CUDA: call it at the end."""
    environment = {
        "device": device_name(torch.device("cuda" if visible_gpus() else "cpu")),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": f"{_LOAD:.1f} on {os.cpu_count() or 1} cores",
        "batch_size": batch_size,
        "command": f"python scripts/{script} {shlex.join(argv)}",
    }
    line = "{device}, {threads} threads, load before {load}, torch {torch}, batch size {batch_size}: `{command}`"
    print(line.format(**environment), *texts, sep="\n\n")
    write_json(file, {"environment": environment, **result})


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Does nothing without a path."""
    if path:
        atomic_write(path, json.dumps(result, indent=2) + "\n")
