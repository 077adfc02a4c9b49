"""Training programs in processes of their own: starts and ends them, and reads their speed from their logs."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import IO, NamedTuple, Protocol

from scripts.benchmarks.common import error_line
from utils.errors import UserError


class Reading(NamedTuple):
    """Totals since the start of training, from a log line. A program that does not log a value leaves it at 0.

    waiting_seconds: time spent waiting for data: by the device in our log, by the host in timm's.
    """

    steps: int
    waiting_seconds: float = 0.0
    memory_bytes: float = 0.0


class Log(Protocol):
    """Reads the lines of one program, starting with its first line."""

    def read(self, line: str) -> Reading | None: ...


class OurLog:
    """Reads main_single_gpu.py. Its step line has the images/s since the report before, and a data wait from 5% on."""

    LINE = re.compile(r"Epoch\[(\d+)/\d+\], Step\[(\d+)/(\d+)\],.*, ([\d.]+) img/s, ([\d.]+)G(?:, wait (\d+)%)?(?:,|$)")

    def __init__(self, images_per_step: int) -> None:
        self.images_per_step = images_per_step
        self.last = Reading(0)

    def read(self, line: str) -> Reading | None:
        found = self.LINE.search(line)
        if not found:
            return None
        epoch, step, steps_per_epoch = map(int, found.groups()[:3])
        rate, gigabytes, wait_percent = (float(figure or 0) for figure in found.groups()[3:])
        steps = (epoch - 1) * steps_per_epoch + step + 1
        seconds = (steps - self.last.steps) * self.images_per_step / (rate or 0.05)  # it is rounded to 0.1
        self.last = Reading(steps, self.last.waiting_seconds + seconds * wait_percent / 100, gigabytes * 1e9)
        return self.last


class TimmLog:
    """The log of timm's train.py in its first epoch. The value in parentheses is an average since the epoch began."""

    LINE = re.compile(r"Train: 0 \[ *(\d+)/\d+ .* Data: [\d.]+ \(([\d.]+)\)")

    def read(self, line: str) -> Reading | None:
        match = self.LINE.search(line)
        return Reading(int(match[1]) + 1, (int(match[1]) + 1) * float(match[2])) if match else None


class PlainLog:
    """The log of a script that prints its totals: `step 8, 0.731 GB`."""

    LINE = re.compile(r"^step (\d+), ([\d.]+) GB$")

    @staticmethod
    def line(steps: int, memory_bytes: float = 0.0) -> str:
        return f"step {steps}, {memory_bytes / 1e9:.3f} GB"

    def read(self, line: str) -> Reading | None:
        match = self.LINE.match(line)
        return Reading(int(match[1]), 0.0, float(match[2]) * 1e9) if match else None


class Window(NamedTuple):
    """The timed steps of a turn: `seconds` by our clock, between the arrivals of two log lines."""

    seconds: float
    first: Reading
    last: Reading

    @property
    def steps(self) -> int:
        return self.last.steps - self.first.steps

    @property
    def wait_share(self) -> float:
        return (self.last.waiting_seconds - self.first.waiting_seconds) / self.seconds


class ProgramError(UserError):
    """A program ended, or was killed, before its turn was complete."""


class Program(NamedTuple):
    """A program to measure.

    environment: variables in addition to those of this process.
    make_log: returns a reader of its output.
    prefetches: its child processes load batches, more of them than the program has used.
    """

    command: list[str]
    environment: dict[str, str]
    make_log: Callable[[], Log]
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
        self.log, self.lines = program.make_log(), []
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
        while True:
            last_arrived, last = self._next_reading()
            if last.steps >= first.steps + steps:
                return Window(last_arrived - arrived, first, last)

    def _next_reading(self, timeout_seconds: float | None = None) -> tuple[float, Reading]:
        """The next one, and our clock at its arrival.

        Raises:
            EOFError: the program ended.
            Empty: no line arrived within the timeout.
        """
        while arrival := self._arrivals.get(timeout=timeout_seconds):
            self.lines.append(arrival[1])
            if reading := self.log.read(arrival[1]):
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
