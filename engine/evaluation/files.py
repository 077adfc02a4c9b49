"""The files of an evaluation: tables as CSV, pictures, a summary. The report page and other programs read them.

All figures are in percent, the loss in nats. A class is written by its name, or by its label if the data has no names.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from engine.run import result
from utils.files import atomic_write, make_own_folder, open_atomically
from utils.metrics import Metrics
from utils.tables import matrix_text, safe_cell, table_text

MAX_CLASSES_IN_MATRIX = 1000  # the file of more would have more than a million cells
MAX_PAIRS = 1000
NOT_DRAWN = "attention maps: the run ended before they were drawn; -eval draws them"


@dataclass(frozen=True)
class EvaluationFiles:
    """The folder of the evaluations of one split; a later evaluation replaces the files of an earlier one.

    class_names: of all labels of the model.
    """

    folder: Path
    samples: Samples
    data: Data
    class_names: Sequence[str]
    evaluator: Evaluator

    def write(self, metrics: Metrics, results: SampleResults, model: nn.Module | None, **about: Any) -> dict[str, Any]:
        """Writes all files, each atomically; returns the content of `summary.json`, which begins with `about`.

        model: the evaluated one, for the attention maps; without it there are none. Raises OSError.
        """
        make_own_folder(self.folder)
        analyze = self._analyze if results.scores is None else self._analyze_several_labels
        figures, mistakes = analyze(results, [safe_cell(name) for name in self.class_names])
        self._write_logits(results)
        note = self._write_pictures(sorted({index for _, index in mistakes}), model)
        summary = {
            **about,
            "samples": metrics.samples,
            "unreadable": len(results.errors),
            "num_classes": len(self.class_names),
            "tta": "flip" if self.evaluator.flips else "none",
            **metrics.values,
            **figures,
            "attention": note,
        }
        atomic_write(self.folder / result.SUMMARY, json.dumps(summary, indent=2) + "\n")
        return summary

    def _analyze(self, results: SampleResults, names: Sequence[str]) -> tuple[dict[str, float], list[tuple[str, int]]]:
        """Writes the tables; returns the figures of the summary and the worst mistakes."""
        figures = class_figures(results, len(names))
        pairs = confused_pairs(results, len(names))
        bins = calibration(results)
        mistakes = worst_mistakes(results)
        shares = (figures.precision, figures.recall, figures.f1, figures.recall, figures.top5)
        columns = (range(len(names)), names, figures.count, figures.predicted, *(map(_cell, one) for one in shares))
        self._write_table(result.PER_CLASS, _CLASS_COLUMNS, zip(*columns, strict=True))
        wrong = pairs[pairs[:, 0] != pairs[:, 1]][:MAX_PAIRS].tolist()
        pair_rows = ([names[i], names[j], number, _cell(100 * number / figures.count[i])] for i, j, number in wrong)
        self._write_table(result.PAIRS, _PAIR_COLUMNS, pair_rows)
        edges, means = (bins.edges[:-1], bins.edges[1:]), (bins.confidence, bins.accuracy)
        columns = (*(map(_cell, one) for one in edges), bins.count, *(map(_cell, one) for one in means))
        self._write_table(result.CALIBRATION, _BIN_COLUMNS, zip(*columns, strict=True))
        self._write_table(result.COVERAGE, _COVERAGE_COLUMNS, ([*map(_cell, row)] for row in coverage(results)))
        self._write_images(results, names)
        self._write_mistakes(mistakes, results, names)
        self._write_matrix(pairs, names)
        return {**figures.macro(), "ece": bins.error}, mistakes

    def _analyze_several_labels(
        self, results: SampleResults, names: Sequence[str]
    ) -> tuple[dict[str, float], list[tuple[str, int]]]:
        """As `_analyze`, with the highest losses as mistakes. The true classes are joined by ' | '."""
        count = results.targets[results.readable].sum(axis=0, dtype=np.int64).tolist()
        columns = zip(range(len(names)), names, count, map(_cell, results.average_precisions), strict=True)
        self._write_table(result.PER_CLASS, _SEVERAL_LABELS_COLUMNS, columns)
        mistakes = highest_losses(results)
        self._write_mistakes(mistakes, results, names)
        return {}, mistakes

    def _write_table(self, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        atomic_write(self.folder / name, table_text(header, rows))

    def _write_images(self, results: SampleResults, names: Sequence[str]) -> None:
        """A row per image; the label of an image that could not be read is -1, and its classes are empty."""
        paths = (safe_cell(self.samples.name(index)) for index in range(len(results.targets)))
        targets, predicted, shown = results.targets, results.labels[:, 0], [*names, ""]
        classes = ([shown[one] for one in labels] for labels in (targets, np.where(targets < 0, -1, predicted)))
        columns = range(len(targets)), paths, self.samples.checksums(), targets, predicted, *classes
        self._write_table(result.PER_IMAGE, _IMAGE_COLUMNS, zip(*columns, strict=True))

    def _write_logits(self, results: SampleResults) -> None:
        """The logits of the images that could be read: docs/evaluation.md. Without them, an older file is removed."""
        file, rows = self.folder / result.LOGITS, results.readable
        if results.logits is None:
            file.unlink(missing_ok=True)
            return
        paths, classes = np.array([*map(self.samples.name, rows)], np.str_), np.array(self.class_names, np.str_)
        with open_atomically(file, "wb") as opened:
            np.savez(opened, logits=results.logits[rows], labels=results.targets[rows], paths=paths, classes=classes)

    def _write_matrix(self, pairs: np.ndarray, names: Sequence[str]) -> None:
        if len(names) > MAX_CLASSES_IN_MATRIX:
            return
        matrix = np.zeros((len(names), len(names)), dtype=np.int64)
        matrix[pairs[:, 0], pairs[:, 1]] = pairs[:, 2]
        atomic_write(self.folder / result.CONFUSION, matrix_text(names, matrix.tolist()))

    def _write_mistakes(self, mistakes: list[tuple[str, int]], results: SampleResults, names: Sequence[str]) -> None:
        rows = []
        for kind, index in mistakes:
            target, predicted, loss = results.targets[index], results.labels[index, 0], float(results.losses[index])
            true = name_of_target(target, names)
            true_probability = 100 * float(np.exp(-loss)) if target.ndim == 0 else np.nan
            probabilities = 100 * float(results.probabilities[index, 0]), true_probability
            path = safe_cell(self.samples.name(index))
            rows.append([kind, index, path, true, names[predicted], *map(_cell, probabilities), f"{loss:.6g}"])
        self._write_table(result.MISTAKES, _MISTAKE_COLUMNS, rows)

    def _write_pictures(self, indices: Sequence[int], model: nn.Module | None) -> str | None:
        """Returns why there are no attention maps; None if there are some."""
        crops = write_pictures(self.folder / result.PICTURES, indices, self.samples, self.data)
        if not crops or model is None:
            return NOT_DRAWN if crops else "no image is readable"
        return write_attention(self.folder / result.PICTURES, crops, model, self.evaluator)


_CLASS_COLUMNS = ("label", "class", "count", "predicted", "precision", "recall", "f1", "top1", "top5")
_SEVERAL_LABELS_COLUMNS = ("label", "class", "count", "ap")
_IMAGE_COLUMNS = ("index", "path", "checksum", "label", "predicted", "class", "predicted_class")
_PAIR_COLUMNS = ("true", "predicted", "count", "share")
_BIN_COLUMNS = ("low", "high", "count", "confidence", "accuracy")
_COVERAGE_COLUMNS = ("threshold", "coverage", "accuracy")
_MISTAKE_COLUMNS = ("kind", "index", "path", "true", "predicted", "probability", "true_probability", "loss")


def _cell(percent: float) -> str:
    """Four decimals; empty for a figure that is not defined."""
    return "" if np.isnan(percent) else f"{percent:.4f}"
