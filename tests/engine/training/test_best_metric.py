"""EVAL.BEST_METRIC decides which epoch is kept, when a run ends early, and what its log, result and page name."""

from dataclasses import replace

from conftest import only_run, read_result, rows, states, train

from configs.reading.command_line import parse_command_line
from engine.checkpoint.reader import load_checkpoint
from engine.commands.run import run
from engine.report.contents import read_contents
from utils.metric_table import METRICS

VALUES = [float("nan"), 50.0, 70.0, 70.0, 60.0]  # of the epochs: no value, best, best, a tie, worse
LOSSES = [0.1, 2.0, 3.0, 3.0, 0.1]


def test_the_metric_decides_and_the_first_of_equal_epochs_stays(digits_argv, cpu, monkeypatch, capsys, tmp_path):
    for name, values in (("min_recall", VALUES), ("loss", LOSSES)):
        left = iter(values)
        scripted = replace(METRICS[name], compute=lambda results, left=left, last=values[-1]: next(left, last))
        monkeypatch.setitem(METRICS, name, scripted)
    options = ["EVAL.BEST_METRIC=min_recall", "TRAIN.PATIENCE=2", "TRAIN.NUM_EPOCHS=9", "SAVE_FREQ=9"]
    folder = train([*digits_argv, *options], cpu)
    monkeypatch.undo()
    result, log = read_result(folder), capsys.readouterr().out
    assert states(folder)["epoch"] == 5 and result["stopped_early"]  # two epochs after the best one
    best = load_checkpoint(folder / "best.pth")
    assert (best["epoch"], best["best"]["min_recall"]) == (3, 70.0) == (result["epoch"], result["min_recall"])
    assert result["top1"] == float(rows(folder)[2]["val_top1"])  # of the same epoch
    assert "----- Best minimum recall: 70.00% (epoch 3), macro F1 " in log
    contents = read_contents(folder)
    assert contents.best == (3, 70.0) and contents.metric.name == "min_recall"
    run(parse_command_line(["-eval", f"-resume={folder}", f"-output={tmp_path / 'eval'}"]), cpu)
    value = read_result(only_run(tmp_path / "eval", "eval"))["min_recall"]
    assert f"----- Validation minimum recall: {value:.2f}%, macro F1 " in capsys.readouterr().out


def test_a_run_without_a_finite_value_has_no_best_epoch_and_finishes(digits_argv, cpu, monkeypatch):
    monkeypatch.setitem(METRICS, "loss", replace(METRICS["loss"], compute=lambda results: float("nan")))
    folder = train([*digits_argv, "EVAL.BEST_METRIC=loss", "TRAIN.NUM_EPOCHS=1"], cpu)
    assert read_result(folder)["finished"] and read_result(folder)["epoch"] is None
    assert not (folder / "best.pth").exists() and read_contents(folder).best is None
