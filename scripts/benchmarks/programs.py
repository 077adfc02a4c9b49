"""The programs that benchmarks compare, each in processes of its own, and their speed, read from their logs.

One is timm's train.py, with flags that train the same model in the same way as a configuration of ours.
"""

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from configs.command_line import parse_command_line
from configs.compare import values_of
from configs.flags import add_flag, keys_of_program, positive
from configs.programs import programs
from configs.schema import Config, Loss, LRScheduler
from configs.yaml_io import Values, read_yaml
from engine.training.optimizer import timm_name
from scripts.benchmarks.turns import CORES, SPEED
from scripts.flags import new_file, script_parser
from utils.device import visible_gpus
from utils.errors import UserError, did_you_mean

ENTRY = Path(__file__).parents[2] / "main_single_gpu.py"
PROGRAMS = {
    "jpeg": "main_single_gpu.py on JPEGs",
    "ready": "main_single_gpu.py on random images in memory, without crops",
    "bare": "a bare loop on ready tensors",
    "timm": "timm's train.py on the JPEGs",
    "timm_explicit": "the same with explicit attention, its best setting on a CPU",
}
MODES = {"fp32": ("AMP.ENABLED=false", "AMP.TF32=false"), "tf32": ("AMP.ENABLED=false", "AMP.TF32=true")}
MODES |= {
    f"{level}-{name}": ("AMP.ENABLED=true", f"AMP.DTYPE={dtype}", f"AMP.LEVEL={level}", "AMP.TF32=true")
    for level in ("O1", "O2", "O3")
    for name, dtype in (("fp16", "float16"), ("bf16", "bfloat16"))
}
# A log line of a program with the step of the epoch, and the epoch and the memory if the program logs them
LOG = re.compile(
    r"(Epoch\[(?P<epoch>\d+)/\d+\], Step\[|Train: 0 \[ *|bare loop, step )(?P<step>\d+)(/(?P<steps_per_epoch>\d+))?"
    r"(.*, (?P<gigabytes>[\d.]+)G(,|$))?"
)
TOP1 = re.compile(r'top-?1"?: ([\d.]+)')  # in the output of -eval and of validate.py
EXPLICIT_ATTENTION = ["env", "TIMM_FUSED_ATTN=0"]  # in front of a command
_SET_CHILD_SUBREAPER = 36  # of Linux
READY_OPTIONS = ("DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.0, 1.0]", "DATA.HFLIP_PROB=0.0")


def build_command(
    name: str, argv: list[str], interval: int, folder: Path, timm_train: Path | None = None, val_split: str = ""
) -> list[str]:
    """The command of one of PROGRAMS with the flags `argv` of main_single_gpu.py, without evaluations and checkpoints.

    interval: steps between log lines. folder: has the JPEGs in `data`; gets the folders of the runs. timm_train: timm's
    train.py, validate.py or inference.py. val_split: the split that it opens.
    """
    if name == "bare":
        script = Path(__file__).with_name("benchmark_train.py")
        return [sys.executable, str(script), "-worker", f"-interval={interval}", *argv]
    if name.startswith("timm"):
        config = parse_command_line(argv).config
        trains = timm_train.name == "train.py"
        words = timm_flags(config, folder / "data", folder / timm_train.stem, interval, val_split, trains)
        explicit = EXPLICIT_ATTENTION if name == "timm_explicit" else []
        return [*explicit, sys.executable, str(timm_train), *words]
    options = [f"REPORT_FREQ={interval}", "VALIDATE_FREQ=1000000", "SAVE_FREQ=1000000", "SAVE_FREQ_MINUTES=null"]
    data = ["-dataset=folder", f"-data_path={folder / 'data'}"]
    if name == "ready":
        data = ["-dataset=fake"]
        if not visible_gpus():  # a worker would take a core from the model
            data.append("-num_workers=0")
        options += READY_OPTIONS
    return [sys.executable, str(ENTRY), *argv, *data, f"-output={folder / name}", "-opts", *options]


