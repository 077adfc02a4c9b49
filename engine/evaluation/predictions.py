"""The files of a prediction: one row per image, with the ranked classes and their probabilities.

Rows are written one by one: a million images are arrays and a list of paths, never a table in memory.
Legend: N images, K ranked classes.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from datasets.sources.samples import Samples
from engine.evaluation.results import SampleResults
from utils.atomic_file import open_atomically
from utils.tables import aligned_table, safe_cell

CSV_FILE, JSON_FILE = "predictions.csv", "predictions.json"
_SHOWN_RANKS, _SHOWN_CHARS = 3, 48

_Image = tuple[str, list[tuple[str, float]], str, str | None]


class Predictions:
    """The predictions of N images.

    class_names: of all labels of the model. top_k: classes per image, if the model has as many. labelled: whether the
    samples have labels, which are then the column `target`.
    """

    def __init__(
        self, samples: Samples, results: SampleResults, class_names: Sequence[str], top_k: int, labelled: bool
    ) -> None:
        self._samples, self._results, self._class_names, self._labelled = samples, results, class_names, labelled
        self._num_ranks = min(top_k, results.labels.shape[1])
        self.num_readable = len(results.readable)

    def _images(self, names: Sequence[str], num_ranks: int) -> Iterator[_Image]:
        """Path, (class, probability) of the most probable classes, target, and the error of an unreadable image."""
        results = self._results
        for index in range(len(self._samples)):
            error = results.errors.get(index)
            labels, probabilities = results.labels[index, :num_ranks], results.probabilities[index, :num_ranks]
            ranked = zip((names[label] for label in labels.tolist()), probabilities.tolist(), strict=True)
            target = _name_of(self._samples.targets[index], names) if self._labelled else ""
            path = self._samples.name(index).removeprefix("./")
            yield path, [] if error else [(name, round(value, 6)) for name, value in ranked], target, error

    def _rows(self, names: Sequence[str], num_ranks: int) -> Iterator[list[str]]:
        """The header, and the cells of each image."""
        ranks = range(1, num_ranks + 1)
        columns = [f"{name}_{rank}" for rank in ranks for name in ("class", "probability")]
        yield ["path", *columns, *["target"] * self._labelled, "error"]
        for path, ranked, target, error in self._images(names, num_ranks):
            cells = [cell for name, probability in ranked for cell in (name, f"{probability:.6f}")]
            cells += [""] * (len(columns) - len(cells))
            yield [safe_cell(path), *cells, *[target] * self._labelled, safe_cell(error or "")]

    def write_csv(self, folder: Path) -> Path:
        """Writes `predictions.csv` atomically; raises OSError."""
        with open_atomically(folder / CSV_FILE) as file:
            names = [safe_cell(name) for name in self._class_names]
            csv.writer(file, lineterminator="\n").writerows(self._rows(names, self._num_ranks))
        return folder / CSV_FILE

    def write_json(self, folder: Path) -> Path:
        """Writes `predictions.json` atomically: a list of objects, one in each line. Raises OSError."""
        with open_atomically(folder / JSON_FILE) as file:
            separator = "[\n"
            for path, ranked, target, error in self._images(self._class_names, self._num_ranks):
                predictions = [{"class": name, "probability": probability} for name, probability in ranked]
                targets = {"target": target} if self._labelled else {}
                image = {"path": path, "predictions": predictions, **targets, "error": error}
                file.write(separator + json.dumps(image))
                separator = ",\n"
            file.write("\n]\n")
        return folder / JSON_FILE

    def table(self, rows: int) -> str:
        """The first `rows` predictions with at most three classes, as text for a terminal."""
        header, *lines = islice(self._rows(self._class_names, min(_SHOWN_RANKS, self._num_ranks)), rows + 1)
        more = len(self._samples) - len(lines)
        return aligned_table(header, lines, _SHOWN_CHARS) + (f"\n... and {more} more" if more else "")


def _name_of(target: np.ndarray, names: Sequence[str]) -> str:
    """The class of a target (), or the classes of a multi-hot target (C,) with ' | ' between them."""
    labels: list[int] = [int(target)] if target.ndim == 0 else np.flatnonzero(target).tolist()
    return " | ".join(names[label] for label in labels)
