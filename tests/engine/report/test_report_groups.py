"""Runs that differ only in seed or fold: means, deviations, and one confusion matrix of all folds."""

import csv

import numpy as np
import pytest
from run_folders import Reader, add_evaluation, make_run, update_json, write_facts

from engine.run.facts import TrainingData
from scripts.report import main
from utils.tables import read_rows

NAMES = ("cat", "=dog", "fox")


def make_folds(root, rate, scores):
    """Runs of 2 seeds and 3 folds; each fold has 12 validation images of its own, 9 of which are right."""
    for index, score in enumerate(scores):
        seed, fold = divmod(index, 3)
        keys = ["DATA.FOLDS=3", f"DATA.FOLD={fold}", f"SEED={seed}", f"TRAIN.BASE_LR={rate}"]
        folder = make_run(root / f"{rate}-{seed}-{fold}", 2, keys)
        update_json(folder / "run.json", result={"top1": score, "test": {"top1": score / 2}})
        write_facts(folder, [TrainingData(24, 12, 0, 3, 3, f"fold {fold}")])
        add_evaluation(folder, NAMES)


@pytest.fixture
def sweep(tmp_path):
    scores = {0.01: [50, 61, 72, 53, 64, 75.5], 0.02: [40, 40, 40, 40, 40, 43]}
    for rate, values in scores.items():
        make_folds(tmp_path, rate, values)
    return tmp_path, scores


def test_groups_have_figures_and_a_matrix_that_counts_each_image_once_per_seed(sweep, capsys):
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
    with open(root / "confusion-2.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["true \\ predicted", "cat", "'=dog", "fox"] and [row[0] for row in rows] == header[1:]
    counts = np.array([row[1:] for row in rows], int)
    assert counts.sum() == 2 * 36 and np.array_equal(counts, 6 * np.array([[3, 1, 0], [0, 3, 1], [1, 0, 3]]))
    assert "Row 2: all images" in page.text


@pytest.mark.parametrize("fault", ["unfinished", "twice", "classes", "damaged", "more images"])
def test_there_is_no_matrix_of_a_part_of_the_images(sweep, capsys, fault):
    root, _ = sweep
    (root / "confusion-1.csv").touch()  # of an earlier comparison
    folder = root / "0.01-1-2"
    matrix = folder / "evaluation/confusion.csv"
    if fault == "unfinished":
        update_json(folder / "run.json", state="failed", message="full disk")
    if fault == "twice":
        (folder / "config.yaml").write_text((folder / "config.yaml").read_text().replace("FOLD: 2", "FOLD: 1"))
    if fault == "classes":
        matrix.write_text(matrix.read_text().replace("fox", "emu"))
    if fault == "damaged":
        matrix.write_text("a,b\n\0")
    if fault == "more images":
        write_facts(folder, [TrainingData(25, 12, 0, 3, 3, "")])
    assert main([str(root)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("No confusion matrix of all folds: ") == 1 and not (root / "confusion-1.csv").exists()
    assert (root / "confusion-2.csv").exists()
    assert ("0.01-1-2 is left out: failed: full disk" in printed) == (fault == "unfinished")
    assert read_rows(root / "groups.csv")[0]["runs"] == ("5" if fault == "unfinished" else "6")


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