def parse_names(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """The names of `-flag A,B`. Raises UserError for an unknown name."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(f"-{flag}: unknown {name}{did_you_mean(name, known)} (known: {', '.join(known)})")
    return names


def failure_reason(status: int, lines: Sequence[str]) -> str:
    """The reason of a failed process: its signal, our whole error, or the last line that names another one."""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        return " ".join(line.strip() for line in lines[starts[0] :])
    errors = [line for line in lines if re.search(r"error|exception|failed|killed", line, re.IGNORECASE)]
    return (errors or [*lines, f"status {status}"])[-1].strip()


def run_to_end(command: Sequence[str]) -> dict[str, float]:
    """Wall seconds from the command to the end, CPU seconds of all processes, and the top-1 in percent if printed.

    Processes that outlive their parents count, too, such as workers. Raises UserError: the program failed.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1)
    before = os.times()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, process_group=0, **pipes)
    output, errors = process.communicate()
    with suppress(ChildProcessError):
        while os.waitpid(-process.pid, 0):
            pass
    libc.prctl(_SET_CHILD_SUBREAPER, 0)  # orphans of later programs are not ours
    _, _, user, system, wall = (end - start for start, end in zip(before, os.times(), strict=True))
    if process.returncode:
        raise UserError(failure_reason(process.returncode, errors.splitlines()))
    top1 = [("top1", float(text)) for text in TOP1.findall(output)]
    return {"wall_seconds": wall, "cpu_seconds": user + system} | dict(top1)


def run_turn(
    command: Sequence[str], warmup: int, steps: int, limit_seconds: float, images_per_step: int
) -> dict[str, float]:
    """Starts the program, times `steps` steps after its first line with `warmup` or more steps, and kills it.

    Returns the images/s, the CPU seconds per second, and the peak memory if it logs it.
    Raises UserError: the program ended, or took longer than `limit_seconds`.
    """
    with _running(command, limit_seconds) as (pid, readings):
        first = next(readings)
        while first.steps < warmup:
            first = next(readings)
        last = first
        cpu_before = group_cpu_seconds(pid)
        while last.steps < first.steps + steps:
            last = next(readings)
        seconds = last.arrived - first.arrived
        figures = {
            SPEED: (last.steps - first.steps) * images_per_step / seconds,
            CORES: (group_cpu_seconds(pid) - cpu_before) / seconds,
        }
        return figures | ({"peak_memory_bytes": last.memory_bytes} if last.memory_bytes else {})


def first_step(command: Sequence[str]) -> dict[str, float]:
    """Wall seconds from the start to the first log line, and CPU seconds of all processes. Errors: as `run_turn`."""
    started = time.perf_counter()
    with _running(command, limit_seconds=600) as (pid, readings):
        return {"wall_seconds": next(readings).arrived - started, "cpu_seconds": group_cpu_seconds(pid)}


def group_cpu_seconds(group: int) -> float:
    """CPU seconds, so far, of the running processes of a process group, and of their children that have ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            after_name = path.read_text().rpartition(")")[2].split()
            if int(after_name[2]) == group:
                ticks += sum(map(int, after_name[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Reading(NamedTuple):
    """The figures of a log line. steps: since the start of training. arrived: our clock at its arrival."""

    steps: int
    memory_bytes: float
    arrived: float


@contextmanager
def _running(command: Sequence[str], limit_seconds: float) -> Iterator[tuple[int, Iterator[Reading]]]:
    """The process group of a program, and its readings; it is killed at the end of the block, and after the limit."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, process_group=0, **output)
    limit = threading.Timer(limit_seconds, _kill, [process.pid])
    limit.start()
    try:
        yield process.pid, _readings(process, limit)
    finally:
        limit.cancel()
        _kill(process.pid)
        process.wait()
        process.stdout.close()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _readings(process: Any, limit: threading.Timer) -> Iterator[Reading]:
    """Raises UserError where the program has ended, or was killed after the limit."""
    lines = []
    for line in process.stdout:
        arrived = time.perf_counter()
        lines.append(line.rstrip("\n"))
        if match := LOG.search(line):
            found = {name: float(text or 0) for name, text in match.groupdict().items()}
            earlier = max(0, found["epoch"] - 1) * found["steps_per_epoch"]
            yield Reading(int(earlier + found["step"] + 1), found["gigabytes"] * 1e9, arrived)
    if not limit.is_alive():
        raise UserError(f"not done within {limit.interval:g} s; last line: {''.join(lines[-1:])}")
    raise UserError(failure_reason(process.wait(), lines))


