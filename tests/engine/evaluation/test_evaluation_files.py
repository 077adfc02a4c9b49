"""The files of an evaluation and of a prediction: their figures, hostile names, many classes, an interrupted write."""

import csv
import json
import os
import tracemalloc
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch
from conftest import CPU, cells_of, each_value, seeded
from numpy.random import default_rng
from PIL import Image
from pytest import approx, fixture
from test_pictures import evaluator_for
from torch import nn

from configs.flags import Prediction
from configs.schema import Config
from configs.schema.operating_point import OperatingPoint
from datasets.batch import PADDING
from datasets.decoding.decode import LazyImage
from datasets.sources.samples import Samples
from engine.evaluation.files import EvaluationFiles
from engine.evaluation.predictions import Predictions, decision_names
from engine.evaluation.results import SampleResults
from utils.tables import read_csv_rows, safe_cell

PHOTOS = Prediction("photos", 2, None, False, False, None)
HOSTILE = ["=cmd|' /C calc'!A0", "<script>alert(1)</script>", "two\nlines", "\x1b[31mred", "x" * 300, "-1"]


class Noise(Samples):
    """Images of noise with the given names."""

    def __init__(self, names: list[str], class_names: Sequence[str] = ("a",)):
        super().__init__([*class_names])
        self.names = names
        self.arrays = {"targets": np.zeros(len(names), np.int64)}

    def name(self, index: int) -> str:
        return self.names[index]

    def open(self, index: int, channels: int) -> LazyImage:
        generator = seeded(index)
        return LazyImage(torch.randint(0, 256, (channels, 20, 20), generator=generator, dtype=torch.uint8))


def results_for(targets: np.ndarray, predicted: np.ndarray) -> SampleResults:
    rng = default_rng(0)
    probabilities = rng.uniform(0.5, 1, (len(targets), 1)).astype(np.float32)
    losses = np.where(targets == predicted, -np.log(probabilities[:, 0]), 3).astype(np.float32)
    return SampleResults(targets, predicted.astype(np.int32)[:, None], probabilities, losses)


def files_for(folder: Path, class_names: list[str], sample_names: list[str], context) -> EvaluationFiles:
    config = Config.model_validate({"DATA": {"IMAGE_SIZE": 16}, "MODEL": {"NUM_CLASSES": len(class_names)}})
    return EvaluationFiles(folder, Noise(sample_names, class_names), config, evaluator_for(context))


def read_table(path: Path) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@fixture
def written(tmp_path, cpu) -> Path:
    """The files of an evaluation with six hostile class names and as many file names."""
    targets = np.array([0, 0, 1, 2, 3, 4, 5, 5])
    predicted = np.array([0, 1, 1, 1, 3, 4, 5, 0])
    results = results_for(targets, predicted)
    names = [*HOSTILE, "a/b.png", "\udcff.png"]
    files = files_for(tmp_path / "evaluation", HOSTILE, names, cpu)
    files.write(results.metrics(), results, nn.Flatten(), epoch=3)
    return tmp_path / "evaluation"


def test_the_tables_have_the_figures(written):
    header, *classes = read_table(written / "per_class.csv")
    figures = ["precision", "recall", "f1", "specificity", "auroc"]
    limits = [f"{name}_{end}" for name in ("precision", "recall", "f1") for end in ("low", "high")]
    assert header == ["label", "class", "count", "predicted", *figures, *limits]
    found = cells_of("2 | 2 | 50.0000 | 50.0000\n1 | 3 | 33.3333 | 100.0000\n1 | 0 |  | 0.0000")
    assert [row[2:6] for row in classes[:3]] == found
    _, *matrix = read_table(written / "confusion.csv")
    assert [row[1:] for row in matrix][:3] == [list("110000"), list("010000"), list("010000")]
    _, *pairs = read_table(written / "confused_pairs.csv")
    assert [row[2:] for row in pairs] == cells_of("1 | 50.0000\n1 | 100.0000\n1 | 50.0000")
    summary = json.loads((written / "summary.json").read_text())
    assert summary["epoch"] == 3
    assert summary["samples"] == 8
    assert summary["top1"] == 62.5
    assert summary["recall"] == approx(100 * (0.5 + 1 + 0 + 1 + 1 + 0.5) / 6)


def test_images_without_their_groups_have_no_interval(tmp_path, cpu):
    """Images of one patient depend on each other; without groups in the data they are drawn one by one."""
    targets = np.arange(42) % 3
    results = results_for(targets, np.where(np.arange(42) < 30, targets, 0))
    files = files_for(tmp_path, list("abc"), ["image"] * 42, cpu)
    assert files.write(results.metrics(), results, None)["interval"] is not None
    files.config = files.config.with_data(groups="patient")
    summary = files.write(results.metrics(), results, None)
    assert summary["interval"] is None
    assert "groups" in summary["interval_missing"]


