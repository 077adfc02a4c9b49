"""The time that this rank spends in a step before it waits for other ranks: for a batch, and in the forward pass."""

import time
from collections import deque

import torch


class RankTimer:
    """A context manager around the forward pass; `take` returns the seconds since its last call.

    On a GPU, events on the stream measure the pass. They are read when they are complete, so that the host never waits:
    a pass may count in one of the next calls.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._running: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._free: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._started = self._seconds = self._waited = 0.0

    def __enter__(self) -> None:
        if self._on_gpu:
            events = self._free.pop() if self._free else _two_events()
            events[0].record()
            self._running.append(events)
        else:
            self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        if self._on_gpu:
            self._running[-1][1].record()
        else:
            self._seconds += time.perf_counter() - self._started

    def take(self, data_wait_seconds: float) -> tuple[float, float]:
        """The seconds of the data wait and of the forward passes. `data_wait_seconds`: the sum of the epoch so far."""
        while self._running and self._running[0][1].query():
            start, end = events = self._running.popleft()
            self._seconds += start.elapsed_time(end) / 1000
            self._free.append(events)
        waited = data_wait_seconds - (self._waited if data_wait_seconds >= self._waited else 0.0)  # a new epoch
        forward, self._seconds, self._waited = self._seconds, 0.0, data_wait_seconds
        return waited, forward


def _two_events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
