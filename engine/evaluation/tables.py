"""The tables of an evaluation as CSV, and its summary, from its results alone: of images, of groups, of all folds.

All figures are in percent, the loss in nats. A class is written by its name, or by its label if the data has no names.

Legend: N samples, C classes.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np
import torch

from configs.yaml_io import Values
from datasets.sources.samples import is_multi_hot
from engine.evaluation.calibration import NUM_BINS, Calibration, join_bins
from engine.evaluation.influence import limits_of_classes
from engine.evaluation.intervals import confidence_interval, figures_at, ranking_of
from engine.evaluation.ranking import mean_of, roc_points
from engine.evaluation.results import (
    ClassFigures,
    SampleResults,
    class_figures,
    confused_pairs,
    coverage,
    mean_by_group,
    name_of_target,
    results_of_scores,
    worst_mistakes,
)
from engine.progress import Metrics
from engine.run.record import CONFUSION, GROUPS, MISTAKES, PER_IMAGE, SUMMARY, TABLES
from utils.files import atomic_write, indented_json, make_own_folder, open_atomically
from utils.metric_table import METRICS, OPERATING, with_old_names
from utils.tables import matrix_text, safe_cell, table_text

MAX_CLASSES_IN_MATRIX = 1000  # the file of more would have more than a million cells
_MAX_CLASSES_SHOWN = 50  # in the matrix of the page
MAX_PAIRS = 1000
_SHOWN_PAIRS = 20
SCORES = "scores.npz"
_MAX_CURVES = 8
_MAX_POINTS = 200
CURVES = ("threshold_logit", "sensitivity", "specificity", "precision")
MAX_SCORES_BYTES = 200_000_000  # of `SampleResults.scores` in a file: 50,000 images of 1000 labels


@dataclass
class ResultTables:
    """The tables of results in a folder; later ones replace them.

    class_names: of all labels of the model. name: of a sample. checksums: of the samples, if they are known.
    """

    folder: Path
    class_names: Sequence[str]
    name: Callable[[int], str]
    checksums: np.ndarray | None = None

    def write(self, metrics: Metrics, results: SampleResults, about: Values, **more: Any) -> Values:
        """Writes all tables, each atomically; returns the content of `summary.json`, from `about` to `more`.

        Raises OSError.
        """
        make_own_folder(self.folder)
        self._tables: Values = {}
        analyze = self._analyze_several_labels if is_multi_hot(results.targets) else self._analyze
        analyze(results)
        self._write_array("logits", results.logits, results)
        is_small = results.scores is not None and results.scores.nbytes <= MAX_SCORES_BYTES
        self._write_array("scores", results.scores if is_small else None, results)
        self._write_curves(results)
        self._write_groups(metrics, results, about)
        point = results.used_point
        is_binary = len(self.class_names) == 2 and not is_multi_hot(results.targets)  # both classes have one AUROC
        class_auroc = None
        if (is_binary and metrics.best != "auroc") or (point and not is_binary):
            class_auroc = ranking_of(results, point.label if point else 1, self.class_names)
        interval, reason = confidence_interval(results, metrics.metric)
        atomic_write(self.folder / TABLES, json.dumps(self._tables) + "\n")
        summary = {
            **about,
            "samples": metrics.samples,
            "unreadable": len(results.errors),
            "num_classes": len(self.class_names),
            **with_old_names(metrics.known),
            "interval": interval,  # of the metric that decides
            "interval_missing": reason or None,
            "operating_point": point and figures_at(results.calibrated, point),
            "class_auroc": class_auroc,  # of the class of the operating point
            **more,
        }
        if results.temperature != 1:
            figures = {name: results.calibrated.value(METRICS[name]) for name in ("ece", "loss")}
            summary["calibrated"] = {"temperature": results.temperature} | figures
        atomic_write(self.folder / SUMMARY, indented_json(summary))
        return summary

    def _write_groups(self, metrics: Metrics, results: SampleResults, about: Values) -> None:
        """Writes the tables of the groups to a folder in this one, if there are scores and groups with one label."""
        shutil.rmtree(self.folder / GROUPS, ignore_errors=True)
        if results.groups is None or results.scores is None:
            return
        grouped = mean_by_group(replace(results.calibrated, point=results.used_point))
        names = np.unique(results.groups).tolist()
        if len(grouped.readable):
            tables = ResultTables(self.folder / GROUPS, self.class_names, names.__getitem__)
            tables.write(grouped.metrics(metrics.best), grouped, about)

    def _write_curves(self, results: SampleResults) -> None:
        """The ROC and the precision-recall curve of the class of the operating point, else of a few classes."""
        labels = range(len(self.class_names))
        if results.point:
            labels = range(results.point.label, results.point.label + 1)
        rows = list[list[Any]]()
        for label in labels:
            if results.scores is not None and len(labels) <= _MAX_CURVES:
                points = roc_points(*results.calibrated.of_class(label))
                last = len(points[0]) - 1  # -1 if the label is unknown of all samples
                chosen = np.unique(np.linspace(0, last, _MAX_POINTS if last >= 0 else 0).astype(int))[::-1]
                cells = ([f"{logit:.9g}", *map(_cell, row)] for logit, *row in np.stack(points).T[chosen].tolist())
                rows += ([label, self.class_names[label], *row] for row in cells)
        self._write_table("curves", ("label", "class", *CURVES), rows)

    def _write_array(self, name: str, values: np.ndarray | None, results: SampleResults) -> None:
        """Writes `name`.npz: values of the readable samples, with their labels and names; without values, no file."""
        file = self.folder / f"{name}.npz"
        if values is None:
            file.unlink(missing_ok=True)  # of an earlier evaluation
            return
        rows = results.readable
        names = np.array([*map(self.name, rows)], np.str_)
        classes = np.array(self.class_names, np.str_)
        arrays = {name: values[rows], "labels": results.targets[rows], "paths": names, "classes": classes}
        if results.groups is not None:
            arrays["groups"] = results.groups[rows]
        with open_atomically(file, "wb") as opened, ZipFile(opened, "w") as archive:
            for key, array in arrays.items():
                member = ZipInfo(f"{key}.npy")  # as of `np.savez`
                if array.dtype.kind == "U":  # four bytes a character, as many as the longest one has
                    member.compress_type = ZIP_DEFLATED
                with archive.open(member, "w", force_zip64=True) as stored:
                    np.lib.format.write_array(stored, array, allow_pickle=False)

    def _analyze(self, results: SampleResults) -> None:
        names = self.class_names
        figures = class_figures(results, len(names))
        pairs = confused_pairs(results, len(names))
        ranking = results.ranking
        shares = {"auroc": ranking.auroc}
        if METRICS["top5"].applies(len(names), multi_label=False):
            shares = {"top5": figures.top5} | shares
        if len(names) == 2:
            shares |= zip(OPERATING, ranking.operating, strict=True)
        # Without scores, one NaN stands for all classes.
        resized = {name: np.resize(share, len(names)) for name, share in shares.items()}
        self._write_classes(results, figures, {}, **resized)
        wrong = pairs[pairs[:, 0] != pairs[:, 1]][:MAX_PAIRS].tolist()
        pair_rows = ([names[i], names[j], number, _cell(100 * number / figures.count[i])] for i, j, number in wrong)
        self._write_table("confused_pairs", ("true", "predicted", "count", "share"), pair_rows, _SHOWN_PAIRS)
        self._write_table("calibration", _BIN_COLUMNS, _bin_rows(*results.calibrated.calibrations))
        rows = ([*map(_cell, row)] for row in coverage(results.calibrated))
        self._write_table("coverage", ("threshold", "coverage", "accuracy"), rows)
        # A row per image; the label of an image that could not be read is -1, and its classes are empty.
        paths = (safe_cell(self.name(index)) for index in range(len(results.targets)))
        targets = results.targets
        predicted = results.labels[:, 0]
        shown = [*map(safe_cell, self.class_names), ""]
        classes = ([shown[one] for one in labels] for labels in (targets, np.where(targets < 0, -1, predicted)))
        checksums = [""] * len(targets) if self.checksums is None else self.checksums
        about = range(len(targets)), paths, checksums, targets, predicted, *classes
        atomic_write(self.folder / PER_IMAGE, table_text(_IMAGE_COLUMNS, zip(*about, strict=True)))
        if len(names) <= MAX_CLASSES_IN_MATRIX:
            matrix = np.zeros((len(names), len(names)), dtype=np.int64)
            matrix[pairs[:, 0], pairs[:, 1]] = pairs[:, 2]
            atomic_write(self.folder / CONFUSION, matrix_text(names, matrix.tolist()))
            if len(names) <= _MAX_CLASSES_SHOWN:
                self._tables["confusion"] = [list(names), matrix.tolist()]
        self._write_mistakes(results)

    def _analyze_several_labels(self, results: SampleResults) -> None:
        """As `_analyze`, with the highest losses as mistakes. The true classes are joined by ' | '.

        The first bins of the calibration are of all labels together, for the page, the others of each label.
        """
        figures = results.per_class
        ranking = results.ranking
        bins = results.calibrated.calibrations
        names = [("", ""), *enumerate(self.class_names)]
        every = zip(names, [join_bins(bins), *bins], strict=True)
        rows = ([*name, *row] for name, of_label in every for row in _bin_rows(of_label))
        self._write_table("calibration", ("label", "class", *_BIN_COLUMNS), rows, NUM_BINS)
        thresholds = results.used_thresholds / results.temperature  # of the probabilities that users see
        divided = torch.from_numpy(thresholds)
        shares = {
            "ap": ranking.average_precision,
            "threshold": 100 * divided.sigmoid().numpy(),
            "probability": np.array([mean_of(np.nan_to_num(one.confidence), one.count) for one in bins]),
            "ece": np.array([one.error for one in bins]),
            **dict(zip(OPERATING, ranking.operating, strict=True)),
        }
        logits = [f"{logit:.9g}" for logit in thresholds]
        known = [str(one.count.sum()) for one in bins]
        self._write_classes(
            results, figures, {"known": known, "threshold_logit": logits}, auroc=ranking.auroc, **shares
        )
        self._write_mistakes(results)

    def _write_classes(
        self, results: SampleResults, figures: ClassFigures, texts: dict[str, list[str]], **shares: np.ndarray
    ) -> None:
        """texts, shares: further columns; shares are in percent. The limits of those that have some are the last."""
        shares = {name: getattr(figures, name) for name in ("precision", "recall", "f1", "specificity")} | shares
        shares |= limits_of_classes(results, shares)
        counts = (figures.count, figures.predicted)
        cells = (map(_cell, one) for one in shares.values())
        rows = zip(range(len(self.class_names)), self.class_names, *counts, *cells, *texts.values(), strict=True)
        self._write_table("per_class", ("label", "class", "count", "predicted", *shares, *texts), rows)

    def _write_table(
        self, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]], shown: int | None = None
    ) -> None:
        """shown: number of rows for the page; None: all."""
        cells = [[one if isinstance(one, str) else int(one) for one in row] for row in rows]
        self._tables[name] = [dict(zip(header, row, strict=True)) for row in cells[:shown]]
        safe = ([safe_cell(one) if isinstance(one, str) else one for one in row] for row in cells)
        atomic_write(self.folder / f"{name}.csv", table_text(header, safe))

    def _write_mistakes(self, results: SampleResults) -> None:
        rows = []
        names = self.class_names
        results = results.calibrated
        for index in worst_mistakes(results):
            target = results.targets[index]
            predicted = results.labels[index, 0]
            loss = float(results.losses[index])
            true_probability = np.nan if is_multi_hot(results.targets) else 100 * float(np.exp(-loss))
            probabilities = 100 * float(results.probabilities[index, 0]), true_probability
            texts = self.name(index), name_of_target(target, names), names[predicted]
            rows.append([index, *texts, *map(_cell, probabilities), f"{loss:.6g}"])
        self._write_table("mistakes", MISTAKES, rows)


def read_scores(file: Path) -> tuple[SampleResults, list[str], list[str]]:
    """The results in a file of scores, the names of their samples, and of the classes.

    Raises OSError; ValueError, KeyError, EOFError, BadZipFile: a damaged file.
    """
    with np.load(file, allow_pickle=False) as saved:
        groups = saved.get("groups")
        results = results_of_scores(saved["labels"], saved["scores"])
        return replace(results, groups=groups), saved["paths"].tolist(), saved["classes"].tolist()


_IMAGE_COLUMNS = ("index", "path", "checksum", "label", "predicted", "class", "predicted_class")
_BIN_COLUMNS = ("low", "high", "count", "confidence", "accuracy")


def _bin_rows(bins: Calibration) -> Iterator[Sequence[Any]]:
    edges = np.linspace(0, 100, len(bins.count) + 1)
    low, high, confidence, accuracy = (
        map(_cell, one) for one in (edges[:-1], edges[1:], bins.confidence, bins.accuracy)
    )
    return zip(low, high, bins.count, confidence, accuracy, strict=True)


def _cell(percent: float) -> str:
    """Four decimals; empty for a figure that is not defined."""
    return "" if np.isnan(percent) else f"{percent:.4f}"
