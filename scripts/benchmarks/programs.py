"""Other programs, watched from outside: what their log says and when it says so; they run in turns, and are ended."""

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
    """What a log line says of training: the steps that are done, and the seconds they took by the program's own clock.

    `waiting_seconds` of them were spent waiting for data, 0 where the program does not say; so for the peak of memory.
    """

    steps: int
    seconds: float
    waiting_seconds: float = 0.0
    memory_bytes: float = 0.0


class Log(Protocol):
    """Reads the lines of one program, from its first on."""

    def read(self, line: str) -> Reading | None: ...


class OurLog:
    """Reads main_single_gpu.py. A report has two lines: the step, then the images/s since the report before."""

    STEP = re.compile(r"Epoch\[(\d+)/\d+\], Step\[(\d+)/(\d+)\],")
    SPEED = re.compile(r" img/s: ([\d.]+)(?:, wait: (\d+)%)?.* mem: ([\d.]+)G")

    def __init__(self, images_per_step: int) -> None:
        self.images_per_step = images_per_step
        self.done_steps = 0
        self.last = Reading(0, 0.0)

    def read(self, line: str) -> Reading | None:
        if found := self.STEP.search(line):
            epoch, step, steps = map(int, found.groups())
            self.done_steps = (epoch - 1) * steps + step + 1
        found = self.SPEED.search(line)
        if not found:
            return None
        rate, wait_percent, gigabytes = (float(figure or 0) for figure in found.groups())
        seconds = (self.done_steps - self.last.steps) * self.images_per_step / rate
        self.last = Reading(
            self.done_steps,
            self.last.seconds + seconds,
            self.last.waiting_seconds + seconds * wait_percent / 100,
            gigabytes * 1e9,
        )
        return self.last


class TimmLog:
    """Of timm's train.py, in its first epoch; in brackets its lines have the averages since the epoch began."""

    LINE = re.compile(r"Train: 0 \[ *(\d+)/\d+ .*\([\d.]+s, +([\d.]+)/s\).* Data: [\d.]+ \(([\d.]+)\)")

    def __init__(self, images_per_step: int) -> None:
        self.images_per_step = images_per_step

    def read(self, line: str) -> Reading | None:
        found = self.LINE.search(line)
        if not found:
            return None
        steps, rate, waiting = int(found[1]) + 1, float(found[2]), float(found[3])
        return Reading(steps, steps * self.images_per_step / rate, steps * waiting)


class PlainLog:
    """Of a script that says `step 8, 4.125 s, 0.731 GB`, counted from its first step on."""

    LINE = re.compile(r"^step (\d+), ([\d.]+) s, ([\d.]+) GB$")

    @staticmethod
    def line(steps: int, seconds: float, memory_bytes: int) -> str:
        return f"step {steps}, {seconds:.4f} s, {memory_bytes / 1e9:.3f} GB"

    def read(self, line: str) -> Reading | None:
        found = self.LINE.match(line)
        return Reading(int(found[1]), float(found[2]), 0.0, float(found[3]) * 1e9) if found else None


class Window(NamedTuple):
    """Steps of a program after its warm-up: their seconds by our clock, when the lines came, and what its log says."""

    steps: int
    seconds: float
    first: Reading
    last: Reading

    @property
    def own_seconds(self) -> float:
        return self.last.seconds - self.first.seconds

    @property
    def wait_share(self) -> float:
        return (self.last.waiting_seconds - self.first.waiting_seconds) / self.own_seconds


class Failed(UserError):
    """A program ended, or was ended, before it had said what was to be read."""


class Program:
    """A program in processes of its own that goes on in its turns only: in between it and all it started stand still.

    Used as a context; when left, it is ended with all processes that it started and that stayed in its group.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log: Log) -> None:
        self.command, self.environment, self.log = command, environment, log
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()

    def turn(self, warmup: int, steps: int, limit_seconds: float) -> Window:
        """Lets it start, or go on, until `steps` steps are done after its first line that tells of `warmup` or more.

        Raises:
            Failed: it ended before, or `limit_seconds` were over; then it is ended.
        """
        started = time.perf_counter()
        watch = threading.Timer(limit_seconds, self._signal, (signal.SIGKILL,))
        watch.start()
        try:
            if self._process:
                self._signal(signal.SIGCONT)
            else:
                self._process = self._started()
            window = self._window(warmup, steps)
        finally:
            watch.cancel()
            self._signal(signal.SIGSTOP)
        if window:
            return window
        said = self.lines[-1].removeprefix("error: ") if self.lines else "it said nothing"
        is_late = time.perf_counter() - started >= limit_seconds
        raise Failed(f"not done within {limit_seconds:g} s; the last it said: {said}" if is_late else said)

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )

    def _window(self, warmup: int, steps: int) -> Window | None:
        first = None
        for line in self._process.stdout:
            arrived = time.perf_counter()
            self.lines.append(line.rstrip("\n"))
            reading = self.log.read(self.lines[-1])
            if reading is None or reading.steps < warmup:
                continue
            if first is None:
                first, since = reading, arrived
            elif reading.steps >= first.steps + steps:
                return Window(reading.steps - first.steps, arrived - since, first, reading)
        return None

    def _signal(self, number: signal.Signals) -> None:
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
