"""Repeated work takes a limited share of the time of a run."""

import pytest

from engine.training import run_files
from engine.training.run_files import TimeShare


@pytest.fixture
def clock(monkeypatch):
    """The seconds of a clock that the test sets."""
    seconds = [100.0]
    monkeypatch.setattr(run_files.time, "monotonic", lambda: seconds[0])
    return seconds


def test_work_of_two_seconds_at_one_percent_is_due_after_200_seconds(clock):
    calls = []

    def work():
        calls.append(clock[0])
        clock[0] += 2

    share = TimeShare(work, 0.01)
    share.update()
    for seconds in (103, 301, 303):
        clock[0] = seconds
        share.update()
    assert calls == [100, 303]
    share.update(now=True)
    assert calls == [100, 303, 305]


def test_work_that_fails_is_not_repeated_at_once(clock):
    def work():
        clock[0] += 1
        raise OSError("full")

    share = TimeShare(work, 0.5)
    with pytest.raises(OSError, match="full"):
        share.update()
    share.update()
