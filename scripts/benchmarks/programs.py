"""The programs that benchmarks compare, each in processes of its own, and their speed, read from their logs."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from configs.command_line import parse_command_line
from scripts.benchmarks.timm_command import EXPLICIT_ATTENTION, timm_flags
from scripts.benchmarks.turns import CORES, FIRST_LINE, SPEED
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
# Log lines with the step of the epoch, and the memory if the program logs it
OURS = re.compile(
    r"Epoch\[(?P<epoch>\d+)/\d+\], Step\[(?P<step>\d+)/(?P<steps_per_epoch>\d+)\],.*"
    r", (?P<gigabytes>[\d.]+)G(?:,|$)"
)
TIMM = re.compile(r"Train: 0 \[ *(?P<step>\d+)/")
BARE = re.compile(r"^bare loop, step (?P<step>\d+), (?P<gigabytes>[\d.]+)G$")
READY_OPTIONS = ("DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.0, 1.0]", "DATA.HFLIP_PROB=0.0")


class Program(NamedTuple):
    """A program to measure."""

    command: list[str]
    log: re.Pattern[str]  # its log lines
    prefetches: bool = False  # its child processes load batches, more of them than the program has used


def build_program(
    name: str, argv: list[str], interval: int, folder: Path, timm_train: Path | None = None, val_split: str = ""
) -> Program:
    """A program of PROGRAMS with the flags `argv` of main_single_gpu.py, without evaluations and checkpoints.

    interval: steps between log lines. folder: has the JPEGs in `data`; gets the folders of the runs. timm_train: timm's
    train.py. val_split: the split that it opens.
    """
    if name == "bare":
        script = Path(__file__).with_name("benchmark_train.py")
        return Program([sys.executable, str(script), "-worker", f"-interval={interval}", *argv], BARE)
    if name.startswith("timm"):
        config = parse_command_line(argv).config
        words = timm_flags(config, folder / "data", folder / "timm", interval, val_split)
        explicit = EXPLICIT_ATTENTION if name == "timm_explicit" else []
        return Program([*explicit, sys.executable, str(timm_train), *words], TIMM, config.data.num_workers > 0)
    data = ready_flags() if name == "ready" else ["-dataset=folder", f"-data_path={folder / 'data'}"]
    options = [f"REPORT_FREQ={interval}", "VALIDATE_FREQ=1000000", "SAVE_FREQ=1000000", "SAVE_FREQ_MINUTES=null"]
    options += READY_OPTIONS if name == "ready" else []
    words = [*argv, *data, f"-output={folder / name}", "-opts", *options]
    prefetches = parse_command_line(words).config.data.num_workers != 0
    return Program([sys.executable, str(ENTRY), *words], OURS, prefetches)


def ready_flags() -> list[str]:
    """Random images in memory. On a CPU a worker would take a core from the model."""
    return ["-dataset=fake", *([] if visible_gpus() else ["-num_workers=0"])]


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


def run_turn(
    program: Program, warmup: int, steps: int, limit_seconds: float, images_per_step: int = 1
) -> dict[str, float]:
    """Starts the program, times `steps` steps after its first line with `warmup` or more steps, and kills it.

    A program that prefetches first uses up its prefetched batches: in so few steps they would hide a slow loader.

    Returns the images/s, the CPU seconds per second, the seconds to its first line, and the peak memory if it logs it.
    Raises UserError: the program ended, or took longer than `limit_seconds`.
    """
    with _Run(program, limit_seconds) as run:
        started = before = time.perf_counter()
        first = run.next_reading()
        to_first_line = first.arrived - started
        while first.steps < warmup:
            before, first = first.arrived, run.next_reading()
        if program.prefetches:
            first = run.use_up_prefetched(quiet_seconds=max(1.0, 2 * (first.arrived - before)))
        last, cpu_before = first, group_cpu_seconds(run.pid)
        while last.steps < first.steps + steps:
            last = run.next_reading()
        seconds = last.arrived - first.arrived
        figures = {
            SPEED: (last.steps - first.steps) * images_per_step / seconds,
            CORES: (group_cpu_seconds(run.pid) - cpu_before) / seconds,
            FIRST_LINE: to_first_line,
        }
        return figures | ({"peak_memory_bytes": last.memory_bytes} if last.memory_bytes else {})


def first_step(program: Program, limit_seconds: float) -> dict[str, float]:
    """Wall seconds from the start to the first log line, and CPU seconds of all processes. Errors: as `run_turn`."""
    started = time.perf_counter()
    with _Run(program, limit_seconds) as run:
        return {"wall_seconds": run.next_reading().arrived - started, "cpu_seconds": group_cpu_seconds(run.pid)}


def group_cpu_seconds(group: int) -> float:
    """CPU seconds, so far, of the running processes of a process group, and of their children that have ended."""
    return sum(_cpu_ticks(group).values()) / os.sysconf("SC_CLK_TCK")


def _cpu_ticks(group: int) -> dict[int, int]:
    """By the id of each process of a group: its CPU time, with the time of its children that have ended."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            after_name = path.read_text().rpartition(")")[2].split()
            if int(after_name[2]) == group:
                found[int(path.parent.name)] = sum(map(int, after_name[11:15]))
    return found


class Reading(NamedTuple):
    """The figures of a log line. steps: since the start of training. arrived: our clock at its arrival."""

    steps: int
    memory_bytes: float = 0.0
    arrived: float = 0.0


def read_line(pattern: re.Pattern[str], line: str) -> Reading | None:
    """Reads the figures of a line; None for another line."""
    if not (match := pattern.search(line)):
        return None
    found = {name: float(text or 0) for name, text in match.groupdict().items()}
    steps = (found.get("epoch", 1) - 1) * found.get("steps_per_epoch", 0) + found["step"] + 1
    return Reading(int(steps), found.get("gigabytes", 0) * 1e9)


class _Run:
    """The processes of a program while the context lasts; they are killed at its end, and after the limit."""

    def __init__(self, program: Program, limit_seconds: float) -> None:
        self._log, self._lines, self._limit_seconds = program.log, list[str](), limit_seconds
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        self._process = subprocess.Popen(program.command, process_group=0, **output)
        self.pid = self._process.pid
        self._limit = threading.Timer(limit_seconds, self._signal, [signal.SIGKILL])

    def __enter__(self) -> "_Run":
        self._limit.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._limit.cancel()
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def next_reading(self) -> Reading:
        """Raises UserError if the program has ended, or was killed after the limit."""
        for line in self._process.stdout:
            arrived = time.perf_counter()
            self._lines.append(line.rstrip("\n"))
            if reading := read_line(self._log, line):
                return reading._replace(arrived=arrived)
        if not self._limit.is_alive():
            raise UserError(f"not done within {self._limit_seconds:g} s; last line: {''.join(self._lines[-1:])}")
        raise UserError(failure_reason(self._process.wait(), self._lines))

    def use_up_prefetched(self, quiet_seconds: float) -> Reading:
        """Pauses the child processes of a program with one rank until it has logged nothing for `quiet_seconds`.

        Returns the first reading after the pause.
        """
        children = [pid for pid in _cpu_ticks(self.pid) if pid != self.pid]
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        while children:
            pause = threading.Timer(quiet_seconds, self._signal, [signal.SIGCONT])
            pause.start()
            reading = self.next_reading()
            if not pause.is_alive():
                return reading
            pause.cancel()
        return self.next_reading()