def assert_text(cells: list[str]):
    """No cell but the number is a formula or has a control character."""
    assert all(cell.isprintable() and cell[:1] not in ("=", "+", "-", "@") for cell in cells if cell != "-1")


def test_hostile_names_stay_text(written):
    cells = [cell for path in written.glob("*.csv") for row in read_table(path) for cell in row]
    assert any("<script>" in cell for cell in cells)  # it is text in a CSV file
    assert_text(cells)
    paths = {row["path"] for row in read_csv_rows(written / "per_image.csv")}
    assert {r"two\nlines", r"\udcff.png", f"'{HOSTILE[0]}"} <= paths


def test_long_names_of_images_take_little_of_the_file_of_scores(tmp_path, cpu):
    names = [f"a/folder/of/images/with/a/long/name/{number:08d}.jpg" for number in range(2000)]
    labels = np.arange(2000) % 2
    results = replace(results_for(labels, labels), scores=default_rng(0).random((2000, 2), np.float32))
    files_for(tmp_path, ["a", "b"], names, cpu).write(results.metrics(), results, nn.Flatten())
    assert (tmp_path / "scores.npz").stat().st_size < 3 * (results.scores.nbytes + labels.nbytes)
    with np.load(tmp_path / "scores.npz") as saved:
        assert (saved["paths"].dtype.kind, saved["paths"].tolist()) == ("U", names)


def test_each_image_has_a_row_and_logits_on_request(tmp_path, cpu):
    """The second image could not be read. Names stay as they are in the file of the logits."""
    results = results_for(np.array([0, PADDING, 5]), np.array([1, 0, 5]))
    names = [HOSTILE[0], "b.png", "\udcff.png"]
    files = files_for(tmp_path, HOSTILE, names, cpu)
    logits = np.arange(18, dtype=np.float16).reshape(3, 6)
    files.write(results.metrics(), replace(results, logits=logits), nn.Flatten())
    first, second, last = (safe_cell(HOSTILE[label]) for label in (0, 1, 5))
    assert read_table(tmp_path / "per_image.csv")[1:] == [
        ["0", f"'{HOSTILE[0]}", "0", "0", "1", first, second],
        ["1", "b.png", "0", "-1", "0", "", ""],
        ["2", r"\udcff.png", "0", "5", "5", last, last],
    ]
    with np.load(tmp_path / "logits.npz") as saved:
        assert (saved["logits"].dtype, saved["labels"].dtype) == (np.float16, np.int64)
        assert saved["logits"].tolist() == logits[[0, 2]].tolist()
        assert saved["labels"].tolist() == [0, 5]
        assert saved["paths"].tolist() == [names[0], names[2]]
        assert saved["classes"].tolist() == HOSTILE
    files.write(results.metrics(), results, nn.Flatten())
    assert not (tmp_path / "logits.npz").exists()  # they were of other weights


def test_pictures_are_those_of_the_page(written, tmp_path, cpu):
    indices = {int(row["index"]) for row in read_csv_rows(written / "mistakes.csv")}
    assert {int(path.stem) for path in (written / "pictures").iterdir()} == indices
    assert Image.open(written / f"pictures/{min(indices)}.jpg").size == (160, 160)
    summary = json.loads((written / "summary.json").read_text())
    assert "attention maps need a ViT" in summary["attention"]
    results = results_for(np.array([0, 1]), np.array([0, 1]))
    (written / "pictures/0-attention.jpg").touch()  # of other weights
    files_for(written, HOSTILE, ["one", "two"], cpu).write(results.metrics(), results, nn.Flatten())
    assert not [*(written / "pictures").iterdir()]  # all are right


@fixture
def make(tmp_path):
    return partial(write, tmp_path)


