"""The files of a prediction: one row per image, with the ranked classes and their probabilities.

Rows are written as they are computed: a million images are a list of paths, never results or a table in memory.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from configs.flags import Prediction
from configs.schema.operating_point import OperatingPoint
from datasets.sources.samples import Samples
from engine.evaluation.files import explanation_file
from engine.evaluation.results import SampleResults, join, mean_by_group, name_of_target
from engine.progress import Metrics
from utils.files import atomic_write, open_atomically
from utils.tables import aligned_table, safe_cell, table_text, write_workbook

BATCHES_PER_WRITE = 8  # before a write, the host waits for the device
CSV_FILE, JSON_FILE, GROUPS_FILE = "predictions.csv", "predictions.json", "groups.csv"
XLSX_FILE = "predictions.xlsx"
UNKNOWN = "unknown"
_SHOWN_ROWS, _SHOWN_RANKS, _SHOWN_COLUMNS, _SHOWN_CHARS = 10, 3, 8, 48

_Image = tuple[str, list[tuple[int, float]], dict[str, str], str | None]


class Predictions:
    """The predictions of N images, and their files in `folder`.

    class_names: of all labels of the model. options: samples without a path have labels, the column `target`; maps are
    the column `explanation`. With `thresholds` (classes,), of several labels per image, the column `predicted` has the
    classes whose logits reach them; with a chosen `point`, the column `decision` its class, or another. With
    -threshold, the column `label` has the most probable class, or of several labels all classes, from that probability
    on, else "unknown".

    num_readable: the images that could be read, of the `num_done` first ones.
    """

    def __init__(
        self,
        folder: Path,
        samples: Samples,
        class_names: Sequence[str],
        options: Prediction,
        thresholds: np.ndarray | None = None,
        point: OperatingPoint | None = None,
    ) -> None:
        self._folder, self._samples, self._class_names, self._options = folder, samples, class_names, options
        self._labelled = options.path is None
        self._thresholds = thresholds
        self._point = point
        is_used = {
            "predicted": thresholds is not None,
            "decision": point is not None and point.threshold is not None,
            "label": options.threshold is not None,
            "target": self._labelled,
            "explanation": options.explain,
        }
        self._text_columns = [column for column, used in is_used.items() if used]
        self._num_ranks = min(options.top_k or len(class_names), len(class_names))
        self._kept, self._shown = list[SampleResults](), list[_Image]()
        self.num_done = self.num_readable = 0

    def write(self, parts: Iterable[SampleResults]) -> list[Path]:
        """Writes `predictions.csv`, and with -json `predictions.json`, from the results of all images in their order.

        They replace earlier files at the end. Call it under the lock of the folder. Raises OSError.
        """
        for file in self._folder.glob(".predictions.*.tmp"):  # of a killed process
            file.unlink()
        paths = [self._folder / CSV_FILE, *[self._folder / JSON_FILE] * self._options.json]
        with ExitStack() as stack:
            table, *others = (stack.enter_context(open_atomically(path)) for path in paths)
            table.write("\ufeff" * self._options.excel)  # a byte order mark, for spreadsheets
            rows = csv.writer(table, lineterminator="\n")
            rows.writerow(map(safe_cell, self._header(self._num_ranks)))
            for results in parts:
                images = [*self._images(results)]
                rows.writerows(self._cells(image, self._num_ranks) for image in images)
                for image in images:
                    path, ranked, texts, error = image
                    predictions = [{"class": self._class_names[label], "probability": one} for label, one in ranked]
                    for objects in others:  # a list, with an object in each line
                        row = json.dumps({"path": path, "predictions": predictions, **texts, "error": error})
                        objects.write(f"{',' if self.num_done else '['}\n{row}")
                    if self.num_done < _SHOWN_ROWS:
                        self._shown.append(image)
                    self.num_done += 1
                self.num_readable += len(results.readable)
                self._kept += [results] * (self._labelled or self._samples.groups is not None)
            for objects in others:
                objects.write("\n]\n")
        for name in (GROUPS_FILE, XLSX_FILE):  # of other images
            (self._folder / name).unlink(missing_ok=True)
        if self._options.excel:
            numbers = range(2, 2 * self._num_ranks + 1, 2)  # the probabilities
            with (
                open_atomically(self._folder / XLSX_FILE, "wb") as book,
                open(paths[0], newline="", encoding="utf-8-sig") as table,
            ):
                write_workbook(book, csv.reader(table), numbers)
            paths.append(self._folder / XLSX_FILE)
        if self._samples.groups is not None and self._kept[0].scores is not None:
            self._write_groups(join(self._kept), np.array([*self._samples.groups]))
            paths.append(self._folder / GROUPS_FILE)
        return paths

    def _write_groups(self, results: SampleResults, groups: np.ndarray) -> None:
        """A row per group: its readable images, and the mean probability of each class."""
        names, counts = np.unique(groups[results.readable], return_counts=True)
        grouped = mean_by_group(replace(results, groups=groups).take(results.readable))
        columns = [map(safe_cell, names), counts]
        columns += [[f"{share:.6f}" for share in shares] for shares in grouped.label_probabilities.T.tolist()]
        header = ["group", "images", *map(safe_cell, self._class_names)]
        if decisions := self._decisions(grouped, self._point.group_threshold if self._point else None):
            columns.append(map(safe_cell, decisions))
            header.append("decision")
        rows = zip(*columns, strict=True)
        atomic_write(self._folder / GROUPS_FILE, table_text(header, rows))

    def metrics(self, best: str | None) -> Metrics:
        """The metrics of labelled data, whose results are in memory. best: of `EVAL.BEST_METRIC`."""
        return replace(join(self._kept), thresholds=self._thresholds, point=self._point).metrics(best)

    def _images(self, results: SampleResults) -> Iterator[_Image]:
        """Path, (label, probability) of the most probable classes, label and target if there are some, and the error
        of an unreadable image, of the images after the `num_done` first ones."""
        names = self._class_names
        ranked = results.labels.tolist(), results.probabilities.tolist()
        with_thresholds = replace(results, thresholds=self._thresholds)
        decisions = self._decisions(results, self._point.threshold if self._point else None)
        for row, (labels, probabilities) in enumerate(zip(*ranked, strict=True)):
            index = self.num_done + row
            error = results.errors.get(index)
            classes = [(label, round(value, 6)) for label, value in zip(labels, probabilities, strict=True)]
            texts = {}
            if self._thresholds is not None:
                found = (names[label] for label in labels if with_thresholds.predicted[row, label])
                texts["predicted"] = " | ".join(found)
            if decisions:
                texts["decision"] = decisions[row]
            if self._options.threshold is not None:
                possible = classes[:1] if self._thresholds is None else classes
                labelled = (names[label] for label, value in possible if value >= self._options.threshold)
                texts["label"] = " | ".join(labelled) or UNKNOWN
            if self._labelled:
                texts["target"] = name_of_target(self._samples.targets[index], names)
            if self._options.explain:
                texts["explanation"] = explanation_file(index, self._samples.name(index))
            if error:  # the other columns are empty
                classes = []
                texts |= dict.fromkeys(texts.keys() - {"target"}, "")
            yield self._samples.listed_name(index), classes[: self._num_ranks], texts, error

    def _decisions(self, results: SampleResults, threshold: float | None) -> list[str]:
        """The class of the operating point if the score reaches the threshold, else the other class, or 'not X'.

        Empty without a threshold.
        """
        point = self._point
        if point is None or threshold is None or results.scores is None:
            return []
        other = f"not {point.name}"
        if len(self._class_names) == 2 and self._thresholds is None:
            other = self._class_names[1 - point.label]
        chosen = results.scores[:, point.label] >= threshold
        return [point.name if is_chosen else other for is_chosen in chosen]

    def _header(self, num_ranks: int) -> list[str]:
        if not self._options.top_k:
            return [self._samples.column, *self._class_names, *self._text_columns]
        columns = [f"{name}_{rank}" for rank in range(1, num_ranks + 1) for name in ("class", "probability")]
        return [self._samples.column, *columns, *self._text_columns, "error"]

    def _cells(self, image: _Image, num_ranks: int) -> list[str]:
        path, ranked, texts, error = image
        names = self._class_names
        if not self._options.top_k:  # the probability of each class; empty cells for an unreadable image
            probabilities = dict(ranked)
            wide = [f"{probabilities[label]:.6f}" if ranked else "" for label in range(len(names))]
            return [safe_cell(path), *wide, *map(safe_cell, texts.values())]
        cells = [cell for label, value in ranked[:num_ranks] for cell in (safe_cell(names[label]), f"{value:.6f}")]
        cells += [""] * (2 * num_ranks - len(cells))
        return [safe_cell(path), *cells, *map(safe_cell, texts.values()), safe_cell(error or "")]

    def table(self) -> str:
        """The first predictions for a terminal: at most three ranks, or of -format wide eight columns."""
        num_ranks = min(_SHOWN_RANKS, self._num_ranks)
        lines = [self._header(num_ranks), *(self._cells(image, num_ranks) for image in self._shown)]
        if not self._options.top_k:
            lines = [row[:_SHOWN_COLUMNS] for row in lines]
        header, *rows = lines
        more = self.num_done - len(self._shown)
        return aligned_table(header, rows, _SHOWN_CHARS) + (f"\n... and {more} more" if more else "")
