"""The time that this rank spends in a step before it waits for other ranks: for a batch, and in the forward pass.

On a GPU, events measure it. They are read only when they are complete, so that the host never waits: a time may be
added a few steps late, but before the host reads a result of its step.
"""

import operator
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from datasets.batch import Batch

# Labelled by the code of the step.
DATA_WAIT = "data wait"
TRANSFORM = "transform and mixup"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
LOGGING = "logging"
LABELLED = (DATA_WAIT, TRANSFORM, FORWARD, BACKWARD, OPTIMIZER, LOGGING)

# Found by the profile: GPU work of these kinds, and time outside of all labels.
COPY = "copy to the device"
COMMUNICATION = "communication"
OTHER = "other"
PHASES = (DATA_WAIT, COPY, TRANSFORM, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, LOGGING, OTHER)


_Span = tuple[torch.cuda.Event, torch.cuda.Event]


class TimerTotals(NamedTuple):
    """Sums since the start.

    data_wait_seconds: on a GPU, from the end of the work before a batch to the end of the batch's copy, if that is
    later; on a CPU, until the host has the batch. checks: steps on a GPU. launch_bound: those in which the GPU had
    executed the passes before the host had launched the optimizer's kernels.
    """

    data_wait_seconds: float
    forward_seconds: float
    checks: int
    launch_bound: int

    def since(self, start: "TimerTotals") -> "TimerTotals":
        return TimerTotals(*map(operator.sub, self, start))

    @property
    def launch_bound_share(self) -> float | None:
        return self.launch_bound / self.checks if self.checks else None


class StepTimer:
    """A context manager around the forward pass. `next_batch` and `launch_check` are for the loop around it."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._waits: deque[_Span] = deque()
        self._passes: deque[_Span] = deque()
        self._started = self._wait_seconds = self._forward_seconds = 0.0
        self._checks = self._launch_bound = 0
        self._taken = self.totals()

    def next_batch(self, batches: Iterator[Batch]) -> Batch:
        started, previous_end = time.perf_counter(), _recorded_event() if self._on_gpu else None
        batch = next(batches)
        if not self._on_gpu:
            self._wait_seconds += time.perf_counter() - started
        elif previous_end and batch.copied:
            self._waits.append((previous_end, batch.copied))
        return batch

    def __enter__(self) -> None:
        if self._on_gpu:
            self._forward_start = _recorded_event()
        else:
            self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        if self._on_gpu:
            self._passes.append((self._forward_start, _recorded_event()))
        else:
            self._forward_seconds += time.perf_counter() - self._started

    @contextmanager
    def launch_check(self) -> Iterator[None]:
        """Around the launches of the optimizer. A GPU that meanwhile ends the backward pass waits for the host."""
        backward_end = _recorded_event() if self._on_gpu else None
        yield
        if backward_end:
            self._checks += 1
            self._launch_bound += backward_end.query()

    def totals(self) -> TimerTotals:
        self._wait_seconds += _pop_complete(self._waits)
        self._forward_seconds += _pop_complete(self._passes)
        return TimerTotals(self._wait_seconds, self._forward_seconds, self._checks, self._launch_bound)

    def take(self) -> tuple[float, float]:
        """The seconds of the data wait and of the forward passes since the last call."""
        totals = self.totals()
        new, self._taken = totals.since(self._taken), totals
        return new.data_wait_seconds, new.forward_seconds


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _pop_complete(spans: deque[_Span]) -> float:
    """Removes the spans that have ended; returns their seconds. A span that ends before it starts counts as 0."""
    seconds = 0.0
    while spans and all(event.query() for event in spans[0]):
        start, end = spans.popleft()
        seconds += max(0.0, start.elapsed_time(end) / 1000)
    return seconds
