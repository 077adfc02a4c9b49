"""The files of a prediction: one row per image, with the ranked classes and their probabilities.

Rows are written one by one: a million images are a list of paths, never results or a table in memory.
Legend: N images, K ranked classes.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import compress, islice
from pathlib import Path
from typing import Any

import numpy as np

from configs.reading.prediction import Prediction
from datasets.sources.samples import Samples
from engine.evaluation.pictures import explanation_file
from engine.evaluation.results import PartFile, SampleResults, name_of_target
from utils.files import open_atomically
from utils.metrics import Metrics
from utils.tables import aligned_table, safe_cell

CSV_FILE, JSON_FILE = "predictions.csv", "predictions.json"
UNKNOWN = "unknown"
_SHOWN_RANKS, _SHOWN_CHARS = 3, 48

_Image = tuple[str, list[tuple[str, float]], dict[str, str], str | None]


class Predictions:
    """The predictions of N images.

    class_names: of all labels of the model. options: samples without a path have labels, the column `target`; maps are
    the column `explanation`. With a threshold, the column `label` has the most probable class, or if `multi_label` all
    classes, from that probability on, else "unknown".
    """

    def __init__(
        self, part: PartFile, samples: Samples, class_names: Sequence[str], options: Prediction, multi_label: bool
    ) -> None:
        self._part, self._samples, self._class_names, self._options = part, samples, class_names, options
        self._labelled, self._max_labels = options.path is None, None if multi_label else 1
        self._num_ranks = min(options.top_k or len(class_names), len(class_names))
        self.num_readable = sum(len(results.readable) for results in part)

    def metrics(self, best: str | None) -> Metrics:
        """The metrics of labelled data, whose results are in memory then. best: of `EVAL.BEST_METRIC`."""
        columns = [vars(results) for results in self._part]
        names = [name for name, values in columns[0].items() if isinstance(values, np.ndarray)]
        arrays: dict[str, Any] = {name: np.concatenate([column[name] for column in columns]) for name in names}
        return SampleResults(**arrays).metrics(best)

    def _images(self, names: Sequence[str], num_ranks: int) -> Iterator[_Image]:
        """Path, (class, probability) of the most probable classes, label and target if there are some, and the error
        of an unreadable image."""
        index = 0
        for results in self._part:
            ranked = results.labels.tolist(), results.probabilities.tolist()
            for labels, probabilities in zip(*ranked, strict=True):
                error = results.errors.get(index)
                classes = [(names[label], round(value, 6)) for label, value in zip(labels, probabilities, strict=True)]
                texts = {} if self._options.threshold is None else {"label": "" if error else self._label(classes)}
                if self._labelled:
                    texts["target"] = name_of_target(self._samples.targets[index], names)
                path = self._samples.name(index)
                if self._options.explain:
                    texts["explanation"] = "" if error else explanation_file(index, path)
                yield path.removeprefix("./"), [] if error else classes[:num_ranks], texts, error
                index += 1

    def _label(self, classes: list[tuple[str, float]]) -> str:
        labels = [name for name, value in classes[: self._max_labels] if value >= (self._options.threshold or 0)]
        return " | ".join(labels) or UNKNOWN

    def _rows(self, names: Sequence[str], num_ranks: int) -> Iterator[list[str]]:
        """The header, and the cells of each image."""
        ranks = range(1, num_ranks + 1)
        columns = [f"{name}_{rank}" for rank in ranks for name in ("class", "probability")]
        is_used = self._options.threshold is not None, self._labelled, self._options.explain
        yield ["path", *columns, *compress(("label", "target", "explanation"), is_used), "error"]
        for path, ranked, texts, error in self._images(names, num_ranks):
            cells = [cell for name, probability in ranked for cell in (name, f"{probability:.6f}")]
            cells += [""] * (len(columns) - len(cells))
            yield [safe_cell(path), *cells, *texts.values(), safe_cell(error or "")]

    def _wide_rows(self, names: Sequence[str]) -> Iterator[list[str]]:
        """The header, and the probability of each class for each image; empty cells for an unreadable image."""
        is_used = self._options.threshold is not None, self._labelled, self._options.explain
        yield ["path", *names, *compress(("label", "target", "explanation"), is_used)]
        for path, ranked, texts, _ in self._images(names, len(names)):
            probability_of = dict(ranked)
            cells = [f"{probability_of[name]:.6f}" if ranked else "" for name in names]
            yield [safe_cell(path), *cells, *texts.values()]

    def write_csv(self, folder: Path, excel: bool = False) -> Path:
        """Writes `predictions.csv` atomically; raises OSError. excel: with a byte order mark, for spreadsheets."""
        with open_atomically(folder / CSV_FILE) as file:
            file.write("\ufeff" * excel)
            names = [safe_cell(name) for name in self._class_names]
            rows = self._rows(names, self._num_ranks) if self._options.top_k else self._wide_rows(names)
            csv.writer(file, lineterminator="\n").writerows(rows)
        return folder / CSV_FILE

    def write_json(self, folder: Path) -> Path:
        """Writes `predictions.json` atomically: a list of objects, one in each line. Raises OSError."""
        with open_atomically(folder / JSON_FILE) as file:
            separator = "[\n"
            for path, ranked, texts, error in self._images(self._class_names, self._num_ranks):
                predictions = [{"class": name, "probability": probability} for name, probability in ranked]
                image = {"path": path, "predictions": predictions, **texts, "error": error}
                file.write(separator + json.dumps(image))
                separator = ",\n"
            file.write("\n]\n")
        return folder / JSON_FILE

    def table(self, rows: int) -> str:
        """The first `rows` predictions, and as many later errors, with at most three classes, for a terminal."""
        images = self._rows(self._class_names, min(_SHOWN_RANKS, self._num_ranks))
        header, *lines = islice(images, rows + 1)
        lines += islice((row for row in images if row[-1]), rows)
        more = len(self._samples) - len(lines)
        return aligned_table(header, lines, _SHOWN_CHARS) + (f"\n... and {more} more" if more else "")
