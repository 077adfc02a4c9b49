"""The files of a prediction: one row per image, with the ranked classes and their probabilities.

Rows are written as they are computed: a million images are a list of paths, never results or a table in memory.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from configs.flags import Prediction
from configs.schema.operating_point import OperatingPoint, probability_of
from datasets.sources.samples import Samples
from engine.evaluation.files import EXPLANATIONS, explanation_file
from engine.evaluation.ranking import reaches
from engine.evaluation.results import TOP_K, SampleResults, join_results, mean_by_group, name_of_target
from engine.progress import Metrics
from utils.distributed import ProcessContext, call_on_main
from utils.files import atomic_write, open_atomically, without_none
from utils.tables import aligned_table, safe_cell, table_text, write_workbook

# before a write, the host waits for the device
BATCHES_PER_WRITE = 8
_CLASSES_PER_WRITE = 8000
CSV_FILE = "predictions.csv"
JSON_FILE = "predictions.json"
GROUPS_FILE = "groups.csv"
COUNTS_FILE = "counts.csv"
XLSX_FILE = "predictions.xlsx"
UNKNOWN = "unknown"  # of -threshold
THRESHOLD = "decision_threshold"
_DECISION = ("decision", THRESHOLD)
REVIEW = "needs_review"
_COUNTED = ("label", "decision", "predicted")  # in the file of counts: the first of these columns, else the best class
_THREE_DIGITS = np.array([f"{number:03}".encode() for number in range(1000)])
_SHOWN_ROWS = 10
_SHOWN_RANKS = 3
_SHOWN_COLUMNS = 8
_SHOWN_CHARS = 48

_Text = str | float
# Path, labels and probabilities of the most probable classes, texts of the columns, and the error.
_Image = tuple[str, np.ndarray, np.ndarray, dict[str, _Text], str | None]


def batches_per_write(num_ranked: int) -> int:
    """Of many ranked classes, the results of one batch."""
    return max(1, min(BATCHES_PER_WRITE, _CLASSES_PER_WRITE // num_ranked))


def free_name(name: str, class_names: Sequence[str]) -> str:
    """The name, with an addition if a class has it, also in another case."""
    known = {one.casefold() for one in class_names}
    while name.casefold() in known:
        name += " (no class)"
    return name


def decision_names(point: OperatingPoint, class_names: Sequence[str], is_multi_label: bool) -> tuple[str, str]:
    """Below the threshold of the point, and from it on."""
    if len(class_names) == 2 and not is_multi_label:
        return class_names[1 - point.label], point.name
    return free_name(f"not {point.name}", class_names), point.name


@dataclass(eq=False)
class Predictions:
    """The predictions of N images, and their files in `folder`.

    class_names: of all labels of the model. options: samples without a path have labels, the column `target`; maps are
    the column `explanation`. With `thresholds` (classes,), of several labels per image, the column `predicted` has the
    classes whose logits reach them; with a chosen `point`, the column `decision` its class, or another, and
    `decision_threshold` the probability of the class that decides. With -threshold, the column `label` has the most
    probable class, or of several labels all classes, from that probability on, else `UNKNOWN`. With `review`
    (EVAL.REVIEW), the column `needs_review` is yes or no.

    num_readable: the images that could be read, of the `num_done` first ones.
    """

    folder: Path
    samples: Samples
    class_names: Sequence[str]
    options: Prediction
    thresholds: np.ndarray | None = None
    point: OperatingPoint | None = None
    review: float | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        options = self.options
        self._unknown = free_name(UNKNOWN, self.class_names)
        logits = {"image": self.point.threshold} if self.point else {}
        if self.point and self.samples.groups is not None:
            logits["group"] = self.point.group_threshold
        self._decides_from = without_none(logits)
        columns = (
            ("predicted", self.thresholds is not None, self._predicted),
            ("decision", "image" in self._decides_from, partial(self._decisions, "image")),
            (THRESHOLD, "image" in self._decides_from, partial(self._decision_thresholds, "image")),
            ("label", options.threshold is not None, self._labels),
            (REVIEW, self.review is not None, self._reviews),
            ("target", options.path is None, self._targets),
            ("explanation", options.explain, self._explanations),
        )
        self._columns: dict[str, Callable[[SampleResults], Sequence[_Text]]] = {
            name: texts_of for name, applies, texts_of in columns if applies
        }
        number = len(self.class_names)
        self._num_ranks = min(options.top_k or number, number)
        self._counts = defaultdict[tuple[str, str], list[int]](lambda: [0, 0])  # images, and those to review
        self._kept = list[SampleResults]()
        self._shown = list[_Image]()
        self.num_done = self.num_readable = self._num_to_review = 0

    def write(self, parts: Iterable[SampleResults | None], context: ProcessContext) -> list[Path]:
        """Writes `predictions.csv`, and with -json `predictions.json`, from the results of all images in their order.

        They replace earlier files at the end. Call it on all ranks, under the lock of the folder; the main process
        writes. Raises OSError.
        """
        paths = [self.folder / CSV_FILE, *[self.folder / JSON_FILE] * self.options.json]
        with ExitStack() as files:
            call_on_main(lambda: self._open(files, paths), context)
            for results in parts:
                call_on_main(partial(self._add, results), context)
            call_on_main(lambda: self._close(files, paths), context)
        return paths

    def _open(self, files: ExitStack, paths: Sequence[Path]) -> None:
        of_others = [*self.folder.glob(".predictions.*.tmp")]  # of a killed process
        maps = self.folder / EXPLANATIONS
        if not maps.is_symlink():
            of_others += maps.glob(f"{'[0-9]' * 6}*-*.png")
        for file in of_others:
            file.unlink()
        table, *self._objects = (files.enter_context(open_atomically(path)) for path in paths)
        table.write("\ufeff" * self.options.excel)  # a byte order mark, for spreadsheets
        self._table = table
        self._rows = csv.writer(table, lineterminator="\n")
        self._rows.writerow(map(safe_cell, self._header(self._num_ranks)))

    def _add(self, results: SampleResults | None) -> None:
        """Writes a row at a time: of many classes, the cells of a batch take gigabytes."""
        assert results
        columns = {name: texts_of(results) for name, texts_of in self._columns.items()}
        for row in range(len(results.labels)):
            path = self.samples.listed_name(self.num_done)
            texts = {name: column[row] for name, column in columns.items()}
            error = results.errors.get(self.num_done)
            number = self._num_ranks
            if error:  # the other columns are empty
                number = 0
                texts |= dict.fromkeys(texts.keys() - {"target"}, "")
            labels = results.labels[row, :number]
            probabilities = results.calibrated.probabilities[row, :number]
            self._write_row((path, labels, probabilities, texts, error))
            for objects in self._objects:  # a list, with an object in each line
                ranked = zip(labels.tolist(), probabilities.tolist(), strict=True)
                predictions = [{"class": self.class_names[label], "probability": round(p, 6)} for label, p in ranked]
                line = json.dumps({"path": path, "predictions": predictions, **texts, "error": error})
                objects.write(f"{',' if self.num_done else '['}\n{line}")
            needs_review = texts.get(REVIEW) == "yes"
            self._num_to_review += needs_review
            if self.samples.groups is not None and not error:
                likeliest = self.class_names[labels[0]]
                label = str(next((texts[name] for name in _COUNTED if name in texts), likeliest))
                counts = self._counts[self.samples.groups[self.num_done], label]
                counts[0] += 1
                counts[1] += needs_review
            if self.num_done < _SHOWN_ROWS or (error and len(self._shown) < 2 * _SHOWN_ROWS):
                self._shown.append((path, labels.copy(), probabilities.copy(), texts, error))
            self.num_done += 1
        self.num_readable += len(results.readable)
        if self.options.path is None or self.samples.groups is not None:
            best, probabilities = (array[:, :TOP_K].copy() for array in (results.labels, results.probabilities))
            self._kept.append(replace(results, labels=best, probabilities=probabilities))

    def _write_row(self, image: _Image) -> None:
        """The numbers of all classes are joined here: `csv` takes as long for them as their formats."""
        path, labels, probabilities, texts, error = image
        if self.options.top_k or error:
            self._rows.writerow(self._cells(image, self._num_ranks))
            return
        row = table_text([safe_cell(path), "\0", *map(safe_cell, texts.values())], ())  # "\0" is in no path
        self._table.write(row.replace("\0", self._of_all_classes(labels, probabilities), 1))

    def _of_all_classes(self, labels: np.ndarray, probabilities: np.ndarray) -> str:
        """The probability of each class, in the order of the labels."""
        number = len(self.class_names)
        in_order = np.empty(number)
        in_order[labels] = probabilities
        if number < 100 or np.isnan(in_order).any():  # of few classes, the calls of numpy take longer
            return ",".join(["%.6f"] * number) % tuple(in_order.tolist())
        millionths = np.rint(in_order * 1e6).astype(np.int32)  # exact in float64: the probabilities are float32
        thousandths, last_digits = np.divmod(millionths, 1000)
        cells = np.empty(number, "S2, S3, S3, S1")
        cells["f0"] = np.where(thousandths < 1000, b"0.", b"1.")
        cells["f1"] = _THREE_DIGITS[thousandths % 1000]
        cells["f2"] = _THREE_DIGITS[last_digits]
        cells["f3"] = b","
        return cells.tobytes()[:-1].decode()

    def _close(self, files: ExitStack, paths: list[Path]) -> None:
        for objects in self._objects:
            objects.write("\n]\n")
        for name in (JSON_FILE, GROUPS_FILE, COUNTS_FILE, XLSX_FILE):  # of other images
            (self.folder / name).unlink(missing_ok=True)
        files.close()
        if self.options.excel:
            with (
                open_atomically(self.folder / XLSX_FILE, "wb") as book,
                open(paths[0], newline="", encoding="utf-8-sig") as table,
            ):
                columns = enumerate(self._header(self._num_ranks)[1:], 1)  # the first one is the path
                numbers = [index for index, name in columns if name.startswith(("probability_", THRESHOLD))]
                write_workbook(book, csv.reader(table), numbers)
            paths.append(self.folder / XLSX_FILE)
        if self._counts:
            header = ["group", "label", "images", *[REVIEW] * (REVIEW in self._columns)]
            rows = [[*map(safe_cell, key), *counts][: len(header)] for key, counts in sorted(self._counts.items())]
            atomic_write(self.folder / COUNTS_FILE, table_text(header, rows))
            paths.append(self.folder / COUNTS_FILE)
        if self.samples.groups is not None and self._kept[0].scores is not None:
            self._write_groups(join_results(self._kept), np.array([*self.samples.groups]))
            paths.append(self.folder / GROUPS_FILE)

    def _write_groups(self, results: SampleResults, groups: np.ndarray) -> None:
        """A row per group: its readable images, and the mean probability of each class."""
        names, counts = np.unique(groups[results.readable], return_counts=True)
        grouped = mean_by_group(replace(results, groups=groups).calibrated.take(results.readable))
        group, images, *others = (free_name(name, self.class_names) for name in ("group", "images", *_DECISION))
        columns = [map(safe_cell, names), counts]
        columns += [[f"{share:.6f}" for share in shares] for shares in grouped.label_probabilities.T.tolist()]
        header = [group, images, *map(safe_cell, self.class_names)]
        if "group" in self._decides_from:
            columns += [map(safe_cell, self._decisions("group", grouped)), self._decision_thresholds("group", grouped)]
            header += others
        rows = zip(*columns, strict=True)
        atomic_write(self.folder / GROUPS_FILE, table_text(header, rows))

    def metrics(self, best: str | None) -> Metrics:
        """The metrics of labelled data, whose results are in memory. best: of `EVAL.BEST_METRIC`."""
        return replace(join_results(self._kept), thresholds=self.thresholds, point=self.point).metrics(best)

    def _predicted(self, results: SampleResults) -> list[str]:
        predicted = replace(results, thresholds=self.thresholds).predicted
        return [
            self._names_of(labels[is_predicted[labels]])
            for labels, is_predicted in zip(results.labels, predicted, strict=True)
        ]

    def _names_of(self, labels: np.ndarray) -> str:
        return " | ".join(self.class_names[label] for label in labels.tolist())

    def _decisions(self, of: str, results: SampleResults) -> list[str]:
        """The class of the operating point if the score reaches the threshold, else the other class, or 'not X'.

        of: images or groups, whose thresholds differ.
        """
        scores = results.calibrated.scores
        assert self.point and scores is not None  # with more classes there is no point
        names = decision_names(self.point, self.class_names, self.thresholds is not None)
        is_chosen = reaches(scores[:, self.point.label], self._decides_from[of])
        return [names[one] for one in is_chosen.astype(int)]

    def _labels(self, results: SampleResults) -> list[str]:
        number = 1 if self.thresholds is None else None  # of the classes that may be labels
        found = []
        probabilities = results.calibrated.probabilities[:, :number]
        for labels, values in zip(results.labels[:, :number], probabilities, strict=True):
            is_chosen = np.round(values.astype(np.float64), 6) >= self.options.threshold  # as in the table
            found.append(self._names_of(labels[is_chosen]) or self._unknown)
        return found

    def _reviews(self, results: SampleResults) -> list[str]:
        low, high = self.review if isinstance(self.review, tuple) else (0.0, self.review or 0.0)
        results = results.calibrated
        values = results.probabilities[:, :1]
        if low and self.point:
            values = results.label_probabilities[:, [self.point.label]]
        elif low and self.thresholds is not None:
            values = results.label_probabilities
        rounded = np.round(values.astype(np.float64), 6)
        is_between = (rounded >= low) & (rounded < high)
        return ["yes" if row.any() else "no" for row in is_between]

    def _targets(self, results: SampleResults) -> list[str]:
        targets = self.samples.targets[self.num_done :][: len(results.labels)]
        return [name_of_target(target, self.class_names) for target in targets]

    def _explanations(self, results: SampleResults) -> list[str]:
        indices = range(self.num_done, self.num_done + len(results.labels))
        return [explanation_file(index, self.samples.name(index)) for index in indices]

    def _decision_thresholds(self, of: str, results: SampleResults) -> list[float]:
        """The probability from which on `_decisions` has the class."""
        return [round(probability_of(self._decides_from[of]), 6)] * len(results.labels)

    @property
    def lines(self) -> list[str]:
        """For the screen: the thresholds of the operating point; the word of -threshold, if a class has `UNKNOWN`; how
        many images need a review.
        """
        lines = []
        if self.point and self._decides_from:
            texts = [f"{one} from p {probability_of(logit):.4g} on" for one, logit in self._decides_from.items()]
            lines.append(f"Decision: {self.point.name} of each {', '.join(texts)}, for {self.point.title}")
        if self.options.threshold is not None and self._unknown != UNKNOWN:
            lines.append(f"Images below -threshold have the label '{self._unknown}', as a class is called {UNKNOWN}")
        if REVIEW in self._columns:
            lines.append(f"{self._num_to_review} of {self.num_done} images need review")
        return lines

    def _header(self, num_ranks: int) -> list[str]:
        names = self.class_names
        if not self.options.top_k:
            others = [free_name(name, names) for name in (self.samples.column, *self._columns)]
            return [others[0], *names, *others[1:]]
        columns = [f"{name}_{rank}" for rank in range(1, num_ranks + 1) for name in ("class", "probability")]
        return [self.samples.column, *columns, *self._columns, "error"]

    def _cells(self, image: _Image, num_ranks: int) -> list[str]:
        path, labels, probabilities, texts, error = image
        names = self.class_names
        if not self.options.top_k:
            wide = [""] * len(names) if error else self._of_all_classes(labels, probabilities).split(",")
            return [safe_cell(path), *wide, *map(safe_cell, texts.values())]
        ranked = zip(labels[:num_ranks].tolist(), probabilities[:num_ranks].tolist(), strict=True)
        cells = [cell for label, value in ranked for cell in (safe_cell(names[label]), f"{value:.6f}")]
        cells += [""] * (2 * num_ranks - len(cells))
        return [safe_cell(path), *cells, *map(safe_cell, texts.values()), safe_cell(error or "")]

    def table(self) -> str:
        """The first predictions, and as many later errors, for a terminal: at most three ranks, or eight columns."""
        num_ranks = min(_SHOWN_RANKS, self._num_ranks)
        lines = [self._header(num_ranks), *(self._cells(image, num_ranks) for image in self._shown)]
        if not self.options.top_k:
            lines = [row[:_SHOWN_COLUMNS] for row in lines]
        header, *rows = lines
        more = self.num_done - len(self._shown)
        return aligned_table(header, rows, _SHOWN_CHARS) + (f"\n... and {more} more" if more else "")
