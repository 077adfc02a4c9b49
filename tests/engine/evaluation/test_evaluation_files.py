"""The files of an evaluation: their figures, hostile names, many classes, an interrupted write."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_pictures import evaluator_for
from torch import nn

from configs.schema import Data
from datasets.batch import PADDING
from datasets.decoding.decode import LazyImage
from datasets.sources.samples import Samples
from engine.evaluation.files import EvaluationFiles
from engine.evaluation.results import SampleResults
from utils.tables import safe_cell

HOSTILE = ["=cmd|' /C calc'!A0", "<script>alert(1)</script>", "two\nlines", "\x1b[31mred", "x" * 300, "-1"]


class Noise(Samples):
    """Images of noise with the given names."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(["a"])
        self.names, self.targets = names, np.zeros(len(names), np.int64)

    def name(self, index: int) -> str:
        return self.names[index]

    def open(self, index: int, channels: int) -> LazyImage:
        generator = torch.Generator().manual_seed(index)
        return LazyImage(torch.randint(0, 256, (channels, 20, 20), generator=generator, dtype=torch.uint8))


def results_for(targets: np.ndarray, predicted: np.ndarray) -> SampleResults:
    rng = np.random.default_rng(0)
    probabilities = rng.uniform(0.5, 1, (len(targets), 1)).astype(np.float32)
    losses = np.where(targets == predicted, -np.log(probabilities[:, 0]), 3).astype(np.float32)
    return SampleResults(targets, predicted.astype(np.int32)[:, None], probabilities, losses)


def files_for(folder: Path, class_names: list[str], sample_names: list[str], context) -> EvaluationFiles:
    data = Data.model_validate({"IMAGE_SIZE": 16})
    return EvaluationFiles(folder, Noise(sample_names), data, class_names, evaluator_for(context))


def read_table(path: Path) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.fixture
def written(tmp_path, cpu) -> Path:
    """The files of an evaluation with six hostile class names and as many file names."""
    targets = np.array([0, 0, 1, 2, 3, 4, 5, 5])
    predicted = np.array([0, 1, 1, 1, 3, 4, 5, 0])
    results = results_for(targets, predicted)
    names = [*HOSTILE, "a/b.png", b"\xff.png".decode("utf-8", "surrogateescape")]
    files = files_for(tmp_path / "evaluation", HOSTILE, names, cpu)
    files.write(results.metrics(), results, nn.Flatten(), epoch=3)
    return tmp_path / "evaluation"


def test_the_tables_have_the_figures(written):
    header, *classes = read_table(written / "per_class.csv")
    figures = ["precision", "recall", "f1", "specificity", "top1", "top5", "auroc"]
    assert header == ["label", "class", "count", "predicted", *figures]
    assert [row[2:6] for row in classes[:3]] == [
        ["2", "2", "50.0000", "50.0000"],
        ["1", "3", "33.3333", "100.0000"],
        ["1", "0", "", "0.0000"],
    ]
    _, *matrix = read_table(written / "confusion.csv")
    assert [row[1:] for row in matrix][:3] == [list("110000"), list("010000"), list("010000")]
    _, *pairs = read_table(written / "confused_pairs.csv")
    assert [row[2:] for row in pairs] == [["1", "50.0000"], ["1", "100.0000"], ["1", "50.0000"]]
    summary = json.loads((written / "summary.json").read_text())
    assert summary["epoch"] == 3 and summary["samples"] == 8 and summary["top1"] == 62.5
    assert summary["recall"] == pytest.approx(100 * (0.5 + 1 + 0 + 1 + 1 + 0.5) / 6)


def test_hostile_names_stay_text(written):
    cells = [cell for path in written.glob("*.csv") for row in read_table(path) for cell in row]
    assert any("<script>" in cell for cell in cells)  # it is text in a CSV file
    assert all(cell.isprintable() and cell[:1] not in ("=", "+", "-", "@") for cell in cells)
    _, *mistakes = read_table(written / "mistakes.csv")
    paths = {row[2] for row in mistakes}
    assert r"two\nlines" in paths and r"\udcff.png" in paths and f"'{HOSTILE[0]}" in paths


def test_each_image_has_a_row_and_logits_on_request(tmp_path, cpu):
    """The second image could not be read. Names stay as they are in the file of the logits."""
    results = results_for(np.array([0, PADDING, 5]), np.array([1, 0, 5]))
    names, folder = [HOSTILE[0], "b.png", b"\xff.png".decode("utf-8", "surrogateescape")], tmp_path / "evaluation"
    files = files_for(folder, HOSTILE, names, cpu)
    logits = np.arange(18, dtype=np.float16).reshape(3, 6)
    files.write(results.metrics(), replace(results, logits=logits), nn.Flatten())
    rows = [["0", f"'{HOSTILE[0]}", "0", "0", "1"], ["1", "b.png", "0", "-1", "0"], ["2", r"\udcff.png", "0", "5", "5"]]
    shown = [safe_cell(name) for name in HOSTILE]
    classes = [[shown[0], shown[1]], ["", ""], [shown[5], shown[5]]]
    assert read_table(folder / "per_image.csv")[1:] == [row + of for row, of in zip(rows, classes, strict=True)]
    with np.load(folder / "logits.npz", allow_pickle=False) as saved:
        assert saved["logits"].dtype == np.float16 and saved["labels"].dtype == np.int64
        assert saved["logits"].tolist() == logits[[0, 2]].tolist() and saved["labels"].tolist() == [0, 5]
        assert saved["paths"].tolist() == [names[0], names[2]] and saved["classes"].tolist() == HOSTILE
    files.write(results.metrics(), results, nn.Flatten())
    assert not (folder / "logits.npz").exists()  # they were of other weights


def test_pictures_are_those_of_the_mistakes(written, tmp_path, cpu):
    _, *mistakes = read_table(written / "mistakes.csv")
    indices = {int(row[1]) for row in mistakes}
    assert {int(path.stem) for path in (written / "pictures").iterdir()} == indices
    assert Image.open(written / "pictures/0.jpg").size == (160, 160)
    summary = json.loads((written / "summary.json").read_text())
    assert "attention maps need a ViT" in summary["attention"]
    results = results_for(np.array([0, 1]), np.array([0, 1]))
    (written / "pictures/0-attention.jpg").touch()  # of other weights
    files_for(written, HOSTILE, ["one", "two"], cpu).write(results.metrics(), results, nn.Flatten())
    assert {path.name for path in (written / "pictures").iterdir()} == {"0.jpg", "1.jpg"}
