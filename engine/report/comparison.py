"""Comparisons of runs: groups of runs that differ only in seed or fold; the mistakes of two runs on the same images."""

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from configs.yaml_io import shorten
from engine.report.contents import RunContents
from engine.report.tables import compared_options, evaluated_images
from engine.run.facts import TrainingData
from engine.run.record import CONFUSION, EVALUATION, PER_IMAGE, RUN
from utils.errors import UserError, error_from
from utils.tables import read_rows, safe_cell, unescaped_cell

CLASS_COLUMNS = ("class", "images", "both right", "only {a} wrong", "only {b} wrong", "both wrong", "p", "p (Holm)")
IMAGE_COLUMNS = ("index", "path", "true", "predicted by {a}", "predicted by {b}", "wrong")
Rows = list[list[str]]
_REPEATED = ("SEED", "DATA.FOLD")
_Class = tuple[str, str]  # label and name: two classes may have one name
_NONE = "-1", ""  # of an image that could not be read
_NEW_EVALUATION = "compare the folder of a new evaluation: -eval -resume=RUN"


class Group(NamedTuple):
    """Runs that differ only in SEED or DATA.FOLD.

    cells: by column: the options in which groups differ, by dotted key; the number of finished runs; mean and standard
    deviation (n - 1) of their metric, its value on test images, and macro F1; None without a value.
    """

    cells: dict[str, Any]
    confusion: tuple[list[str], list[list[int]]] | None  # of the held-out images of all folds, once per seed
    notes: list[str]  # runs that are left out, and the reason why there is no matrix


def groups_of(runs: Sequence[RunContents]) -> list[Group]:
    """The groups in the order of their first runs; none if no two runs differ only in seed or fold."""
    trained = [run for run in runs if not run.is_evaluation]
    compared = {key: values for key, values in compared_options(trained).items() if key not in _REPEATED}
    groups: dict[str, tuple[dict[str, Any], list[RunContents]]] = {}
    for index, run in enumerate(trained):
        cells = {key: values[index] for key, values in compared.items()} | {"metric": run.metric.name}
        groups.setdefault(repr(cells), (cells, []))[1].append(run)
    return [_group(*group) for group in groups.values()] if len(groups) < len(trained) else []


def _group(cells: dict[str, Any], members: list[RunContents]) -> Group:
    runs = [run for run in members if run.state in ("finished", "stopped") and run.score is not None]
    notes = [f"{run.name} is left out: {run.short_status}" for run in members if run not in runs]
    figures = {"": [run.score for run in runs], "test_": [run.test_score for run in runs]}
    figures["macro_f1_"] = [run.figures.get("macro_f1") for run in runs]
    cells |= {"runs": len(runs)}
    for name, found in figures.items():
        values = [value for value in found if value is not None]
        cells[f"{name}mean"] = statistics.mean(values) if values else None
        cells[f"{name}std"] = statistics.stdev(values) if len(values) > 1 else None
    confusion = None
    if folds := members[0].options["DATA.FOLDS"]:
        try:
            confusion = _sum_of_folds(runs, folds)
        except (OSError, ValueError, csv.Error) as problem:
            notes.append(f"No confusion matrix of all folds: {problem}")
    return Group(cells, confusion, notes)


def _sum_of_folds(runs: list[RunContents], folds: int) -> tuple[list[str], list[list[int]]]:
    """The sum of the confusion matrices; raises OSError, ValueError or csv.Error if images would be missing."""
    found = sorted((run.options["SEED"], run.options["DATA.FOLD"]) for run in runs)
    if not found or found != [(seed, fold) for seed in sorted({seed for seed, _ in found}) for fold in range(folds)]:
        raise ValueError("each seed needs one finished run of each fold")
    data = [facts for run in runs if (facts := run.fact(TrainingData))]
    if len({facts.training + facts.validation for facts in data}) > 1:
        raise ValueError("the runs have different numbers of images")
    matrices = [_read_matrix(run) for run in runs]
    if any(names != matrices[0][0] for names, _ in matrices):
        raise ValueError("the classes differ")
    rows = zip(*(matrix for _, matrix in matrices), strict=True)
    return matrices[0][0], [[sum(cells) for cells in zip(*row, strict=True)] for row in rows]


