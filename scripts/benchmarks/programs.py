"""Training programs in processes of their own: starts, pauses and ends them, and reads their speed from their logs."""

import os
import re
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import NamedTuple, Protocol, Self

from utils.errors import UserError


class Reading(NamedTuple):
    """Totals since the start of training, from a log line. A program that does not log a value leaves it at 0.

    seconds: training time by the program's own clock, of which `waiting_seconds` were spent waiting for data: by the
    device in our log, by the host in timm's.
    """

    steps: int
    seconds: float
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
        self.last = Reading(0, 0.0)

    def read(self, line: str) -> Reading | None:
        found = self.LINE.search(line)
        if not found:
            return None
        epoch, step, steps_per_epoch = map(int, found.groups()[:3])
        rate, gigabytes, wait_percent = (float(figure or 0) for figure in found.groups()[3:])
        done_steps = (epoch - 1) * steps_per_epoch + step + 1
        seconds = (done_steps - self.last.steps) * self.images_per_step / rate
        self.last = Reading(
            done_steps,
            self.last.seconds + seconds,
            self.last.waiting_seconds + seconds * wait_percent / 100,
            gigabytes * 1e9,
        )
        return self.last


class TimmLog:
    """The log of timm's train.py in its first epoch. The values in parentheses are averages since the epoch began."""

    LINE = re.compile(r"Train: 0 \[ *(\d+)/\d+ .*\([\d.]+s, +([\d.]+)/s\).* Data: [\d.]+ \(([\d.]+)\)")

    def __init__(self, images_per_step: int) -> None:
        self.images_per_step = images_per_step

    def read(self, line: str) -> Reading | None:
        match = self.LINE.search(line)
        if not match:
            return None
        steps, rate, waiting = int(match[1]) + 1, float(match[2]), float(match[3])
        return Reading(steps, steps * self.images_per_step / rate, steps * waiting)


class PlainLog:
    """The log of a script that prints its totals: `step 8, 4.125 s, 0.731 GB`."""

    LINE = re.compile(r"^step (\d+), ([\d.]+) s, ([\d.]+) GB$")

    @staticmethod
    def line(steps: int, seconds: float, memory_bytes: int) -> str:
        return f"step {steps}, {seconds:.4f} s, {memory_bytes / 1e9:.3f} GB"

    def read(self, line: str) -> Reading | None:
        match = self.LINE.match(line)
        return Reading(int(match[1]), float(match[2]), 0.0, float(match[3]) * 1e9) if match else None


class Window(NamedTuple):
    """The timed steps of a turn: `seconds` by our clock, between the arrivals of two log lines."""

    steps: int
    seconds: float
    first: Reading
    last: Reading

    @property
    def own_seconds(self) -> float:
        """The same steps by the program's own clock."""
        return self.last.seconds - self.first.seconds

    @property
    def wait_share(self) -> float:
        return (self.last.waiting_seconds - self.first.waiting_seconds) / self.own_seconds


class ProgramError(UserError):
    """A program ended, or was killed, before its turn was complete."""


class Program:
    """A program that runs during its turns only. Between them SIGSTOP pauses it and its child processes.

    A context manager: on exit it ends the program.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log: Log) -> None:
        self.command, self.environment, self.log = command, environment, log
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kills all processes of the program. Until then a paused program keeps its memory, also that of a GPU."""
        if self._process:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def turn(self, warmup: int, steps: int, limit_seconds: float) -> Window:
        """Starts or continues the program. Times `steps` steps after its first line with `warmup` or more steps.

        Raises:
            ProgramError: the program ended, or took longer than `limit_seconds` and was killed.
        """
        started = time.perf_counter()
        timer = threading.Timer(limit_seconds, self._signal, (signal.SIGKILL,))
        timer.start()
        try:
            if self._process:
                self._signal(signal.SIGCONT)
            else:
                self._process = self._start()
            window = self._time_steps(warmup, steps)
        finally:
            timer.cancel()
            self._signal(signal.SIGSTOP)
        if window:
            return window
        last_line = self.lines[-1].removeprefix("error: ") if self.lines else "no output"
        is_late = time.perf_counter() - started >= limit_seconds
        raise ProgramError(f"not done within {limit_seconds:g} s; last line: {last_line}" if is_late else last_line)

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )

    def _time_steps(self, warmup: int, steps: int) -> Window | None:
        first = None
        for line in self._process.stdout:
            arrived = time.perf_counter()
            self.lines.append(line.rstrip("\n"))
            reading = self.log.read(self.lines[-1])
            if reading is None or reading.steps < warmup:
                continue
            if first is None:
                first, first_arrived = reading, arrived
            elif reading.steps >= first.steps + steps:
                return Window(reading.steps - first.steps, arrived - first_arrived, first, reading)
        return None

    def _signal(self, number: signal.Signals) -> None:
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
