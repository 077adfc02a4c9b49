"""The files of an evaluation: tables as CSV, pictures, a summary. The report page and other programs read them.

All figures are in percent, the loss in nats. A class is written by its name, or by its label if the data has no names.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from configs.schema import Data
from datasets.sources.samples import Samples
from engine.evaluation.evaluate import Evaluator
from engine.evaluation.pictures import write_attention, write_pictures
from engine.evaluation.results import (
    SampleResults,
    calibration,
    class_figures,
    confused_pairs,
    coverage,
    highest_losses,
    name_of_target,
    worst_mistakes,
)
from engine.run.record import CONFUSION, MAX_CLASSES_SHOWN, PER_IMAGE, PICTURES, SUMMARY, TABLES, read_evaluation
from utils.files import atomic_write, make_own_folder, open_atomically
from utils.metrics import Metrics
from utils.tables import matrix_text, safe_cell, table_text

MAX_CLASSES_IN_MATRIX = 1000  # the file of more would have more than a million cells
MAX_PAIRS, _SHOWN_PAIRS = 1000, 20
LOGITS = "logits.npz"
NOT_DRAWN = "attention maps: the run ended before they were drawn; -eval draws them"


@dataclass
class EvaluationFiles:
    """The folder of the evaluations of one split; a later evaluation replaces the files of an earlier one.

    class_names: of all labels of the model.
    """

    folder: Path
    samples: Samples
    data: Data
    class_names: Sequence[str]
    evaluator: Evaluator
    _values: dict[str, Any] | None = field(default=None, init=False)
    _tables: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def values(self) -> dict[str, Any]:
        """The summary and the tables of the latest evaluation, also of an earlier start of the run; empty without."""
        return read_evaluation(self.folder) if self._values is None else self._values

    def write(self, metrics: Metrics, results: SampleResults, model: nn.Module | None, **about: Any) -> dict[str, Any]:
        """Writes all files, each atomically; returns the content of `summary.json`, which begins with `about`.

        model: the evaluated one, for the attention maps; without it there are none. Raises OSError.
        """
        make_own_folder(self.folder)
        self._tables = {}
        analyze = self._analyze if results.targets.ndim == 1 else self._analyze_several_labels
        figures, mistakes = analyze(results)
        self._write_logits(results)
        note = self._write_pictures(sorted({index for _, index in mistakes}), model)
        atomic_write(self.folder / TABLES, json.dumps(self._tables) + "\n")
        summary = {
            **about,
            "samples": metrics.samples,
            "unreadable": len(results.errors),
            "num_classes": len(self.class_names),
            "tta": "flip" if self.evaluator.flips else "none",
            **metrics.known,
            **figures,
            "attention": note,
        }
        atomic_write(self.folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
        self._values = summary | self._tables
        return summary

    def _analyze(self, results: SampleResults) -> tuple[dict[str, float], list[tuple[str, int]]]:
        """Writes the tables; returns the figures of the summary and the worst mistakes."""
        names = self.class_names
        figures, pairs, bins = (
            class_figures(results, len(names)),
            confused_pairs(results, len(names)),
            calibration(results),
        )
        shares = [figures.precision, figures.recall, figures.f1, figures.recall, figures.top5, figures.specificity]
        shares += [np.resize(results.ranking.auroc, len(names))]
        columns = (range(len(names)), names, figures.count, figures.predicted, *(map(_cell, one) for one in shares))
        self._write_table("per_class", _CLASS_COLUMNS, zip(*columns, strict=True))
        wrong = pairs[pairs[:, 0] != pairs[:, 1]][:MAX_PAIRS].tolist()
        pair_rows = ([names[i], names[j], number, _cell(100 * number / figures.count[i])] for i, j, number in wrong)
        self._write_table("confused_pairs", _PAIR_COLUMNS, pair_rows, _SHOWN_PAIRS)
        edges, means = (bins.edges[:-1], bins.edges[1:]), (bins.confidence, bins.accuracy)
        columns = (*(map(_cell, one) for one in edges), bins.count, *(map(_cell, one) for one in means))
        self._write_table("calibration", _BIN_COLUMNS, zip(*columns, strict=True))
        self._write_table("coverage", _COVERAGE_COLUMNS, ([*map(_cell, row)] for row in coverage(results)))
        self._write_images(results)
        self._write_matrix(pairs)
        return {**figures.macro(), "ece": bins.error}, self._write_mistakes(worst_mistakes(results), results)

    def _analyze_several_labels(self, results: SampleResults) -> tuple[dict[str, float], list[tuple[str, int]]]:
        """As `_analyze`, with the highest losses as mistakes. The true classes are joined by ' | '."""
        figures, ranking, names = results.per_class, results.ranking, self.class_names
        shares = [figures.precision, figures.recall, figures.f1, figures.specificity, ranking.auroc]
        shares += [ranking.average_precision, 100 * results.used_thresholds]
        columns = (range(len(names)), names, figures.count, figures.predicted, *(map(_cell, one) for one in shares))
        self._write_table("per_class", _SEVERAL_LABELS_COLUMNS, zip(*columns, strict=True))
        return figures.macro(), self._write_mistakes(highest_losses(results), results)

    def _write_table(
        self, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]], shown: int | None = None
    ) -> None:
        """shown: number of rows for the page; None: all."""
        cells = [[one if isinstance(one, str) else int(one) for one in row] for row in rows]
        self._tables[name] = [dict(zip(header, row, strict=True)) for row in cells[:shown]]
        safe = ([safe_cell(one) if isinstance(one, str) else one for one in row] for row in cells)
        atomic_write(self.folder / f"{name}.csv", table_text(header, safe))

    def _write_images(self, results: SampleResults) -> None:
        """A row per image; the label of an image that could not be read is -1, and its classes are empty."""
        paths = (safe_cell(self.samples.name(index)) for index in range(len(results.targets)))
        targets, predicted, shown = results.targets, results.labels[:, 0], [*map(safe_cell, self.class_names), ""]
        classes = ([shown[one] for one in labels] for labels in (targets, np.where(targets < 0, -1, predicted)))
        columns = range(len(targets)), paths, self.samples.checksums(), targets, predicted, *classes
        atomic_write(self.folder / PER_IMAGE, table_text(_IMAGE_COLUMNS, zip(*columns, strict=True)))

    def _write_logits(self, results: SampleResults) -> None:
        """The logits of the images that could be read: docs/evaluation.md. Without them, an older file is removed."""
        file, rows = self.folder / LOGITS, results.readable
        if results.logits is None:
            file.unlink(missing_ok=True)
            return
        paths, classes = np.array([*map(self.samples.name, rows)], np.str_), np.array(self.class_names, np.str_)
        with open_atomically(file, "wb") as opened:
            np.savez(opened, logits=results.logits[rows], labels=results.targets[rows], paths=paths, classes=classes)

    def _write_matrix(self, pairs: np.ndarray) -> None:
        names = self.class_names
        if len(names) > MAX_CLASSES_IN_MATRIX:
            return
        matrix = np.zeros((len(names), len(names)), dtype=np.int64)
        matrix[pairs[:, 0], pairs[:, 1]] = pairs[:, 2]
        atomic_write(self.folder / CONFUSION, matrix_text(names, matrix.tolist()))
        if len(names) <= MAX_CLASSES_SHOWN:
            self._tables["confusion"] = [list(names), matrix.tolist()]

    def _write_mistakes(self, mistakes: list[tuple[str, int]], results: SampleResults) -> list[tuple[str, int]]:
        rows, names = [], self.class_names
        for kind, index in mistakes:
            target, predicted, loss = results.targets[index], results.labels[index, 0], float(results.losses[index])
            true_probability = 100 * float(np.exp(-loss)) if target.ndim == 0 else np.nan
            probabilities = 100 * float(results.probabilities[index, 0]), true_probability
            texts = self.samples.name(index), name_of_target(target, names), names[predicted]
            rows.append([kind, index, *texts, *map(_cell, probabilities), f"{loss:.6g}"])
        self._write_table("mistakes", _MISTAKE_COLUMNS, rows)
        return mistakes

    def _write_pictures(self, indices: Sequence[int], model: nn.Module | None) -> str | None:
        """Returns why there are no attention maps; None if there are some."""
        crops = write_pictures(self.folder / PICTURES, indices, self.samples, self.data)
        if not crops or model is None:
            return NOT_DRAWN if crops else "no image is readable"
        return write_attention(self.folder / PICTURES, crops, model, self.evaluator)


_CLASS_COLUMNS = (
    "label", "class", "count", "predicted", "precision", "recall", "f1", "top1", "top5", "specificity", "auroc",
)  # fmt: skip
_SEVERAL_LABELS_COLUMNS = (
    "label", "class", "count", "predicted", "precision", "recall", "f1", "specificity", "auroc", "ap", "threshold",
)  # fmt: skip
_IMAGE_COLUMNS = ("index", "path", "checksum", "label", "predicted", "class", "predicted_class")
_PAIR_COLUMNS = ("true", "predicted", "count", "share")
_BIN_COLUMNS = ("low", "high", "count", "confidence", "accuracy")
_COVERAGE_COLUMNS = ("threshold", "coverage", "accuracy")
_MISTAKE_COLUMNS = ("kind", "index", "path", "true", "predicted", "probability", "true_probability", "loss")


def _cell(percent: float) -> str:
    """Four decimals; empty for a figure that is not defined."""
    return "" if np.isnan(percent) else f"{percent:.4f}"
