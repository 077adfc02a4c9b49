"""The files of a prediction."""

import csv
import json
import os

import numpy as np
from test_evaluation_files import Noise

from engine.evaluation.predictions import Predictions
from engine.evaluation.results import SampleResults

HOSTILE = ["=cmd()", "<script>alert(1)</script>", "a\nb", "x" * 300, "\x1b[31m", "b\udcff", '"q", 1', "日本", "-1"]


def make(names=("./a.jpg", "b.jpg", "c.jpg"), classes=("cat", "dog", "emu"), top_k=2, labelled=True) -> Predictions:
    """Image 1 cannot be read; the target of image i is i."""
    count = len(names)
    labels = np.tile(np.arange(len(classes), dtype=np.int32), (count, 1))
    probabilities = np.tile(np.linspace(0.7, 0.1, len(classes), dtype=np.float32), (count, 1))
    targets = np.arange(count)
    targets[1] = -1
    results = SampleResults(targets, labels, probabilities, np.zeros(count, np.float32), {1: "is empty (0 bytes)"})
    samples = Noise(list(names))
    samples.targets = np.arange(count)
    return Predictions(samples, results, list(classes), top_k, labelled)


def test_the_table_of_a_prediction(tmp_path):
    assert make().write_csv(tmp_path) == tmp_path / "predictions.csv"
    assert (tmp_path / "predictions.csv").read_bytes() == (
        b"path,class_1,probability_1,class_2,probability_2,target,error\n"
        b"a.jpg,cat,0.700000,dog,0.400000,cat,\n"
        b"b.jpg,,,,,dog,is empty (0 bytes)\n"
        b"c.jpg,cat,0.700000,dog,0.400000,emu,\n"
    )
    make(labelled=False, top_k=1).write_csv(tmp_path)
    assert (tmp_path / "predictions.csv").read_text().splitlines()[:2] == [
        *("path,class_1,probability_1,error", "a.jpg,cat,0.700000,"),
    ]
    assert make(top_k=99).write_csv(tmp_path).read_text().startswith("path,class_1,probability_1,class_2,")
    assert "class_3" in (tmp_path / "predictions.csv").read_text() and "class_4" not in make().table(3)


def test_json_has_the_same_values(tmp_path):
    content = json.loads(make().write_json(tmp_path).read_text())
    assert content == [
        {
            "path": path,
            "predictions": [] if error else [
                {"class": "cat", "probability": 0.7},
                {"class": "dog", "probability": 0.4},
            ],
            "target": target,
            "error": error,
        }
        for path, target, error in (
            ("a.jpg", "cat", None), ("b.jpg", "dog", "is empty (0 bytes)"), ("c.jpg", "emu", None)
        )
    ]  # fmt: skip


def test_hostile_names_stay_text(tmp_path):
    made = make(HOSTILE, HOSTILE)
    with open(made.write_csv(tmp_path), newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + len(HOSTILE)
    cells = [cell for row in rows[1:] for cell in (row[0], row[1], row[5])]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    assert not any(not character.isprintable() for cell in cells for character in cell)
    assert rows[1][0] == "'=cmd()" and rows[3][0] == r"a\nb" and rows[4][0] == "x" * 300 and rows[7][0] == '"q", 1'
    with open(made.write_json(tmp_path), encoding="utf-8") as file:
        paths = [image["path"] for image in json.load(file)]
    assert paths == HOSTILE
    assert os.fsencode(paths[5]) == b"b\xff"


def test_the_table_on_the_terminal_is_aligned_short_and_escaped():
    *lines, more = make(HOSTILE, HOSTILE, labelled=False).table(rows=5).split("\n")
    assert len(lines) == 6 and more == f"... and {len(HOSTILE) - 5} more"
    assert lines[0].split() == ["path", "class_1", "probability_1", "class_2", "probability_2", "error"]
    column = lines[1].index("0.7000")
    assert all(line[column : column + 6] == "0.7000" for line in (lines[1], *lines[3:]))
    assert all(line.isprintable() and len(line) < 200 for line in lines)
    assert lines[2].endswith("is empty (0 bytes)")
