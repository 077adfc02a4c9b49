"""Training programs in processes of their own: starts and ends them, and reads their speed from their logs."""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import IO, NamedTuple

from configs.reading.command_line import parse_command_line
from scripts.benchmarks.common import ENTRY, failure_reason
from scripts.flags import add_flag, positive
from utils.device import visible_gpus
from utils.errors import UserError

# Log lines with the step of the epoch, and with the figures that the program logs
OURS = re.compile(
    r"Epoch\[(?P<epoch>\d+)/\d+\], Step\[(?P<step>\d+)/(?P<steps_per_epoch>\d+)\],.*"
    r", (?P<gigabytes>[\d.]+)G(?:, wait (?P<wait>\d+)%)?(?:,|$)"
)
TIMM = re.compile(r"Train: 0 \[ *(?P<step>\d+)/")
BARE = re.compile(r"^bare loop, step (?P<step>\d+), (?P<gigabytes>[\d.]+)G$")
READY_OPTIONS = ("DATA.RANDOM_CROP_SCALE=[1.0, 1.0]", "DATA.RANDOM_CROP_RATIO=[1.0, 1.0]", "DATA.HFLIP_PROB=0.0")


class Program(NamedTuple):
    """A program to measure.

    log: the pattern of its log lines.
    prefetches: its child processes load batches, more of them than the program has used.
    """

    command: list[str]
    log: re.Pattern[str]
    prefetches: bool = False


def entry_program(argv: list[str], interval: int, output: Path, data: list[str] | None, entry: Path = ENTRY) -> Program:
    """An entry script without evaluations and checkpoints, on images from the loader or on ready data.

    Args:
        interval: steps between log lines.
        output: gets the folder of the run.
        data: flags of the images, besides those in `argv`; None for random images in memory, without crops.
    """
    options = [f"REPORT_FREQ={interval}", "VALIDATE_FREQ=1000000", "SAVE_FREQ=1000000", "SAVE_FREQ_MINUTES=null"]
    options += READY_OPTIONS if data is None else []
    flags = ready_flags() if data is None else data
    command = [sys.executable, str(entry), *argv, *flags, f"-output={output}", "-opts", *options]
    return Program(command, OURS, prefetches=parse_command_line(command[2:]).config.data.num_workers != 0)


def ready_flags() -> list[str]:
    """Random images in memory. On a CPU a worker would take a core from the model."""
    return ["-dataset=fake", *([] if visible_gpus() else ["-num_workers=0"])]


def add_turn_flags(parser: argparse.ArgumentParser, rounds: int, warmup: int, steps: int) -> None:
    """Adds the flags of a benchmark that calls `run_turn` in turns, with these defaults."""
    add_flag(parser, "rounds", type=positive, default=rounds, metavar="N", help=f"turns of each (default: {rounds})")
    steps_help = f"first steps, not timed (default: {warmup})"
    add_flag(parser, "warmup", type=positive, default=warmup, metavar="N", help=steps_help)
    add_flag(parser, "steps", type=positive, default=steps, metavar="N", help=f"timed steps (default: {steps})")
    add_flag(parser, "interval", type=positive, default=4, metavar="N", help="steps between log lines (default: 4)")
    add_flag(parser, "limit", type=positive, default=600, metavar="S", help="seconds per turn at most (default: 600)")


def run_turn(
    program: Program, warmup: int, steps: int, limit_seconds: float, images_per_step: int = 1
) -> dict[str, float]:
    """Starts the program, times `steps` steps after its first line with `warmup` or more steps, and kills it.

    A program that prefetches first uses up its prefetched batches: in so few steps they would hide a slow loader.

    Returns:
        images_per_second, cpu_seconds_per_second; if the program logs them, peak_memory_bytes and data_wait_share
        (below 5%: 0).
    Raises:
        UserError: the program ended, or took longer than `limit_seconds`.
    """
    with _running(program, limit_seconds) as run:
        return run.time_steps(warmup, steps, program.prefetches, images_per_step)


def first_step(program: Program, limit_seconds: float) -> dict[str, float]:
    """Wall seconds from the start to the first log line, and CPU seconds of all processes. Errors: as `run_turn`."""
    started = time.perf_counter()
    with _running(program, limit_seconds) as run:
        arrived, _ = run.next_reading()
        return {"wall_seconds": arrived - started, "cpu_seconds": group_cpu_seconds(run.process.pid)}


