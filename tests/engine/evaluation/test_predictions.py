"""The files of a prediction, and the results of one that is killed."""

import csv
import errno
import json
import os
import tracemalloc
from functools import partial

import numpy as np
import pytest
import torch
from conftest import GREY, TINY_VIT, samples_for
from test_evaluation_files import Noise

from configs.command_line import parse_command_line
from configs.flags import Prediction
from engine.evaluation import predictions as part_file
from engine.evaluation.predictions import PartFile, Predictions, digest_inputs
from engine.evaluation.results import SampleResults
from utils.tables import read_rows

HOSTILE = ["=cmd()", "<script>a()</script>", "a\nb", "x" * 300, "\x1b[31m", "b\udcff", '"q", 1', "日本", "-1", "@x"]


@pytest.fixture
def make(tmp_path):
    return partial(predictions, tmp_path / "part")


def predictions(
    path,
    names=("./a.jpg", "b.jpg", "c.jpg"),
    classes=("cat", "dog", "emu"),
    top_k=2,
    labelled=True,
    chunk=2,
    threshold=None,
    thresholds=None,
    ranked=None,
) -> Predictions:
    """Image 1 cannot be read; the target of image i is i. ranked: labels in order, by default ascending."""
    count = len(names)
    labels = np.tile(np.array(ranked or range(len(classes)), dtype=np.int32), (count, 1))
    probabilities = np.tile(np.linspace(0.7, 0.1, len(classes), dtype=np.float32), (count, 1))
    targets = np.arange(count)
    targets[1] = -1
    path.unlink(missing_ok=True)
    part = PartFile(path, "inputs")
    for start in range(0, count, chunk):
        values = (column[start : start + chunk] for column in (targets, labels, probabilities, np.zeros(count)))
        part.append(SampleResults(*values, {1: "is empty (0 bytes)"} if start == 0 else {}))
    samples = Noise(list(names))
    samples.targets = np.arange(count)
    options = Prediction(None if labelled else "photos", top_k, None, False, threshold=threshold)
    return Predictions(part, samples, list(classes), options, thresholds)


def test_the_table_of_a_prediction(make, tmp_path):
    assert make().write_csv(tmp_path) == tmp_path / "predictions.csv"
    assert (tmp_path / "predictions.csv").read_bytes() == (
        b"path,class_1,probability_1,class_2,probability_2,target,error\n"
        b"a.jpg,cat,0.700000,dog,0.400000,cat,\n"
        b"b.jpg,,,,,dog,is empty (0 bytes)\n"
        b"c.jpg,cat,0.700000,dog,0.400000,emu,\n"
    )
    plain = (tmp_path / "predictions.csv").read_bytes()
    assert make().write_csv(tmp_path, excel=True).read_bytes() == b"\xef\xbb\xbf" + plain  # for spreadsheets
    make(labelled=False, top_k=1).write_csv(tmp_path)
    assert (tmp_path / "predictions.csv").read_text().splitlines()[:2] == [
        *("path,class_1,probability_1,error", "a.jpg,cat,0.700000,")
    ]
    assert make(top_k=99).write_csv(tmp_path).read_text().startswith("path,class_1,probability_1,class_2,")
    assert "class_3" in (tmp_path / "predictions.csv").read_text() and "class_4" not in make().table(3)


def test_json_has_the_same_values(make, tmp_path):
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
    made = make(threshold=threshold, thresholds=np.array([0.7, 0.2, 0.9]) if multi_label else None)
    rows = read_rows(made.write_csv(tmp_path))
    if multi_label:  # of the probabilities 0.7, 0.4 and 0.1
        assert [row["predicted"] for row in rows] == ["dog", "", "dog"]
    images = json.loads(made.write_json(tmp_path).read_text())
    labels = [label, "", label]  # of image 1, which cannot be read, none
    assert [row["label"] for row in rows] == [image["label"] for image in images] == labels
    assert [row["target"] for row in rows] == ["cat", "dog", "emu"] and list(rows[0])[-3:-1] == ["label", "target"]
    assert [len(image["predictions"]) for image in images] == [2, 0, 2]


