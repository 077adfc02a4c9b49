"""The tables of a page: options, classes, confusion matrix, runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from configs.reading.compare import differing_from_defaults
from engine.report.contents import Confusion, Evaluation, RunContents
from engine.report.formats import NO_VALUE, duration, gigabytes, number, option, percent
from engine.report.overview import metric_of, split_of, test_of
from engine.run.result import MIN_CLASSES_FOR_TOP5
from engine.run.summary import differing_options
from utils.tables import to_float

MAX_CLASSES = 2000  # rows; a page of more opens slowly
NUM_PAIRS = 20
NUM_LEVELS = 9  # of colour in the matrix
_OPTIONS_OF_RUN = ("NAME", "SAVE", "MODEL.RESUME", "EVAL.ENABLED")
_CLASS_COLUMNS = {
    "class": "class", "count": "images", "predicted": "predicted", "precision": "precision", "recall": "recall",
    "f1": "F1", "top1": "top-1", "top5": "top-5", "ap": "AP",
}  # fmt: skip
_COUNTS = ("count", "predicted")


Option = tuple[str, str, str]


def options_off_defaults(run: RunContents) -> list[Option]:
    """(key, value, default) of the options that differ from the defaults."""
    return _option_rows(differing_from_defaults(run.summary.options))


def options_off_recipe(run: RunContents) -> list[Option] | None:
    """(key, value, value of the recipe) of the options that differ from the recipe; None if it is not known."""
    if run.recipe is None:
        return None
    pairs = {key: (value, run.recipe.get(key, value)) for key, value in run.summary.options.items()}
    return _option_rows({key: (value, other) for key, (value, other) in pairs.items() if value != other})


def compared_options(runs: Sequence[RunContents]) -> dict[str, list[Any]]:
    """The values of each run by dotted key, for the options whose values are not the same in all runs."""
    differing = differing_options([run.summary for run in runs])
    return {key: values for key, values in differing.items() if key not in _OPTIONS_OF_RUN}


def _option_rows(differing: dict[str, tuple[Any, Any]]) -> list[Option]:
    return [
        (key, option(value), option(other)) for key, (value, other) in differing.items() if key not in _OPTIONS_OF_RUN
    ]


@dataclass(frozen=True)
class Cell:
    """text: as shown. value: to sort by; '' sorts to the end."""

    text: str
    value: str


@dataclass(frozen=True)
class ClassTable:
    """header: names of the columns. rows: the first cell has the name of the class. left_out: rows beyond 2,000."""

    header: list[str]
    rows: list[list[Cell]]
    left_out: int


def class_table(evaluation: Evaluation) -> ClassTable | None:
    """The classes in the order of the labels. Of more than 2,000, the lowest F1 or AP, in ascending order."""
    rows = evaluation.classes
    if not rows or "class" not in rows[0]:
        return None
    # Recall is the top-1 accuracy of a class: one of the two columns is enough.
    skipped = {"top1"} if "recall" in rows[0] else set()
    skipped |= {"top5"} if len(rows) < MIN_CLASSES_FOR_TOP5 else set()
    columns = [column for column in _CLASS_COLUMNS if column in rows[0] and column not in skipped]
    if len(rows) > MAX_CLASSES:
        rows = sorted(rows, key=_quality)[:MAX_CLASSES]
    header = [_CLASS_COLUMNS[column] for column in columns]
    cells = [[_class_cell(column, row[column]) for column in columns] for row in rows]
    return ClassTable(header, cells, len(evaluation.classes) - len(rows))


def _quality(row: dict[str, str]) -> float:
    value = to_float(row.get("f1", row.get("ap")))
    return math.inf if value is None else value


def _class_cell(column: str, text: str) -> Cell:
    if column == "class":
        return Cell(text, text)
    value = to_float(text)
    if value is None:
        return Cell(NO_VALUE, "")
    return Cell(number(value) if column in _COUNTS else percent(value), f"{value:.6g}")


@dataclass(frozen=True)
class MatrixCell:
    """level: of the colour, 0 to 9, by the share of the true class. is_right: on the diagonal."""

    count: int
    level: int
    is_right: bool
    title: str


def matrix_rows(confusion: Confusion) -> list[list[MatrixCell]]:
    rows = []
    for i, counts in enumerate(confusion.counts):
        total = max(sum(counts), 1)
        rows.append([_matrix_cell(confusion.names, i, j, count, total) for j, count in enumerate(counts)])
    return rows


def _matrix_cell(names: Sequence[str], i: int, j: int, count: int, total: int) -> MatrixCell:
    """The square root shows single mistakes, too."""
    level = math.ceil(NUM_LEVELS * math.sqrt(count / total))
    verdict = "recognized" if i == j else f"predicted as {names[j][:80]}"
    return MatrixCell(count, level, i == j, f"{names[i][:80]}: {count} of {total} {verdict} ({count / total:.1%})")


def most_confused(evaluation: Evaluation) -> list[tuple[str, str, str, str]]:
    """(true class, predicted class, images, share of the true class) of the 20 most frequent confusions."""
    pairs = [row for row in evaluation.pairs if row.get("true") != row.get("predicted")][:NUM_PAIRS]
    return [
        (row["true"], row["predicted"], number(to_float(row["count"]) or 0), percent(to_float(row["share"])))
        for row in pairs
    ]


_RUN_HEADER = (
    "best validation", "epoch", "validation", "training", "test", "images without a split", "training time", "images/s",
    "peak memory", "state",
)  # fmt: skip


@dataclass(frozen=True)
class ResultTable:
    """Runs of one kind with one metric.

    header: without the columns in which no run has a value. rows: the position of each run, and its cells.
    """

    caption: str
    header: list[str]
    rows: list[tuple[int, list[Cell]]]


def ranked(runs: Sequence[RunContents]) -> list[RunContents]:
    """Sorts training runs before evaluations, both by metric, and the best value of each metric first.

    Evaluations of the same split are together; runs without a value are last.
    """

    def rank(run: RunContents) -> tuple[Any, ...]:
        value = metric_of(run)[1]
        return *_group(run), value is None, not split_of(run), split_of(run), -(value or 0.0), run.summary.name

    return sorted(runs, key=rank)


def _group(run: RunContents) -> tuple[bool, bool]:
    return run.summary.is_evaluation, metric_of(run)[0] != "top-1"


def results(runs: Sequence[RunContents]) -> list[ResultTable]:
    """A table for each group of the ranked runs: figures of two metrics are not compared."""
    tables = []
    for (is_evaluation, _), members in groupby(enumerate(runs), key=lambda member: _group(member[1])):
        positions, group = zip(*members, strict=True)
        metric = metric_of(group[0])[0]
        columns = zip(_RUN_HEADER, *map(_run_row, group), strict=True)
        header, *rows = zip(*(column for column in columns if any(cell.value for cell in column[1:])), strict=True)
        caption = (
            f"Evaluations by {metric}: of each split, the best first" if is_evaluation
            else f"Training runs by validation {metric}, the best first"
        )  # fmt: skip
        tables.append(ResultTable(caption, list(header), list(zip(positions, map(list, rows), strict=True))))
    return tables


def _run_row(run: RunContents) -> list[Cell]:
    summary = run.summary
    metric, value = metric_of(run)
    split = split_of(run)
    epoch = summary.best[0] if summary.best else None
    evaluated = {split: (metric, value)} if summary.is_evaluation else {"test": test_of(run)}

    def cell(value: float | None, text: str) -> Cell:
        return Cell(NO_VALUE, "") if value is None else Cell(text, f"{value:.8g}")

    def score(metric: str, value: float | None) -> Cell:
        return cell(value, f"{percent(value)} {metric}")

    return [
        score(metric, None if summary.is_evaluation else value),
        cell(epoch, f"{epoch} of {summary.num_epochs}"),
        *(score(*evaluated.get(name, ("", None))) for name in ("validation", "training", "test", "")),
        cell(summary.train_seconds, duration(summary.train_seconds)),
        cell(summary.images_per_second, number(round(summary.images_per_second or 0, 1))),
        cell(summary.peak_memory_bytes, gigabytes(summary.peak_memory_bytes)),
        Cell(summary.short_status, summary.state),
    ]