def group_cpu_seconds(group: int) -> float:
    """CPU seconds, so far, of the running processes of a process group, and of their children that have ended."""
    return sum(map(_cpu_seconds, _pids(group)))


def _pids(group: int) -> list[int]:
    found = []
    for pid in (int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                found.append(pid)
    return found


def _cpu_seconds(pid: int) -> float:
    """Of a process and its ended children; 0 if it has ended."""
    with suppress(OSError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@contextmanager
def _running(program: Program, limit_seconds: float) -> Iterator["_Run"]:
    run = _Run(program, time.monotonic() + limit_seconds)
    try:
        yield run
    except EOFError:
        with suppress(subprocess.TimeoutExpired):
            run.process.wait(10)
        raise UserError(failure_reason(run.process.returncode or 0, run.lines)) from None
    except Empty:
        raise UserError(f"not done within {limit_seconds:g} s; last line: {''.join(run.lines[-1:])}") from None
    finally:
        run.signal(signal.SIGKILL)
        run.process.wait()


class Reading(NamedTuple):
    """The figures of a log line. steps: since the start of training."""

    steps: int
    memory_bytes: float = 0.0
    data_wait_share: float = 0.0


def read_line(pattern: re.Pattern[str], line: str) -> Reading | None:
    """Reads the figures of a line; None for another line."""
    if not (match := pattern.search(line)):
        return None
    found = {name: float(text or 0) for name, text in match.groupdict().items()}
    steps = (found.get("epoch", 1) - 1) * found.get("steps_per_epoch", 0) + found["step"] + 1
    return Reading(int(steps), found.get("gigabytes", 0) * 1e9, found.get("wait", 0) / 100)


class _Run:
    """The processes of a program that is running, and its output."""

    def __init__(self, program: Program, deadline: float) -> None:
        self.lines: list[str] = []
        self._log, self._deadline = program.log, deadline
        self._arrivals: Queue[tuple[float, str] | None] = Queue()
        self.process = subprocess.Popen(
            program.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )
        threading.Thread(target=self._receive, args=(self.process.stdout,), daemon=True).start()

    def _receive(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._arrivals.put((time.perf_counter(), line.rstrip("\n")))
        self._arrivals.put(None)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def time_steps(self, warmup: int, steps: int, prefetches: bool, images_per_step: int) -> dict[str, float]:
        before = arrived = time.perf_counter()
        first = Reading(0)
        while first.steps < warmup:
            before, (arrived, first) = arrived, self.next_reading()
        if prefetches:
            self._use_up_prefetched(quiet_seconds=max(1.0, 2 * (arrived - before)))
            arrived, first = self.next_reading()
        last, last_arrived, waited, cpu_before = first, arrived, 0.0, group_cpu_seconds(self.process.pid)
        while last.steps < first.steps + steps:
            before, (last_arrived, last) = last_arrived, self.next_reading()
            waited += last.data_wait_share * (last_arrived - before)
        seconds = last_arrived - arrived
        figures = {"images_per_second": (last.steps - first.steps) * images_per_step / seconds}
        figures["cpu_seconds_per_second"] = (group_cpu_seconds(self.process.pid) - cpu_before) / seconds
        if "gigabytes" in self._log.groupindex:
            figures["peak_memory_bytes"] = last.memory_bytes
        if "wait" in self._log.groupindex:
            figures["data_wait_share"] = waited / seconds
        return figures

    def next_reading(self, timeout_seconds: float = float("inf")) -> tuple[float, Reading]:
        """The next one, and our clock at its arrival.

        Raises:
            EOFError: the program ended.
            Empty: no line arrived within the timeout, or before the deadline.
        """
        while arrival := self._arrivals.get(timeout=max(0.0, min(timeout_seconds, self._deadline - time.monotonic()))):
            self.lines.append(arrival[1])
            if reading := read_line(self._log, arrival[1]):
                return arrival[0], reading
        raise EOFError

    def _use_up_prefetched(self, quiet_seconds: float) -> None:
        """Pauses the child processes of a program with one rank until it has logged nothing for `quiet_seconds`."""
        children = [pid for pid in _pids(self.process.pid) if pid != self.process.pid]
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        with suppress(Empty):
            while children:
                self.next_reading(quiet_seconds)
        self.signal(signal.SIGCONT)