def write(
    folder,
    names=("./a.jpg", "b.jpg", "c.jpg"),
    classes=("cat", "dog", "emu"),
    thresholds=None,
    ranked=None,
    review=None,
    **changes,
) -> Predictions:
    """Writes predictions. Image 1 cannot be read; the target of image i is i.

    ranked: labels in order, by default ascending. changes: of the options.
    """
    options = replace(Prediction(None, 2, None, True, False, None), **changes)
    count = len(names)
    labels = np.tile(np.array(range(len(classes)) if ranked is None else ranked, dtype=np.int32), (count, 1))
    probabilities = np.tile(np.linspace(0.7, 0.1, len(classes), dtype=np.float32), (count, 1))
    targets = np.arange(count)
    losses = np.zeros(count)
    scores = np.zeros((count, len(classes)), np.float32)
    np.put_along_axis(scores, labels, np.log(probabilities / (1 - probabilities)), 1)
    targets[1] = -1

    def results():
        for start in range(0, count, 2):
            values = (column[start : start + 2] for column in (targets, labels, probabilities, losses))
            errors = {1: "is empty (0 bytes)"} if start == 0 else {}
            yield SampleResults(*values, errors, scores[start : start + 2])

    samples = Noise(list(names))
    samples.arrays = {"targets": np.arange(count)}
    made = Predictions(folder, samples, list(classes), options, thresholds, None, review)
    is_there = {"csv": True, "json": options.json, "xlsx": options.excel}
    assert made.write(results(), CPU) == [folder / f"predictions.{end}" for end in is_there if is_there[end]]
    return made


def test_a_workbook_has_probabilities_as_numbers_and_all_other_cells_as_text(make, tmp_path):
    make(excel=True, names=("007", "=1+1", "<é&>.jpg"))
    with zipfile.ZipFile(tmp_path / "predictions.xlsx") as book:
        parts = {name: ElementTree.fromstring(book.read(name)) for name in book.namelist()}
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    rows = [list(row) for row in parts["xl/worksheets/sheet1.xml"].iter(f"{space}row")]
    texts = [["".join(cell.itertext()) for cell in row] for row in rows]
    assert [row[:3] for row in texts] == cells_of("""
path | class_1 | probability_1
007 | cat | 0.7
=1+1 | |
<é&>.jpg | cat | 0.7
""")
    kinds = [cell.get("t") for cell in rows[1][:5]]
    assert kinds == ["inlineStr", "inlineStr", None, "inlineStr", None]


def test_two_classes_without_scores_have_a_table(tmp_path, cpu):
    results = results_for(np.array([0, 1, 1]), np.array([0, 1, 0]))
    files_for(tmp_path, ["cat", "dog"], ["a", "b", "c"], cpu).write(results.metrics(), results, None)
    rows = read_csv_rows(tmp_path / "per_class.csv")
    assert [(row["recall"], row["auroc"]) for row in rows] == [("100.0000", ""), ("50.0000", "")]


def read_json(folder) -> list:
    return json.loads((folder / "predictions.json").read_text())


def test_the_table_has_errors_of_later_images(make, monkeypatch):
    """Who labels a folder sees on the screen that some images cannot be read, wherever they are in it."""
    monkeypatch.setattr("engine.evaluation.predictions._SHOWN_ROWS", 1)
    _, first, error, more = make().table().splitlines()
    assert first.startswith("a.jpg")
    assert "b.jpg" in error
    assert "is empty (0 bytes)" in error
    assert more == "... and 1 more"


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
    make(path="photos", top_k=1)
    header, first, *_ = (tmp_path / "predictions.csv").read_text().splitlines()
    assert (header, first) == ("path,class_1,probability_1,error", "a.jpg,cat,0.700000,")
    assert "class_3" in make(top_k=99).table()
    assert (tmp_path / "predictions.csv").read_text().startswith("path,class_1,probability_1,class_2,")


def test_the_rows_of_many_classes_take_little_memory_and_are_those_of_csv(make, tmp_path):
    """Without an object for each cell, also of the rows that the screen shows."""
    number = 20_000
    names = [f"{index}, a.jpg" for index in range(30)]
    ranked = default_rng(0).permutation(number)
    tracemalloc.start()
    make(names=names, classes=[str(label) for label in range(number)], top_k=None, ranked=ranked, json=False)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    inputs_bytes = 30 * number * (4 + 4 + 4 + 8 + 8)
    assert peak_bytes - inputs_bytes < 400 * number, (peak_bytes - inputs_bytes) / number
    values = np.linspace(0.7, 0.1, number, dtype=np.float32)[np.argsort(ranked)]
    with open(tmp_path / "predictions.csv", newline="") as file:
        _, first, unreadable, *_ = csv.reader(file)
    assert first == ["0, a.jpg", *(f"{value:.6f}" for value in values.tolist()), "0"]
    assert unreadable == ["1, a.jpg", *[""] * number, "1"]


BELOW = """
threshold | multi_label | names
0.7 | false | [cat]  # float32(0.7) is lower: the probability of the file counts
0.700001 | false | [unknown]
0.0 | false | [cat]
0.05 | true | [cat, dog, emu]  # also the classes beyond -top_k
0.2 | true | [cat, dog]
0.9 | true | [unknown]
"""