def test_hostile_names_stay_text(make, tmp_path):
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


def test_a_table_with_a_column_for_each_class(make, tmp_path):
    made = make(top_k=None, threshold=0.5, ranked=(2, 0, 1))
    made.write_csv(tmp_path)
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        "path,cat,dog,emu,label,target",
        "a.jpg,0.400000,0.100000,0.700000,emu,cat",
        "b.jpg,,,,,dog",
        "c.jpg,0.400000,0.100000,0.700000,emu,emu",
    ]


def test_memory_does_not_grow_with_the_number_of_images(make, tmp_path):
    def peak(count: int) -> int:
        made = make([str(number) for number in range(count)], labelled=False, chunk=100)
        tracemalloc.start()
        made.write_csv(tmp_path)
        made.write_json(tmp_path)
        made.table(rows=10)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(10_000) < 1.2 * peak(1000)


def results(start: int, count: int) -> SampleResults:
    rng = np.random.default_rng(start)
    values = [rng.random((count, 3), dtype=np.float32) for _ in range(2)]
    labels = rng.integers(9, size=(count, 3))
    errors = {start: "caf\udcff \n"}
    return SampleResults(labels[:, 0], labels, values[0], values[1][:, 0], errors, scores=values[1])


def assert_same(part: PartFile, *expected: SampleResults) -> None:
    for one, other in zip(part, expected, strict=True):
        assert one.errors == other.errors
        for name in ("targets", "labels", "probabilities", "losses", "scores"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)


@pytest.mark.parametrize("cut", [1, 60, 500])
def test_an_incomplete_line_is_computed_again(tmp_path, cut):
    part = PartFile(tmp_path / "part", "inputs")
    for start in (0, 4):
        part.append(results(start, 4))
    (tmp_path / "part").write_bytes((tmp_path / "part").read_bytes()[:-cut])
    part = PartFile(tmp_path / "part", "inputs")
    assert part.num_samples == 4
    part.append(results(4, 2))
    assert_same(PartFile(tmp_path / "part", "inputs"), results(0, 4), results(4, 2))


def test_results_of_other_inputs_are_removed(tmp_path):
    PartFile(tmp_path / "part", "inputs").append(results(0, 4))
    other = PartFile(tmp_path / "part", "other")
    assert other.num_samples == 0 and not (tmp_path / "part").read_bytes()
    other.append(results(0, 3))
    assert_same(other, results(0, 3))


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    part = PartFile(tmp_path / "part", "inputs")
    monkeypatch.setattr(part_file, "open", full, raising=False)
    with pytest.raises(OSError, match="free space") as error:
        part.append(results(0, 4))
    assert error.value.filename == tmp_path / "part" and part.num_samples == 0


@pytest.mark.parametrize(
    ("option", "is_same"),
    [
        ("MODEL.TUNE=lora", True), ("MODEL.HEAD=probe", True), ("TRAIN.BASE_LR=1", True), ("DATA.HFLIP_PROB=0", True),
        ("DATA.BATCH_SIZE_EVAL=7", True), ("DATA.ON_BAD_IMAGE=skip", False), ("DATA.CROP_PCT=0.5", False),
        ("EVAL.SAVE_LOGITS=true", False), ("EVAL.TTA=flip", False), ("MODEL.DEPTH=3", False),
    ],
)  # fmt: skip
def test_results_of_equal_inputs_are_shared(cpu, option, is_same):
    """Training keys have no effect on stored features and predictions; a key that changes them, or errors, does."""
    digests = set()
    for more in ([], [option]):
        config = parse_command_line(["-dataset=digits", "-opts", *TINY_VIT, *GREY, *more]).config
        (samples,) = samples_for(config, cpu, "val")
        digests.add(digest_inputs(config, samples, [torch.ones(2)]))
    assert (len(digests) == 1) == is_same
