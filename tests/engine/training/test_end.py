"""The end of a run follows from its result and from the signal that interrupted it."""

import signal

import pytest

from engine.training.end import end_of
from utils.signals import Interrupted

FINISHED = {"finished": True, "stopped_early": False, "reason": None}
EARLY = {"finished": True, "stopped_early": True, "reason": "no better evaluation in 3 epochs"}


@pytest.mark.parametrize(
    "result, interrupted, state, status, flags",
    [
        (FINISHED, None, "finished", 0, ("-epochs=20",)),
        (EARLY, None, "finished", 0, ("-opts", "TRAIN.PATIENCE=null")),
        (FINISHED | {"finished": False}, None, "stopped", 0, ("-opts", "TRAIN.MAX_STEPS=null")),
        (FINISHED | {"finished": False}, signal.SIGTERM, "interrupted", 143, ()),
        (EARLY, signal.SIGUSR1, "interrupted", 138, ()),
    ],
)
def test_the_end_of_a_run(result, interrupted, state, status, flags):
    end = end_of(result, interrupted and Interrupted(interrupted), num_epochs=10)
    assert (end.state, end.status, end.flags) == (state, status, flags)
    outcome = end.outcome("python main_single_gpu.py -resume=RUN")
    assert (outcome["resume"] is None) == (state == "finished")
    assert outcome["signal"] == (interrupted and signal.Signals(interrupted).name)
    assert outcome.get("stopped_early", False) == (state == "finished" and result["stopped_early"])
