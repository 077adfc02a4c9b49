"""The estimate of the time left, on a simulated clock."""

from types import SimpleNamespace

import pytest

from engine import progress
from engine.progress import EpochProgress, TimeLeft
from utils.metrics import MetricSums

STEPS = 10


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock.now)
    return clock


def position(cpu, epoch: int, done_steps: int) -> EpochProgress:
    return EpochProgress(epoch, STEPS, STEPS, MetricSums(cpu.device), done_steps)


def test_steps_and_evaluations_to_the_last_epoch(clock, cpu):
    estimate = TimeLeft(num_epochs=3, max_steps=None)
    estimate.start_epoch(position(cpu, 0, 0))
    assert estimate.seconds(position(cpu, 0, 0)) is None
    clock.now += 50  # the first step compiles
    estimate.start_clock(position(cpu, 0, 1))
    clock.now += 8
    assert estimate.seconds(position(cpu, 0, 5)) == 25 * 2  # no evaluation is known
    clock.now += 10
    estimate.end_steps()
    clock.now += 6  # evaluation
    assert estimate.seconds(position(cpu, 0, 10)) == 20 * 2 + 2 * 6
    clock.now += 1  # checkpoint
    estimate.start_epoch(position(cpu, 1, 0))
    clock.now += 4
    assert estimate.seconds(position(cpu, 1, 1)) == 19 * 4 + 2 * 7


def test_max_steps_ends_the_run_earlier(clock, cpu):
    estimate = TimeLeft(num_epochs=300, max_steps=25)
    estimate.start_epoch(position(cpu, 2, 0))
    clock.now += 3
    assert estimate.seconds(position(cpu, 2, 3)) == 2
    clock.now += 2
    assert estimate.seconds(position(cpu, 2, 5)) == 0