def benchmark_parser(script: str, description: str) -> argparse.ArgumentParser:
    """The parser of a benchmark, with the flags that all of them have."""
    parser = script_parser(f"benchmarks/{script}", "-cfg FILE [flags] [flags of main_single_gpu.py]", description)
    add_flag(parser, "json", type=new_file, metavar="FILE", help="also write the figures to this file")
    add_flag(parser, "data", type=Path, metavar="FOLDER", help="class folders of JPEGs (default: made by the script)")
    add_flag(parser, "timm_train", type=Path, metavar="PATH", help="train.py of a checkout of timm")
    return parser


def add_number(
    parser: argparse.ArgumentParser, name: str, default: float, text: str, kind: Callable[[str], float] = positive
) -> None:
    """text: of the help, without the default."""
    add_flag(parser, name, type=kind, default=default, metavar="N", help=f"{text} (default: {default:g})")


def check_comparable(config: Config) -> None:
    """Raises UserError if timm's train.py has no equivalent of the configuration."""
    model = config.model
    train = config.train
    unsupported = model.tune, train.layer_decay, train.head_lr_scale, config.loss, train.lr_scheduler
    if unsupported != ("full", None, 1, Loss(), LRScheduler()):
        raise UserError(
            "TUNE, LAYER_DECAY, HEAD_LR_SCALE, LOSS, LR_SCHEDULER"
            ": the comparison with timm does not support them; remove them"
        )


def timm_flags(
    config: Config, data_root: Path, output: Path, interval: int, val_split: str = "", trains: bool = True
) -> list[str]:
    """Flags of train.py: crop and flip, no checkpoint before the end of an epoch that is evaluated.

    data_root: has a folder for each split. output: gets a folder for the run. interval: steps between log lines.
    val_split: evaluated every VALIDATE_FREQ epochs and at the end; '' for no evaluation. trains: False for the flags of
    validate.py and inference.py, which read the images of `val_split` and write the table `output`.
    """
    data = config.data
    model = config.model
    train = config.train
    height, width = data.input_size
    on_gpu = visible_gpus() > 0
    table = read_yaml(Path(__file__).with_name("timm_flags.yaml"))
    options = values_of(config)
    arguments = options.get("MODEL.KWARGS")  # of TYPE timm: other models keep timm's shape and drop rates
    if model.type == "vit":
        arguments = {"img_size": data.image_size} | {name: options[key] for name, key in table["vit"].items()}
    size = {"img-size": height} if height == width else {"input-size": (data.image_channels, height, width)}
    warmup_epochs = int(train.warmup_epochs)
    autocast_dtype = "float16" if on_gpu else "bfloat16"
    flag_of = {key: flag for flag, key, _ in reversed([*keys_of_program(programs()["timm"])])}
    values = table["always"] | {flag_of[key]: options[key] for key in table["options"]} | size
    values |= {
        "amp": config.amp.enabled, "model": model.name, "train-interpolation": data.interpolation,
        "data-dir": data_root, "val-split": val_split, "output": output, "log-interval": interval,
        "initial-checkpoint": model.pretrained, "device": "cuda" if on_gpu else "cpu", "pin-mem": on_gpu,
        "workers": max(1, data.num_workers or 0),  # timm's loader needs one
        "validation-batch-size": data.eval_batch_size, "num-classes": model.num_logits,
        "ratio": [bound * (width / height) for bound in data.random_crop_ratio], "vflip": data.vflip_prob or None,
        "model-kwargs": arguments, "opt-kwargs": train.optimizer.kwargs,
        "opt": timm_name(train.optimizer), "clip-grad": train.grad_clip or None,
        "epochs": train.num_epochs - warmup_epochs, "warmup-epochs": warmup_epochs,
        "model-ema-warmup": train.model_ema and train.model_ema_warmup is True,
        "torchcompile": train.compiles, "torchcompile-mode": "max-autotune" if train.compile == "max" else None,
        "amp-dtype": config.amp.enabled and (config.amp.dtype or autocast_dtype),
    }  # fmt: skip
    if not trains:
        values = {flag: values.get(name) for flag, name in table["evaluation"].items()}
    return _to_flags(values)


def _to_flags(values: Values) -> list[str]:
    """True: a switch; None, False: left out; arguments: NAME=VALUE."""
    words = []
    for name, value in values.items():
        if isinstance(value, dict):
            value = [f"{key}={one}" for key, one in value.items()] or None
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
    return words