@each_value(BELOW)
def test_the_label_is_unknown_below_the_threshold(make, tmp_path, threshold, multi_label, names):
    assert not make(threshold=threshold, thresholds=np.array([0.85, -1.4, 2.2]) if multi_label else None).lines
    rows = read_csv_rows(tmp_path / "predictions.csv")
    images = read_json(tmp_path)
    if multi_label:  # of the logits 0.847, -0.405 and -2.197
        assert [row["predicted"] for row in rows] == ["dog", "", "dog"]
    labels = [" | ".join(names), "", " | ".join(names)]  # of image 1, which cannot be read, none
    assert [row["label"] for row in rows] == [image["label"] for image in images] == labels
    assert [row["target"] for row in rows] == ["cat", "dog", "emu"]
    assert list(rows[0])[-3:-1] == ["label", "target"]
    assert [len(image["predictions"]) for image in images] == [2, 0, 2]


# The probabilities are 0.7, 0.4 and 0.1
REVIEWS = """
low | high | multi_label | needs_review
0.3 | 0.5 | false | 'no'
0.3 | 0.5 | true | 'yes'
0.6 | 0.8 | false | 'yes'
0.75 | 0.8 | true | 'no'
"""


@each_value(REVIEWS)
def test_an_image_needs_a_review_if_its_best_class_or_one_of_several_labels_is_between(
    make, tmp_path, low, high, multi_label, needs_review
):
    make(review=(low, high), thresholds=np.zeros(3) if multi_label else None)
    found = [row["needs_review"] for row in read_csv_rows(tmp_path / "predictions.csv")]
    assert found == [needs_review, "", needs_review]


def test_no_column_has_the_name_of_a_class(make, tmp_path):
    make(threshold=0.5, top_k=None, classes=("Path", "label", "emu"), json=False)
    first, *_ = read_csv_rows(tmp_path / "predictions.csv")
    assert [*first] == ["path (no class)", "Path", "label", "emu", "label (no class)", "target"]
    assert (first["Path"], first["label"], first["label (no class)"]) == ("0.700000", "0.400000", "Path")


def test_the_word_of_a_decision_is_the_name_of_no_class(make, tmp_path):
    """A line names the one of -threshold, so that the label `unknown` means the class alone."""
    (line,) = make(threshold=0.9, classes=("cat", "Unknown", "unknown (no class)")).lines
    labels = {row["label"] for row in read_csv_rows(tmp_path / "predictions.csv")} - {""}
    assert labels == {"unknown (no class) (no class)"}
    assert "'unknown (no class) (no class)'" in line
    point = OperatingPoint(name="ill", label=0, specificity=0.9, threshold=0.0, group_threshold=1.0)
    names = [decision_names(point, ["well", "ill"], is_multi_label)[0] for is_multi_label in (False, True)]
    assert names == ["ill", "not ill"]  # the label of the point is 0
    made = Predictions(tmp_path, Noise(["a.jpg"]), ["ill", "not ill", "unclear"], PHOTOS, None, point)
    assert "ill of each image from p 0.5 on, for 90% specificity" in made.lines[0]  # there are no groups
    scores = np.full((1, 3), -1, np.float32)
    made.write(
        [SampleResults(np.zeros(1, int), np.zeros((1, 1), int), np.ones((1, 1)), np.zeros(1), scores=scores)], CPU
    )
    assert read_csv_rows(tmp_path / "predictions.csv")[0]["decision"] == "not ill (no class)"


def test_hostile_names_stay_text_in_predictions(make, tmp_path):
    names = [*HOSTILE, '"q", 1', "日本", "b\udcff"]
    make(names, names)
    rows = read_csv_rows(tmp_path / "predictions.csv")
    assert_text([row[column] for row in rows for column in ("path", "class_1", "target")])
    assert [row["path"] for row in rows] == [safe_cell(name) for name in names]
    paths = [image["path"] for image in read_json(tmp_path)]
    assert paths == names
    assert os.fsencode(paths[-1]) == b"b\xff"


def test_a_table_with_a_column_for_each_class(make, tmp_path):
    make(top_k=None, threshold=0.5, ranked=(2, 0, 1))
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        "path,cat,dog,emu,label,target",
        "a.jpg,0.400000,0.100000,0.700000,emu,cat",
        "b.jpg,,,,,dog",
        "c.jpg,0.400000,0.100000,0.700000,emu,emu",
    ]
    make(top_k=None, classes=("crane", "dog", "crane"), ranked=(2, 0, 1))  # cells go by label
    assert (tmp_path / "predictions.csv").read_text().splitlines()[1] == "a.jpg,0.400000,0.100000,0.700000,crane"
