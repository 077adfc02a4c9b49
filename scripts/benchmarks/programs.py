"""Training programs in processes of their own: starts and ends them, and reads their speed from their logs."""

import os
import re
import signal
import statistics
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import IO, NamedTuple

from scripts.benchmarks.common import error_line
from utils.errors import UserError

# Log lines with the step of the epoch, and with the figures that the program logs
OURS = re.compile(
    r"Epoch\[(?P<epoch>\d+)/\d+\], Step\[(?P<step>\d+)/(?P<steps_per_epoch>\d+)\],.*"
    r", (?P<gigabytes>[\d.]+)G(?:, wait (?P<wait_percent>\d+)%)?(?:,|$)"
)
TIMM = re.compile(r"Train: 0 \[ *(?P<step>\d+)/")
BARE = re.compile(r"^bare loop, step (?P<step>\d+), (?P<gigabytes>[\d.]+)G$")


class Reading(NamedTuple):
    """The figures of a log line.

    steps: since the start of training.
    waiting_share: of the time since the line before, waiting for data; 0 if the program does not log it.
    """

    steps: int
    waiting_share: float = 0.0
    memory_bytes: float = 0.0


def read_line(pattern: re.Pattern[str], line: str) -> Reading | None:
    """Reads the figures of a line; None for another line."""
    if not (match := pattern.search(line)):
        return None
    found = {name: float(text or 0) for name, text in match.groupdict().items()}
    steps = (found.get("epoch", 1) - 1) * found.get("steps_per_epoch", 0) + found["step"] + 1
    return Reading(int(steps), found.get("wait_percent", 0) / 100, found.get("gigabytes", 0) * 1e9)


class Window(NamedTuple):
    """The timed steps of a turn: `seconds` by our clock, between the arrivals of two log lines."""

    steps: int
    seconds: float
    waiting_share: float
    memory_bytes: float


class ProgramError(UserError):
    """A program ended, or was killed, before its turn was complete."""


class Program(NamedTuple):
    """A program to measure.

    environment: variables besides this process's own.
    log: the pattern of its log lines.
    prefetches: its child processes load batches, more of them than the program has used.
    """

    command: list[str]
    environment: dict[str, str]
    log: re.Pattern[str]
    prefetches: bool = False


def run_turn(program: Program, warmup: int, steps: int, limit_seconds: float) -> Window:
    """Starts the program, times `steps` steps after its first line with `warmup` or more steps, and kills it.

    A program that prefetches first uses up its prefetched batches: in so few steps they would hide a slow loader.

    Raises:
        ProgramError: the program ended, or took longer than `limit_seconds`.
    """
    started, run = time.perf_counter(), _Run(program)
    timer = threading.Timer(limit_seconds, run.signal, (signal.SIGKILL,))
    timer.start()
    try:
        return run.time_steps(warmup, steps, program.prefetches)
    except EOFError:
        reason = error_line(run.lines) or "no output"
    finally:
        timer.cancel()
        run.signal(signal.SIGKILL)
        run.process.wait()
    if time.perf_counter() - started >= limit_seconds:
        reason = f"not done within {limit_seconds:g} s; last line: {''.join(run.lines[-1:])}"
    raise ProgramError(reason)


class _Run:
    """The processes of a program that is running, and its output."""

    def __init__(self, program: Program) -> None:
        self.lines: list[str] = []
        self._log = program.log
        self._arrivals: Queue[tuple[float, str] | None] = Queue()
        self.process = subprocess.Popen(
            program.command,
            env=os.environ | program.environment,
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

    def time_steps(self, warmup: int, steps: int, prefetches: bool) -> Window:
        before = arrived = time.perf_counter()
        first = Reading(0)
        while first.steps < warmup:
            before, (arrived, first) = arrived, self._next_reading()
        if prefetches:
            self._use_up_prefetched(quiet_seconds=max(1.0, 2 * (arrived - before)))
            arrived, first = self._next_reading()
        shares = []
        while True:
            last_arrived, last = self._next_reading()
            shares.append(last.waiting_share)
            if last.steps >= first.steps + steps:
                steps, seconds = last.steps - first.steps, last_arrived - arrived
                return Window(steps, seconds, statistics.mean(shares), last.memory_bytes)

    def _next_reading(self, timeout_seconds: float | None = None) -> tuple[float, Reading]:
        """The next one, and our clock at its arrival.

        Raises:
            EOFError: the program ended.
            Empty: no line arrived within the timeout.
        """
        while arrival := self._arrivals.get(timeout=timeout_seconds):
            self.lines.append(arrival[1])
            if reading := read_line(self._log, arrival[1]):
                return arrival[0], reading
        raise EOFError

    def _use_up_prefetched(self, quiet_seconds: float) -> None:
        """Pauses the loading workers of a program with one rank until it has logged nothing for `quiet_seconds`."""
        children = self._loading_processes()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        with suppress(Empty):
            while children:
                self._next_reading(quiet_seconds)
        self.signal(signal.SIGCONT)

    def _loading_processes(self) -> list[int]:
        found = []
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with suppress(ProcessLookupError, FileNotFoundError):
                is_child = pid != self.process.pid and os.getpgid(pid) == self.process.pid
                if is_child and b"_inductor" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found
