"""The files of a prediction: one row per image, with the ranked classes and their probabilities.

Rows are written one by one: a million images are arrays and a list of paths, never a table in memory.
Legend: N images, K ranked classes.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from datasets.sources.samples import Samples
from engine.evaluation.results import SampleResults
from utils.atomic_file import open_atomically
from utils.tables import aligned_table, safe_cell

CSV_FILE, JSON_FILE = "predictions.csv", "predictions.json"
_SHOWN_RANKS, _SHOWN_CHARS = 3, 48


@dataclass(frozen=True)
class ImagePrediction:
    """An image: its classes, the most probable first, with probabilities from 0 to 1; none if it cannot be read."""

    path: str
    classes: Sequence[str]
    probabilities: Sequence[float]
    target: str | None
    error: str | None


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

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[ImagePrediction]:
        return self._named(self._class_names)

    def _named(self, names: Sequence[str]) -> Iterator[ImagePrediction]:
        """Replaces the class names."""
        results = self._results
        targets = self._samples.targets
        for index in range(len(self)):
            error = results.errors.get(index)
            num_ranks = 0 if error else self._num_ranks
            probabilities = results.probabilities[index, :num_ranks].tolist()
            yield ImagePrediction(
                path=self._samples.name(index).removeprefix("./"),
                classes=[names[label] for label in results.labels[index, :num_ranks].tolist()],
                probabilities=[round(probability, 6) for probability in probabilities],
                target=_name_of(targets[index], names) if self._labelled else None,
                error=error,
            )

    def write_csv(self, folder: Path) -> Path:
        """Writes `predictions.csv` atomically; raises OSError."""
        ranks = range(1, self._num_ranks + 1)
        header = ["path", *(f"{name}_{rank}" for rank in ranks for name in ("class", "probability"))]
        header += ["target"] * self._labelled + ["error"]
        with open_atomically(folder / CSV_FILE) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            for image in self._named([safe_cell(name) for name in self._class_names]):
                cells = [safe_cell(image.path)]
                for name, probability in zip(image.classes, image.probabilities, strict=True):
                    cells += [name, f"{probability:.6f}"]
                cells += [""] * (2 * len(ranks) + 1 - len(cells))
                cells += [image.target or ""] if self._labelled else []
                writer.writerow([*cells, safe_cell(image.error or "")])
        return folder / CSV_FILE

    def write_json(self, folder: Path) -> Path:
        """Writes `predictions.json` atomically: a list of objects, one in each line. Raises OSError."""
        with open_atomically(folder / JSON_FILE) as file:
            separator = "[\n"
            for image in self:
                file.write(separator + json.dumps(self._as_object(image)))
                separator = ",\n"
            file.write("\n]\n")
        return folder / JSON_FILE

    def _as_object(self, image: ImagePrediction) -> dict[str, Any]:
        ranked = zip(image.classes, image.probabilities, strict=True)
        predictions = [{"class": name, "probability": probability} for name, probability in ranked]
        target = {"target": image.target} if self._labelled else {}
        return {"path": image.path, "predictions": predictions, **target, "error": image.error}

    def table(self, rows: int) -> str:
        """The first `rows` predictions with at most three classes, as text for a terminal."""
        shown, num_ranks = list(islice(self, rows)), min(_SHOWN_RANKS, self._num_ranks)
        has_errors = any(image.error for image in shown)
        header = ["path", *(cell for rank in range(1, num_ranks + 1) for cell in (f"class {rank}", ""))]
        header += ["target"] * self._labelled + ["error"] * has_errors
        lines = []
        for image in shown:
            ranked = islice(zip(image.classes, image.probabilities, strict=True), num_ranks)
            cells = [cell for name, probability in ranked for cell in (name, f"{probability:.4f}")]
            cells = cells or [""] * (2 * num_ranks)
            cells += [image.target or ""] * self._labelled + [image.error or ""] * has_errors
            lines.append([image.path, *cells])
        more = len(self) - len(shown)
        return aligned_table(header, lines, _SHOWN_CHARS) + (f"\n... and {more} more" if more else "")


def _name_of(target: np.ndarray, names: Sequence[str]) -> str:
    """The class of a target (), or the classes of a multi-hot target (C,) with ' | ' between them."""
    labels: list[int] = [int(target)] if target.ndim == 0 else np.flatnonzero(target).tolist()
    return " | ".join(names[label] for label in labels)
