"""The progress bar: its numbers move without a report, it counts to 100%, ASCII where the terminal is."""

import io

import pytest

from engine.progress import EpochProgress
from engine.run import step_bar
from engine.run.step_bar import StepBar
from utils.metrics import MetricSums


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch, cpu, encoding: str) -> str:
    """The output of a bar of 4 steps of 32 images in 4 simulated seconds."""
    terminal = Terminal(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stderr", terminal)
    now = 0.0
    monkeypatch.setattr(step_bar.time, "perf_counter", lambda: now)
    progress = EpochProgress(0, 4, 4, MetricSums(cpu.device))
    bar = StepBar("Epoch 1/2", cpu, progress, images_per_step=32)
    for step in range(1, 5):
        now += 1.0
        progress.done_steps = step
        bar.after_step(progress)
        if step == 2:
            bar.show_loss(2.5)
    bar.close()
    terminal.flush()
    return terminal.buffer.getvalue().decode(encoding)


def test_the_numbers_move_without_a_report(monkeypatch, cpu):
    text = drawn(monkeypatch, cpu, "utf-8")
    assert "25%|" in text and "1/4 step" in text and "32 img/s]" in text
    assert "100%|" in text and "4/4 step" in text and "32 img/s, loss 2.5000]" in text
    assert "step/s" not in text and "█" in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_ascii_where_the_terminal_is(monkeypatch, cpu, encoding):
    assert "#" in drawn(monkeypatch, cpu, encoding)
