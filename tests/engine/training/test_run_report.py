"""The evaluation files and the page of a run while it trains, when it is stopped, and at its end."""

import json

import pytest
from conftest import rows, train

from engine.evaluation.files import NOT_DRAWN


def summary_of(folder) -> dict:
    return json.loads((folder / "evaluation/summary.json").read_text())


def best_epoch(folder) -> int:
    evaluated = [row for row in rows(folder) if row["val_top1"]]
    return int(max(evaluated, key=lambda row: (float(row["val_top1"]), -float(row["val_loss"])))["epoch"])


@pytest.mark.slow
def test_a_stopped_run_has_tables_and_a_finished_one_the_files_of_its_best_epoch(digits_argv, cpu):
    """There is no time for them while it runs, so that `best.pth` is evaluated at the end: with the same figures."""
    folder = train([*digits_argv, "TRAIN.MAX_STEPS=22"], cpu, pictures=True)
    assert summary_of(folder)["epoch"] == 1 and summary_of(folder)["attention"] == NOT_DRAWN
    assert "stopped" in (folder / "report.html").read_text()
    train([f"-resume={folder}", *digits_argv], cpu, pictures=True)
    summary = summary_of(folder)
    (row,) = [row for row in rows(folder) if int(row["epoch"]) == best_epoch(folder)]
    assert summary["epoch"] == int(row["epoch"]) and summary["attention"] is None
    assert summary["top1"] == float(row["val_top1"]) and summary["loss"] == float(row["val_loss"])
    assert list((folder / "evaluation/pictures").glob("*-attention.jpg"))
    page = (folder / "report.html").read_text()
    assert "finished" in page and f"{summary['top1']:.2f}%" in page


def test_a_report_that_cannot_be_written_does_not_end_the_run(digits_argv, cpu, monkeypatch, capsys):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.evaluation.files.atomic_write", fail)
    folder = train(digits_argv, cpu)
    assert "No space left" in capsys.readouterr().out
    assert json.loads((folder / "result.json").read_text())["finished"]
