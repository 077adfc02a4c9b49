"""Runs that differ only in seed or fold: means and deviations."""

import numpy as np
import pytest
from run_folders import Reader, make_run, update_json, write_facts

from engine.run.facts import TrainingData
from scripts.report import main
from utils.tables import read_rows


def make_folds(root, rate, scores):
    """Runs of 2 seeds and 3 folds; each fold has 12 validation images of its own."""
    for index, score in enumerate(scores):
        seed, fold = divmod(index, 3)
        keys = ["DATA.FOLDS=3", f"DATA.FOLD={fold}", f"SEED={seed}", f"TRAIN.BASE_LR={rate}"]
        folder = make_run(root / f"{rate}-{seed}-{fold}", 2, keys)
        update_json(folder / "run.json", result={"top1": score, "test": {"top1": score / 2}})
        write_facts(folder, [TrainingData(24, 12, 0, 3, 3, f"fold {fold}")])


@pytest.fixture
def sweep(tmp_path):
    scores = {0.01: [50, 61, 72, 53, 64, 75.5], 0.02: [40, 40, 40, 40, 40, 43]}
    for rate, values in scores.items():
        make_folds(tmp_path, rate, values)
    return tmp_path, scores


def test_groups_have_means_and_deviations(sweep, capsys):
    root, scores = sweep
    assert main([str(root)]) == 0
    rows = read_rows(root / "groups.csv")
    assert [row["TRAIN.BASE_LR"] for row in rows] == ["0.01", "0.02"]  # the best run first
    for row, values in zip(rows, scores.values(), strict=True):
        assert (row["runs"], row["metric"]) == ("6", "top1")
        expected = np.mean(values), np.std(values, ddof=1), np.mean(values) / 2, np.std(values, ddof=1) / 2
        found = [float(row[name]) for name in ("mean", "std", "test_mean", "test_std")]
        assert np.allclose(found, expected, rtol=1e-12)
        assert (row["macro_f1_mean"], row["macro_f1_std"]) == ("", "")
    printed, page = capsys.readouterr().out, Reader((root / "compare.html").read_text())
    assert "0.01           top1    6     62.5833  " in printed and "0.01 top1 6 62.5833 " in page.text
    assert "images differ" not in printed  # each fold has images of its own


def test_runs_are_grouped_by_the_options_that_were_given(tmp_path, capsys):
    """Rules derive other epochs for each fold: one mean, and a line; of epochs that were given: no mean, and why."""
    for fold, (epochs, score) in enumerate([(9, 84.0), (6, 55.0), (10, 86.0)]):
        keys = ["DATA.FOLDS=3", f"DATA.FOLD={fold}", f"TRAIN.NUM_EPOCHS={epochs}", "TRAIN.MINUTES=2"]
        given = {"TRAIN.NUM_EPOCHS": 40, "DATA.FOLD": fold, "DATA.FOLDS": 3, "TRAIN.MINUTES": 2}
        folder = make_run(tmp_path / f"fold-{fold}", 2, keys, given=given)
        update_json(folder / "run.json", result={"top1": score})
    assert main([str(tmp_path)]) == 0
    (row,) = read_rows(tmp_path / "groups.csv")
    assert (row["runs"], float(row["mean"])) == ("3", 75)
    printed = capsys.readouterr()
    assert "TRAIN.NUM_EPOCHS 10, 9, 6" in printed.out and not printed.err
    for fold in range(3):
        given |= {"TRAIN.NUM_EPOCHS": (9, 6, 10)[fold], "DATA.FOLD": fold}
        update_json(tmp_path / f"fold-{fold}/run.json", given=given)
    assert main([str(tmp_path)]) == 0
    assert "DATA.FOLD: no two runs have the same TRAIN.NUM_EPOCHS" in capsys.readouterr().err