def _read_matrix(run: RunContents) -> tuple[list[str], list[list[int]]]:
    """The names in the first row, and the counts."""
    with open(run.folder / EVALUATION / CONFUSION, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    counts = [list(map(int, row[1:])) for row in rows]
    if any(len(row) != len(rows) or min(row) < 0 for row in counts) or len(header) != len(rows) + 1:
        raise ValueError("it is no square matrix of counts")
    return list(map(unescaped_cell, header[1:])), counts


def compare_mistakes(a: RunContents, b: RunContents) -> tuple[Rows, Rows]:
    """Rows of `CLASS_COLUMNS` and of `IMAGE_COLUMNS`, without images that one of the evaluations could not read.

    Raises UserError: other images or classes, several labels per image, a missing or damaged file.
    """
    if a.is_multi_label or b.is_multi_label:
        raise UserError(f"-mistakes needs one label per image: DATA.MULTI_LABEL is on in {a.folder} or {b.folder}")
    if a.folder.resolve() == b.folder.resolve():
        raise UserError(f"-mistakes: {a.folder} and {b.folder} are one folder; give the folders of two runs")
    for run in (a, b):
        if not evaluated_images(run):
            raise UserError(f"{run.folder / RUN}: lacks the number of the evaluated images; {_NEW_EVALUATION}")
    if evaluated_images(a) != evaluated_images(b):
        raise UserError(f"{b.folder}: other images or classes than in {a.folder}; compare runs on one data set's split")
    counts, images = defaultdict[_Class, list[int]](lambda: [0, 0, 0, 0]), Rows()
    pairs = zip(_read_images(a), _read_images(b), strict=True)
    for index, ((crc, path, true, by_a), (crc_of_b, _, true_of_b, by_b)) in enumerate(pairs):
        if crc != crc_of_b:
            raise UserError(f"{b.folder}: image {index} is another one than in {a.folder}; evaluate both on one list")
        if _NONE not in (true, true_of_b):
            wrong = (by_a != true) + 2 * (by_b != true_of_b)  # of ReaL, the true class depends on the model
            counts[true][wrong] += 1
            if wrong:
                names = (safe_cell(name) for _, name in (true, by_a, by_b))
                images.append([str(index), safe_cell(path), *names, ("A", "B", "both")[wrong - 1]])
    return _class_rows(counts), images


def _class_rows(counts: dict[_Class, list[int]]) -> Rows:
    """All classes together, then each: the smallest p first, among equal ones the largest difference."""
    total = [sum(numbers[wrong] for numbers in counts.values()) for wrong in range(4)]
    rows = [["all", *map(str, (sum(total), *total)), f"{mcnemar(*total[1:3]):.3g}", ""]]
    tests = [(mcnemar(n[1], n[2]), -abs(n[1] - n[2]), *key, n) for key, n in counts.items()]
    corrected = 0.0
    for rank, (p, _, _, name, n) in enumerate(sorted(tests)):
        corrected = max(corrected, min(1.0, (len(tests) - rank) * p))  # Holm, 1979
        rows.append([safe_cell(name), *map(str, (sum(n), *n)), f"{p:.3g}", f"{corrected:.3g}"])
    return rows


def mcnemar(only_a: int, only_b: int) -> float:
    """The exact two-sided p-value: twice the smaller tail of Binomial(only_a + only_b, 1/2), at most 1."""
    n = only_a + only_b
    log_all = math.lgamma(n + 1) - n * math.log(2)
    terms = (log_all - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(min(only_a, only_b) + 1))
    return min(1.0, 2 * math.fsum(map(math.exp, terms)))


def _read_images(run: RunContents) -> list[tuple[str, str, _Class, _Class]]:
    """Returns checksum, path, true and predicted class of each image."""
    path, (number, _) = run.folder / EVALUATION / PER_IMAGE, evaluated_images(run) or (0, "")
    rows = run.evaluation.classes if run.evaluation else []
    classes = {str(row["label"]): (str(row["label"]), row["class"]) for row in rows if "label" in row} | {
        _NONE[0]: _NONE
    }
    try:
        images = [
            (row["checksum"], row["path"], classes[row["label"]], classes[row["predicted"]]) for row in read_rows(path)
        ]
        if len(images) != number:
            raise ValueError(f"it has {len(images)} of {number} images")
        return images
    except (OSError, ValueError, KeyError, csv.Error) as error:
        cause = f"no column or class {error}" if isinstance(error, KeyError) else str(error)
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({shorten(cause)})"
        raise error_from(error, f"{path}: {problem}; {_NEW_EVALUATION}") from None
