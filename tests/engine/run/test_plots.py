"""curves.png: its panels and curves."""

import pytest

from engine.run import plots
from engine.run.plots import CURVES, draw_curves

METRICS = "epoch,train_loss,val_loss,train_top1,val_top1\n1,2.0,,10,\n2,1.0,1.5,40,30\n3,damaged,1.2,50,\n"
SCALED = "step,loss_scale,skipped_steps\n20,1.0,0\n40,1.0,1\n60,0.5,2\n"


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws the tables of a run; returns the figure."""
    figures, folder = [], tmp_path / "cost$a_{$"
    folder.mkdir()
    original = plots.png_bytes
    monkeypatch.setattr(plots, "png_bytes", lambda figure: figures.append(figure) or original(figure))

    def draw(metrics: str, steps: str):
        (folder / "metrics.csv").write_text(metrics)
        (folder / "steps.csv").write_text(steps)
        draw_curves(folder)
        assert (folder / CURVES).read_bytes().startswith(b"\x89PNG")
        return figures[-1]

    return draw


def test_the_curves_are_the_rows_with_a_value(drawn):
    loss, accuracy = drawn(METRICS, "step,loss_scale,skipped_steps\n20,1.0,0\n").axes
    assert {line.get_label(): line.get_xydata().tolist() for line in loss.lines} == {
        "training": [[1, 2], [2, 1]], "validation": [[2, 1.5], [3, 1.2]],
    }  # fmt: skip
    assert [line.get_label() for line in accuracy.lines][-1] == "best: 30.00%, epoch 2"
    ticks = loss.xaxis.get_major_locator().tick_values(1, 2)
    assert all(tick == round(tick) for tick in ticks)


def test_a_loss_scale_is_shown_if_it_varies_or_a_step_was_skipped(drawn):
    assert len(drawn("epoch\n", "step,loss_scale,skipped_steps\n20,1.0,0\n").axes) == 2
    _, _, scale, skipped = drawn("epoch\n", SCALED).axes
    assert scale.lines[0].get_ydata().tolist() == [1, 1, 0.5] and skipped.lines[0].get_ydata().tolist() == [0, 1, 2]
