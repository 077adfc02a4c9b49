"""A signal saves after the current step or evaluation batch; the resumed run equals one without a signal."""

import os
import signal
from pathlib import Path

import pytest
from conftest import assert_same_state, only_run, rows, states, step_rows, train

from configs.command_line import parse_command_line
from datasets.decoding.images import BadImage
from engine.commands.run import run
from engine.run.record import read_run
from engine.training.trainer import Trainer
from utils.files import read_json
from utils.notes import STATUS
from utils.signals import PendingSignal, defer_signals

pytestmark = pytest.mark.usefixtures("handlers_after_test")
OPTIONS = [
    "DATA.BATCH_SIZE_EVAL=64", "TRAIN.MODEL_EMA=true", "MODEL.DROPOUT=0.1",
    "TRAIN.ACCUM_ITER=3",  # 22 batches per epoch: the last of 8 steps has one batch
]  # fmt: skip


def interrupt(monkeypatch, method: str, count: int, number: int) -> None:
    """Sends signal `number` at call `count` of the Trainer method `method`."""
    calls = iter(range(1, 10**6))
    original = getattr(Trainer, method)

    def with_signal(self, *arguments) -> None:
        if next(calls) == count:
            os.kill(os.getpid(), number)
        original(self, *arguments)

    monkeypatch.setattr(Trainer, method, with_signal)


@pytest.fixture(scope="module")
def uninterrupted(trained_digits) -> Path:
    return trained_digits(*OPTIONS)


@pytest.mark.parametrize(
    ("method", "count", "number", "position"),
    [
        ("after_step", 5, signal.SIGTERM, (0, 5)),
        pytest.param("after_step", 16, signal.SIGUSR1, (1, 8), marks=pytest.mark.slow),
        ("after_eval_batch", 1, signal.SIGINT, (0, 8)),
        pytest.param("after_eval_batch", 8, signal.SIGUSR2, (1, 8), marks=pytest.mark.slow),
    ],
    ids=["in the first epoch", "at the last step", "in the first evaluation", "in the last evaluation"],
)
def test_interrupted_run_resumes_bit_for_bit(
    digits_argv, tmp_path, cpu, monkeypatch, uninterrupted, method, count, number, position
):
    argv = [*digits_argv, *OPTIONS]
    with monkeypatch.context() as patch:
        interrupt(patch, method, count, number)
        assert run(parse_command_line(argv), cpu) == 128 + number
    interrupted = only_run(tmp_path / "out")
    status = read_run(interrupted)
    assert (status["state"], status["signal"]) == ("interrupted", signal.Signals(number).name)
    assert status["checkpoint"] == str(interrupted / "last.pth")
    saved = states(interrupted)
    assert (saved["epoch"], saved["done_steps"]) == position
    assert train(["-resume=auto", *argv], cpu) == interrupted
    assert read_json(interrupted / STATUS)["state"] == "finished"
    assert_same_state(states(interrupted), states(uninterrupted))
    assert rows(interrupted) == rows(uninterrupted)
    assert step_rows(interrupted) == step_rows(uninterrupted)


@pytest.mark.parametrize(("freq", "count"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_a_validation_that_fails_costs_no_epoch(digits_argv, tmp_path, cpu, monkeypatch, freq, count):
    argv = [*digits_argv, "TRAIN.MODEL_EMA=true", "EVAL_RAW=true", f"VALIDATE_FREQ={freq}"]
    monkeypatch.setattr("engine.training.trainer._WRITE_TIMES", 0)
    uninterrupted = train(argv, cpu)
    evaluate, calls = Trainer._evaluate, iter(range(1, 10**6))

    def fail(self, *given):
        if next(calls) == 2 * count - 1:
            raise BadImage("x.jpg", "is damaged", "remove it")
        return evaluate(self, *given)

    argv[2] = f"-output={tmp_path / 'failed'}"
    with monkeypatch.context() as patch, pytest.raises(BadImage):
        patch.setattr(Trainer, "_evaluate", fail)
        run(parse_command_line(argv), cpu)
    failed = only_run(tmp_path / "failed")
    saved = states(failed)
    assert (saved["epoch"], saved["done_steps"]) == (1, 22)
    assert train(["-resume=auto", *argv], cpu) == failed
    assert_same_state(states(failed), states(uninterrupted))
    assert rows(failed) == rows(uninterrupted) and step_rows(failed) == step_rows(uninterrupted)


def test_a_step_that_ends_an_epoch_replaces_no_earlier_checkpoint(digits_argv, cpu):
    folder = train([*digits_argv, "SAVE_FREQ_STEPS=22"], cpu)  # 22 steps per epoch
    last, previous = states(folder), states(folder, "previous.pth")
    assert (last["epoch"], previous["epoch"], previous["done_steps"]) == (2, 1, 0)


def test_only_a_later_ctrl_c_exits_immediately(monkeypatch):
    exit_codes = []
    monkeypatch.setattr("utils.signals.os._exit", exit_codes.append)
    monkeypatch.setattr("utils.signals.remove_temporary_folders", lambda: None)  # other tests of this process use them
    pending = PendingSignal()
    with defer_signals(pending):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # forwarded by a launcher
        assert pending.number == signal.SIGTERM and not exit_codes
        monkeypatch.setattr("utils.signals._DUPLICATE_SECONDS", 0.0)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not exit_codes
        os.kill(os.getpid(), signal.SIGINT)
    assert exit_codes == [130]
