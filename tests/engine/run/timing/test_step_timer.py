"""The times of micro-steps: waiting for a batch, the forward pass, and whether the host's launches limit the speed."""

import math
from collections import deque
from itertools import islice

import pytest
import torch

from datasets.batch import Batch
from engine.run.step_timer import StepTimer

NOTHING = torch.empty(0)


class SimulatedGpu:
    """A host and a GPU with one queue; the times are in seconds. Launching takes the host `launch`, spread evenly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.free_at = 0.0
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.time = math.inf

            def record(self) -> None:
                self.time = max(gpu.now, gpu.free_at)

            def query(self) -> bool:
                return self.time <= gpu.now

            def elapsed_time(self, end: "Event") -> float:
                assert self.query() and end.query()
                return 1000 * (end.time - self.time)

        monkeypatch.setattr(torch.cuda, "Event", Event)

    def compute(self, launch: float, busy: float, kernels: int = 100) -> None:
        for _ in range(kernels):
            self.now += launch / kernels
            self.free_at = max(self.now, self.free_at) + busy / kernels

    def batches(self, period: float, copy: float = 0.001):
        """The loader has finished batch n at (n + 1) x period."""
        for number in range(10**6):
            self.now = max(self.now, (number + 1) * period)
            copied = torch.cuda.Event()
            copied.time = self.now + copy
            self.free_at = max(self.free_at, copied.time)  # the computation waits for the copy
            yield Batch(NOTHING, NOTHING, 1, copied=copied)

    def train(self, timer: StepTimer, batches, steps: int, launch: float, busy: float, accum: int = 1) -> float:
        """launch, busy: of the two passes of a micro-step; a third is the forward pass. Returns the seconds of all."""
        started, step_ends = self.now, deque()
        for _ in range(steps):
            for batch in islice(iter(lambda: timer.next_batch(batches), None), accum):
                assert batch.copied
                with timer:
                    self.compute(launch / 3, busy / 3)
                self.compute(2 * launch / 3, 2 * busy / 3)
            with timer.launch_check():
                self.compute(launch=0.001, busy=0.0002)
            step_ends.append(self.free_at)
            if len(step_ends) > 2:  # the host is at most two steps ahead
                self.now = max(self.now, step_ends.popleft())
            timer.take()
        self.now = max(self.now, self.free_at)  # a report reads the metrics
        return self.now - started


@pytest.fixture
def simulated(monkeypatch):
    return SimulatedGpu(monkeypatch), StepTimer(torch.device("cuda"))


@pytest.mark.parametrize("accum", [1, 4])
@pytest.mark.parametrize(
    ("loader", "launch", "busy", "wait", "launch_bound"),
    [
        (0.080, 0.010, 0.075, 0.06, 0.0),  # the host spends 87% of the time in next()
        (0.060, 0.010, 0.075, 0.00, 0.0),
        (0.300, 0.010, 0.075, 0.75, 0.0),
        (0.010, 0.080, 0.030, 0.01, 1.0),  # the copy is not hidden: the GPU has nothing to compute
    ],
)
def test_shares_of_the_time(simulated, loader, launch, busy, wait, launch_bound, accum):
    gpu, timer = simulated
    batches = gpu.batches(loader)
    gpu.train(timer, batches, 10, launch, busy, accum)
    start = timer.totals()
    seconds = gpu.train(timer, batches, 40, launch, busy, accum)
    times = timer.totals().since(start)
    assert times.data_wait_seconds / seconds == pytest.approx(wait, abs=0.015)
    assert times.launch_bound_share == pytest.approx(launch_bound, abs=0.05)
    assert times.forward_seconds == pytest.approx(40 * accum * max(busy, launch) / 3, rel=0.05)


def test_times_that_are_read_late_count_once(simulated):
    """While the GPU is behind, `take` returns what has ended; the rest follows."""
    gpu, timer = simulated
    batches = gpu.batches(period=0.2)
    timer.next_batch(batches)
    with timer:
        gpu.compute(launch=0.001, busy=0.5)
    assert timer.take() == (pytest.approx(0.201), 0.0)
    gpu.now = 10.0
    assert timer.take() == (0.0, pytest.approx(0.5))
    assert timer.take() == (0.0, 0.0)


def test_work_between_epochs_is_no_wait(simulated):
    """An evaluation runs while the loader waits for the request of the next batch."""
    gpu, timer = simulated
    batches = gpu.batches(period=0.0)
    gpu.train(timer, batches, 5, launch=0.01, busy=0.075)
    start = timer.totals()
    gpu.compute(launch=1.0, busy=60.0)
    gpu.train(timer, batches, 5, launch=0.01, busy=0.075)
    assert timer.totals().since(start).data_wait_seconds < 0.01


def test_times_on_a_cpu():
    timer = StepTimer(torch.device("cpu"))
    timer.next_batch(iter([Batch(NOTHING, NOTHING, 1)]))
    with timer, timer.launch_check():
        torch.ones(100, 100) @ torch.ones(100, 100)
    waited, forward = timer.take()
    assert waited > 0 and forward > 0
    assert timer.totals() == (waited, forward, 0, 0) and timer.totals().launch_bound_share is None
    assert timer.take() == (0.0, 0.0)
