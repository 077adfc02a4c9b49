"""Training runs that differ only in seed or fold: means, standard deviations, and one confusion matrix of all folds."""

import csv
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from engine.evaluation.file_names import CONFUSION, EVALUATION
from engine.report.contents import RunContents, read_matrix
from engine.report.tables import compared_options
from engine.run.facts import TrainingData

_REPEATED = ("SEED", "DATA.FOLD")


class Group(NamedTuple):
    """Runs that differ only in SEED or DATA.FOLD.

    cells: by column: the options in which groups differ, by dotted key; the number of finished runs; mean and standard
    deviation (n - 1) of their metric, its value on test images, and macro F1; None without a value. confusion: as
    `Evaluation.confusion`, the sum of the held-out images of all folds, once per seed. notes: runs that are left out,
    and the reason why there is no matrix.
    """

    cells: dict[str, Any]
    confusion: tuple[list[str], list[list[int]]] | None
    notes: list[str]


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
    figures = {
        "": [run.score for run in runs],
        "test_": [run.test_score for run in runs],
        "macro_f1_": [run.figures.get("macro_f1") for run in runs],
    }
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
    """The sum of the confusion matrices; raises ValueError or an error of `read_matrix` if images would be missing."""
    found = sorted((run.options["SEED"], run.options["DATA.FOLD"]) for run in runs)
    if not found or found != [(seed, fold) for seed in sorted({seed for seed, _ in found}) for fold in range(folds)]:
        raise ValueError("each seed needs one finished run of each fold")
    data = [facts for run in runs if (facts := run.facts.get(TrainingData))]
    if len({facts.training + facts.validation for facts in data}) > 1:
        raise ValueError("the runs have different numbers of images")
    matrices = [read_matrix(run.folder / EVALUATION / CONFUSION) for run in runs]
    if any(names != matrices[0][0] for names, _ in matrices):
        raise ValueError("the classes differ")
    rows = zip(*(matrix for _, matrix in matrices), strict=True)
    return matrices[0][0], [[sum(cells) for cells in zip(*row, strict=True)] for row in rows]
