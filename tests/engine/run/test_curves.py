"""curves.png: its panels and curves."""

from engine.run import curves
from engine.run.curves import PICTURE, draw_curves
from utils.metric_table import METRICS as TABLE

METRICS = "epoch,train_loss,val_loss,train_top1,val_top1\n1,2.0,,10,\n2,1.0,1.5,40,30\n3,damaged,1.2,50,\n"


def test_the_curves_are_the_rows_with_a_value(tmp_path, monkeypatch):
    figures, folder = [], tmp_path / "cost$a_{$"
    folder.mkdir()
    original = curves.png_bytes
    monkeypatch.setattr(curves, "png_bytes", lambda figure: figures.append(figure) or original(figure))
    for table in ("epoch\n", METRICS):
        (folder / "metrics.csv").write_text(table)
        draw_curves(folder, TABLE["top1"])
        assert (folder / PICTURE).read_bytes().startswith(b"\x89PNG")
    loss, accuracy = figures[-1].axes
    assert {line.get_label(): line.get_xydata().tolist() for line in loss.lines} == {
        "training": [[1, 2], [2, 1]], "validation": [[2, 1.5], [3, 1.2]],
    }  # fmt: skip
    assert [line.get_label() for line in accuracy.lines][-1] == "best: 30.00%, epoch 2"
    ticks = loss.xaxis.get_major_locator().tick_values(1, 2)
    assert all(tick == round(tick) for tick in ticks)
