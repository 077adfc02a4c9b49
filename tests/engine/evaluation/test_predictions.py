"""The files of a prediction."""

import csv
import json
import os
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from test_evaluation_files import Noise

from configs.flags import Prediction
from engine.evaluation.predictions import Predictions
from engine.evaluation.results import SampleResults
from utils.tables import read_rows

HOSTILE = ["=cmd()", "<script>a()</script>", "a\nb", "x" * 300, "\x1b[31m", "b\udcff", '"q", 1', "日本", "-1", "@x"]


@pytest.fixture
def make(tmp_path):
    return partial(write, tmp_path)


def write(folder, *names, **options) -> Predictions:
    """Writes the files in `folder`, see `prepare`."""
    made, results = prepare(folder, *names, **options)
    files = [folder / "predictions.csv", *[folder / "predictions.json"] * options.get("json", True)]
    assert made.write(results) == files
    return made


def prepare(
    folder,
    names=("./a.jpg", "b.jpg", "c.jpg"),
    classes=("cat", "dog", "emu"),
    top_k=2,
    labelled=True,
    chunk=2,
    threshold=None,
    thresholds=None,
    ranked=None,
    excel=False,
    json=True,
) -> tuple[Predictions, Iterator[SampleResults]]:
    """The predictions, and their results. Image 1 cannot be read; the target of image i is i.

    ranked: labels in order, by default ascending.
    """
    count = len(names)
    labels = np.tile(np.array(ranked or range(len(classes)), dtype=np.int32), (count, 1))
    probabilities = np.tile(np.linspace(0.7, 0.1, len(classes), dtype=np.float32), (count, 1))
    targets, losses = np.arange(count), np.zeros(count)
    targets[1] = -1

    def results():
        for start in range(0, count, chunk):
            values = (column[start : start + chunk] for column in (targets, labels, probabilities, losses))
            yield SampleResults(*values, {1: "is empty (0 bytes)"} if start == 0 else {})

    samples = Noise(list(names))
    samples.targets = np.arange(count)
    options = Prediction(None if labelled else "photos", top_k, None, json, excel, threshold)
    return Predictions(folder, samples, list(classes), options, thresholds), results()


def read_json(folder) -> list:
    return json.loads((folder / "predictions.json").read_text())


def test_the_table_of_a_prediction(make, tmp_path):
    assert "class_3" not in make().table()
    assert (tmp_path / "predictions.csv").read_bytes() == (
        b"path,class_1,probability_1,class_2,probability_2,target,error\n"
        b"a.jpg,cat,0.700000,dog,0.400000,cat,\n"
        b"b.jpg,,,,,dog,is empty (0 bytes)\n"
        b"c.jpg,cat,0.700000,dog,0.400000,emu,\n"
    )
    plain = (tmp_path / "predictions.csv").read_bytes()
    make(excel=True)
    assert (tmp_path / "predictions.csv").read_bytes() == b"\xef\xbb\xbf" + plain  # for spreadsheets
    make(labelled=False, top_k=1)
    assert (tmp_path / "predictions.csv").read_text().splitlines()[:2] == [
        *("path,class_1,probability_1,error", "a.jpg,cat,0.700000,")
    ]
    assert "class_3" in make(top_k=99).table()
    assert (tmp_path / "predictions.csv").read_text().startswith("path,class_1,probability_1,class_2,")


@pytest.mark.parametrize(
    ("threshold", "multi_label", "label"),
    [
        (0.7, False, "cat"),  # float32(0.7) is lower: the probability of the file counts
        (0.700001, False, "unknown"),
        (0.0, False, "cat"),
        (0.05, True, "cat | dog | emu"),  # also the classes beyond -top_k
        (0.2, True, "cat | dog"),
        (0.9, True, "unknown"),
    ],
)
def test_the_label_is_unknown_below_the_threshold(make, tmp_path, threshold, multi_label, label):
    make(threshold=threshold, thresholds=np.array([0.7, 0.2, 0.9]) if multi_label else None)
    rows, images = read_rows(tmp_path / "predictions.csv"), read_json(tmp_path)
    if multi_label:  # of the probabilities 0.7, 0.4 and 0.1
        assert [row["predicted"] for row in rows] == ["dog", "", "dog"]
    labels = [label, "", label]  # of image 1, which cannot be read, none
    assert [row["label"] for row in rows] == [image["label"] for image in images] == labels
    assert [row["target"] for row in rows] == ["cat", "dog", "emu"] and list(rows[0])[-3:-1] == ["label", "target"]
    assert [len(image["predictions"]) for image in images] == [2, 0, 2]


def test_hostile_names_stay_text(make, tmp_path):
    make(HOSTILE, HOSTILE)
    with open(tmp_path / "predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + len(HOSTILE)
    cells = [cell for row in rows[1:] for cell in (row[0], row[1], row[5])]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    assert not any(not character.isprintable() for cell in cells for character in cell)
    assert rows[1][0] == "'=cmd()" and rows[3][0] == r"a\nb" and rows[4][0] == "x" * 300 and rows[7][0] == '"q", 1'
    paths = [image["path"] for image in read_json(tmp_path)]
    assert paths == HOSTILE
    assert os.fsencode(paths[5]) == b"b\xff"


def test_a_table_with_a_column_for_each_class(make, tmp_path):
    make(top_k=None, threshold=0.5, ranked=(2, 0, 1))
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        "path,cat,dog,emu,label,target",
        "a.jpg,0.400000,0.100000,0.700000,emu,cat",
        "b.jpg,,,,,dog",
        "c.jpg,0.400000,0.100000,0.700000,emu,emu",
    ]
