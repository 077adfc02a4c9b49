"""Reads the files in the folder of a run, for its page.

A file that is missing or damaged leaves its part of the page out.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from configs.reading.compare import with_defaults
from configs.reading.option_layers import RECIPE_OPTIONS
from configs.reading.yaml_io import read_yaml
from engine.evaluation.file_names import (
    CALIBRATION,
    CONFUSION,
    EVALUATION,
    MISTAKES,
    PAIRS,
    PER_CLASS,
    SUMMARY,
    TEST_EVALUATION,
)
from engine.report.charts import Bin
from engine.run.facts import FACTS, Facts, read_facts
from engine.run.result import MIN_CLASSES_FOR_TOP5
from engine.run.summary import Rows, RunSummary, read_json, read_run
from utils.errors import UserError
from utils.tables import read_rows, to_float, unescaped_cell

MAX_MATRIX_CLASSES = 50
SEVERAL = " | "  # between the true classes of an image
_TEXTS = ("class", "true", "predicted", "path")  # columns with text from outside

_T = TypeVar("_T")


@dataclass(frozen=True)
class Confusion:
    """counts: of the samples of each true class (rows) by predicted class (columns)."""

    names: list[str]
    counts: list[list[int]]


@dataclass(frozen=True)
class Evaluation:
    """The files of an evaluation. A part whose file is missing is empty or None. Names are without apostrophes.

    confusion: up to 50 classes. pairs: of `confused_pairs.csv`, the most frequent first.
    """

    folder: Path
    summary: dict[str, Any]
    classes: Rows
    confusion: Confusion | None
    pairs: Rows
    calibration: list[Bin]
    mistakes: Rows


@dataclass(frozen=True)
class RunContents:
    """Attributes:
    steps: rows of `steps.csv`. class_names, preprocessing: of `classes.json`.
    evaluation: of the validation images, or of `-eval`. test: of the held-out test images.
    recipe: the options of the recipe by dotted key; None if the run does not know it.
    problems: a line for each file that cannot be read.
    """

    summary: RunSummary
    steps: Rows
    facts: Facts
    class_names: list[str]
    preprocessing: dict[str, Any]
    recipe: dict[str, Any] | None
    evaluation: Evaluation | None
    test: Evaluation | None
    problems: list[str] = field(default_factory=list)

    @property
    def shows_top5(self) -> bool:
        return (to_float(self.summary.options["MODEL.NUM_CLASSES"]) or 0) >= MIN_CLASSES_FOR_TOP5


def read_contents(folder: Path) -> RunContents:
    """Raises UserError if it is not the folder of a run, or its options or `metrics.csv` are damaged."""
    summary = read_run(folder)
    problems: list[str] = []

    def read(name: str, reader: Callable[[Path], _T], missing: _T) -> _T:
        """The content of a file; `missing` if there is none."""
        path = folder / name
        try:
            return reader(path) if path.exists() else missing
        except (OSError, ValueError, KeyError, IndexError, csv.Error, UserError) as error:
            problems.append(f"{name} cannot be read: {str(error) or type(error).__name__}")
            return missing

    classes = read_json(folder / "classes.json")
    names = classes.get("class_names")
    return RunContents(
        summary=summary,
        steps=read("steps.csv", read_rows, []),
        facts=read(FACTS, read_facts, Facts()),
        class_names=list(map(str, names)) if isinstance(names, list) else [],
        preprocessing=preprocessing if isinstance(preprocessing := classes.get("preprocessing"), dict) else {},
        recipe=read(RECIPE_OPTIONS, _read_options, None),
        evaluation=_read_evaluation(folder, EVALUATION, read),
        test=_read_evaluation(folder, TEST_EVALUATION, read),
        problems=problems,
    )


def _read_options(path: Path) -> dict[str, Any]:
    return with_defaults(read_yaml(path)[0])


def _read_evaluation(folder: Path, name: str, read: Callable[[str, Callable[..., Any], Any], Any]) -> Evaluation | None:
    if not (folder / name).is_dir():
        return None
    classes = read(f"{name}/{PER_CLASS}", _read_texts, [])
    confusion = None
    if len(classes) <= MAX_MATRIX_CLASSES:  # the matrix of 1,000 classes has a million cells
        confusion = read(f"{name}/{CONFUSION}", _read_matrix, None)
    return Evaluation(
        folder=folder / name,
        summary=read_json(folder / name / SUMMARY),
        classes=classes,
        confusion=confusion,
        pairs=read(f"{name}/{PAIRS}", _read_texts, []),
        calibration=read(f"{name}/{CALIBRATION}", _read_bins, []),
        mistakes=read(f"{name}/{MISTAKES}", _read_texts, []),
    )


def _read_texts(path: Path) -> Rows:
    """The rows, with the texts as they were before `safe_cell`; of several true classes, each."""
    rows = read_rows(path)
    for row in rows:
        texts = {column: row[column] or "" for column in _TEXTS if column in row}
        row |= {column: SEVERAL.join(map(unescaped_cell, text.split(SEVERAL))) for column, text in texts.items()}
    return rows


def _read_matrix(path: Path) -> Confusion | None:
    """The first row and the first column have the names; None if there are too many classes."""
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    if len(rows) > MAX_MATRIX_CLASSES:
        return None
    counts = [list(map(int, row[1:])) for row in rows]
    if any(len(row) != len(rows) for row in counts) or len(header) != len(rows) + 1:
        raise ValueError("the matrix is not square")
    return Confusion(list(map(unescaped_cell, header[1:])), counts)


def _read_bins(path: Path) -> list[Bin]:
    return [
        Bin(
            low=float(row["low"]),
            high=float(row["high"]),
            count=int(row["count"]),
            confidence=to_float(row["confidence"]),
            accuracy=to_float(row["accuracy"]),
        )
        for row in read_rows(path)
    ]
