"""The tables of a run: columns, resuming, damaged cells; the best epoch in them, and their curves."""

import re

import pytest
from conftest import read_result, train

from engine.checkpoint.reader import load_checkpoint
from engine.run import result
from engine.run.facts import FACTS, Model, read_facts
from engine.run.result import PICTURE, best_epoch, draw_curves
from engine.run.step_report import CsvFile
from utils.metric_table import METRICS
from utils.tables import read_rows


def no_warning(text: str) -> None:
    raise AssertionError(text)


def test_rows_after_the_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "metrics.csv"
    metrics = CsvFile(path, ["epoch", "loss"], 0, no_warning)
    for epoch in (1, 2, 3):
        metrics.append({"epoch": epoch, "loss": epoch / 10})
    CsvFile(path, ["epoch", "loss", "new"], 1, no_warning).append({"epoch": 2, "loss": 0.25, "new": 7})
    assert [list(row.values()) for row in read_rows(path)] == [["1", "0.1", ""], ["2", "0.25", "7"]]


@pytest.mark.parametrize(
    ("damaged", "kept"),
    [
        (b"epoch,loss\n1,0.5\n,0.4\ntwo,0.3\n4,x\n", [["1", "0.5"], ["4", "x"]]),
        (b"epoch,loss\n1,0.5\n\xff,0.4\n4,\xfe\n", [["1", "0.5"], ["4", "\ufffd"]]),
        (b"epic,loss\n1,0.5\n", []),
        (b"epoch,loss\n1," + b"7" * 200_000 + b"\n", []),  # longer than a cell of the csv module
    ],
)
def test_rows_without_a_position_are_left_out_and_the_file_is_kept(tmp_path, damaged, kept):
    path, warnings = tmp_path / "metrics.csv", []
    path.write_bytes(damaged)
    CsvFile(path, ["epoch", "loss"], 4, warnings.append)
    assert [list(row.values()) for row in read_rows(path)] == kept
    assert (tmp_path / "metrics.damaged.csv").read_bytes() == damaged
    (warning,) = warnings
    assert str(path) in warning and "metrics.damaged.csv" in warning


def test_a_result_has_the_trainable_parameters_and_the_time_of_all_starts(digits_argv, cpu):
    folder = train([*digits_argv, "MODEL.TUNE=head", "TRAIN.MAX_STEPS=23"], cpu)
    model, before = read_facts(folder / FACTS).get(Model), read_result(folder)
    head = 10 * 16 + 10  # classes, embed_dim
    assert (model.trainable, before["trainable_parameters"]) == (head, head) and before["parameters"] > 20 * head
    assert 0 < before["train_seconds"] < before["total_seconds"]
    train([f"-resume={folder}", "-opts", "TRAIN.MAX_STEPS=null"], cpu)
    assert read_result(folder)["total_seconds"] > load_checkpoint(folder / "previous.pth")["total_seconds"] > 0
    log = (folder / "log.txt").read_text()
    assert len(re.findall(r"----- Total time: \S+, of it \S+ in training steps", log)) == 2


def test_the_best_epoch_has_the_highest_top1_then_the_lowest_loss():
    rows = [
        ("1", "10", "1.5"),
        ("2", "30", "1.2"),
        ("3", "30", "1.1"),
        ("4", "30", "1.1"),
        ("5", "?", ""),
        ("", "9", ""),
    ]
    rows = [dict(zip(("epoch", "val_top1", "val_loss"), row, strict=True)) for row in rows]
    top1, loss, macro_f1 = (METRICS[name] for name in ("top1", "loss", "macro_f1"))
    assert best_epoch(rows, top1) == (3, 30.0) and best_epoch(rows[4:], top1) is None
    assert best_epoch(rows, loss) == (3, 1.1) and best_epoch(rows, macro_f1) is None  # of an earlier version


def test_the_curves_are_the_rows_with_a_value(tmp_path, monkeypatch):
    figures, folder, original = [], tmp_path / "cost$a_{$", result.png_bytes
    folder.mkdir()
    monkeypatch.setattr(result, "png_bytes", lambda figure: figures.append(figure) or original(figure))
    rows = "epoch,train_loss,val_loss,train_top1,val_top1,val_top5\n1,2.0,,10,,\n2,1.0,1.5,40,30,90\n3,?,1.2,50,,\n"
    for table in ("epoch\n", rows):
        (folder / "metrics.csv").write_text(table)
        draw_curves(folder, METRICS["top1"], 9)
        assert (folder / PICTURE).read_bytes().startswith(b"\x89PNG")
    loss, accuracy = figures[-1].axes
    assert {line.get_label(): line.get_xydata().tolist() for line in loss.lines} == {
        "training": [[1, 2], [2, 1]], "validation": [[2, 1.5], [3, 1.2]],
    }  # fmt: skip
    draw_curves(folder, METRICS["top1"], 10)
    of_nine, of_ten = ([line.get_label() for line in axes.lines] for axes in (accuracy, figures[-1].axes[1]))
    assert of_nine == ["training", "validation", "best: 30.00%, epoch 2"] and "validation top-5" in of_ten
    ticks = loss.xaxis.get_major_locator().tick_values(1, 2)
    assert all(tick == round(tick) for tick in ticks)
