"""The tables of a run: columns, resuming, damaged cells; the best epoch in them."""

import re

import pytest
from conftest import read_result, train

from engine.checkpoint.reader import load_checkpoint
from engine.run.facts import FACTS, Model, read_facts
from engine.run.result import best_epoch
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
    folder = train([*digits_argv, "MODEL.FREEZE_BACKBONE=true", "TRAIN.MAX_STEPS=23"], cpu)
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
