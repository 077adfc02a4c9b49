"""The evaluation files and the page of a run while it trains, when it is stopped, and at its end."""

import json

import pytest
from conftest import rows, train

from engine.evaluation.files import NOT_DRAWN
from engine.run.timing import time_share
from engine.training import run_report


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


@pytest.mark.slow
def test_a_run_with_time_writes_them_while_it_trains(digits_argv, cpu, monkeypatch):
    """Each best epoch is written with its own model, and the end does not evaluate it again."""
    written = []
    original = run_report.RunReport._write_evaluation

    def write(self):
        if self._best:
            written.append((self._best.epoch, self._best.model is not None))
        original(self)

    monkeypatch.setattr(run_report.RunReport, "_write_evaluation", write)
    monkeypatch.setattr(time_share.TimeShare, "update", lambda self, now=False: self.work())
    folder = train(digits_argv, cpu)
    assert written[-1] == (best_epoch(folder), True) and len(written) == len(set(written))


def test_a_report_that_cannot_be_written_does_not_end_the_run(digits_argv, cpu, monkeypatch, capsys):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.evaluation.files.atomic_write", fail)
    folder = train(digits_argv, cpu)
    assert "No space left" in capsys.readouterr().out
    assert json.loads((folder / "result.json").read_text())["finished"]
