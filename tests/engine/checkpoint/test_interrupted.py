"""A signal saves at the next step, or the next batch of an evaluation, and the resumed run is the unbroken one."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, TINY_VIT, assert_same_state, only_run, rows, states, step_rows, train

from configs.command_line import parse_command_line
from engine.commands.run import run
from engine.training.trainer import Trainer
from utils.signals import PendingSignal, defer_signals
from utils.status import read_status


def interrupt(monkeypatch, place: str, count: int, number: int) -> None:
    """Sends the signal when `place`, a method of Trainer, is called for that time."""
    calls = iter(range(1, 10**6))
    original = getattr(Trainer, place)

    def with_signal(self, *arguments) -> None:
        if next(calls) == count:
            os.kill(os.getpid(), number)
        original(self, *arguments)

    monkeypatch.setattr(Trainer, place, with_signal)


@pytest.mark.parametrize(
    ("place", "count", "number", "at"),
    [
        ("after_step", 5, signal.SIGTERM, (0, 5)),
        ("after_step", 16, signal.SIGUSR1, (1, 8)),
        ("_after_eval_batch", 1, signal.SIGINT, (0, 8)),
        ("_after_eval_batch", 8, signal.SIGTERM, (1, 8)),
    ],
    ids=["in the first epoch", "at the last step", "in the first evaluation", "in the last evaluation"],
)
def test_saves_and_goes_on(digits_argv, tmp_path, cpu, monkeypatch, place, count, number, at):
    argv = [*digits_argv, "DATA.BATCH_SIZE_EVAL=64", "TRAIN.MODEL_EMA=true", "MODEL.DROPOUT=0.1"]
    argv += ["TRAIN.ACCUM_ITER=3"]  # 22 batches: the last of 8 steps is of one
    unbroken = train(argv, cpu)
    with monkeypatch.context() as patch:
        interrupt(patch, place, count, number)
        argv[2] = f"-output={tmp_path / 'broken'}"
        assert run(parse_command_line(argv), cpu, "main_single_gpu.py") == 128 + number
    broken = only_run(tmp_path / "broken")
    status = read_status(broken)
    assert (status["state"], status["signal"]) == ("interrupted", signal.Signals(number).name)
    assert status["checkpoint"] == str(broken / "last.pth")
    saved = states(broken)
    assert (saved["epoch"], saved["done_steps"]) == at
    assert train(["-resume=auto", *argv], cpu) == broken
    assert read_status(broken)["state"] == "finished"
    assert_same_state(states(broken), states(unbroken))
    assert rows(broken) == rows(unbroken)
    assert step_rows(broken) == step_rows(unbroken)


def test_saving_at_every_step_and_batch_changes_nothing(digits_argv, tmp_path, cpu):
    argv = [*digits_argv, "DATA.BATCH_SIZE_EVAL=64", "MODEL.DROPOUT=0.1"]
    unbroken = train(argv, cpu)
    argv[2] = f"-output={tmp_path / 'often'}"
    often = train([*argv, "SAVE_FREQ_MINUTES=1e-9", "SAVE_FREQ_STEPS=1"], cpu)
    assert_same_state(states(often), states(unbroken))
    assert rows(often) == rows(unbroken)
    log = (often / "log.txt").read_text()
    assert log.count("Save model") > 44 + 2 * 6  # each step, and each batch of the evaluations


def test_only_a_later_ctrl_c_ends_at_once(monkeypatch):
    ended = []
    monkeypatch.setattr("utils.signals.os._exit", ended.append)
    note = PendingSignal()
    with defer_signals(note):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # as a launcher passes it on
        assert note.number == signal.SIGTERM and not ended
        monkeypatch.setattr("utils.signals._DUPLICATE_SECONDS", 0.0)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not ended
        os.kill(os.getpid(), signal.SIGINT)
    assert ended == [130]


def start_two_ranks(output: Path, *more: str) -> subprocess.Popen:
    """An endless run on two ranks with a loading process each; returns when it trains."""
    argv = ["-dataset=fake", "-batch_size=8", "-ngpus=2", "-num_workers=1", f"-output={output}", *more, "-opts"]
    options = [*TINY_VIT, "MODEL.NUM_CLASSES=1000", "TRAIN.NUM_EPOCHS=1000", "REPORT_FREQ=2"]
    process = subprocess.Popen(
        [sys.executable, "main_multi_gpu.py", *argv, *options],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    for line in process.stdout:
        if line.startswith("Epoch["):
            break
    return process


def process_of_rank(rank: int, launcher: int) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher and f"\0RANK={rank}\0" in f"\0{(entry / 'environ').read_text()}":
                return int(entry.name)
    raise LookupError(f"no process of rank {rank}")


def test_two_ranks_save_together(tmp_path):
    process = start_two_ranks(tmp_path)
    began = time.monotonic()
    os.kill(process_of_rank(1, process.pid), signal.SIGTERM)  # the other hears of it from this one
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, printed
    assert time.monotonic() - began < 30
    folder = only_run(tmp_path)
    assert f"----- Interrupted by SIGTERM; saved; resume with -resume={folder}" in printed
    assert "Traceback" not in printed and "error" not in printed
    assert read_status(folder)["state"] == "interrupted"
    assert states(folder)["done_steps"] > 0
