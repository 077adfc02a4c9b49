"""A run as its page shows it: its record and its evaluations, from its folder, or from memory at its end."""

import csv
import hashlib
import os
import socket
import textwrap
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from configs.compare import values_of, with_defaults
from configs.load import RUN_OPTIONS
from configs.schema import Config
from configs.schema.data import properties_of
from configs.yaml_io import Values, read_yaml
from engine.run.facts import SPLITS, Fact, PixelBaseline, read_fact
from engine.run.record import (
    EVALUATION,
    GROUPS,
    SUSPECTS,
    TEST_EVALUATION,
    Row,
    RunRecord,
    by_epoch,
    read_evaluation,
    read_metrics,
    read_run,
)
from utils.errors import UserError, on_one_line
from utils.metric_table import METRICS, Metric, best_metric
from utils.notes import UNFINISHED
from utils.tables import read_csv_rows, to_float, unescaped_cell

LARGEST = 1e150  # in a chart; the axes of larger numbers, and of numbers below its inverse, are no numbers
_WITHOUT_PAGE = ("predict-", "embed-", "profile-")  # folders of these commands
_MAX_STATUS_CHARS = 50
_SHOWN = 24  # suspect labels
_SUSPECT = {"split", "path", "label", "predicted", "probability", "label_probability"}  # their columns

_F = TypeVar("_F", bound=Fact)
Rows = list[dict[str, str]]


@dataclass(frozen=True)
class EvaluationContents:
    """The files of an evaluation. values: of `summary.json` and `tables.json`; empty, and false, without files."""

    folder: Path
    values: Mapping[str, Any]

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def split(self) -> str:
        """The evaluated images: validation, training or test; '' if they are no known split."""
        return SPLITS.get(str(self.values.get("split")), "")

    def rows(self, table: str, *needed: str) -> list[Row]:
        """The rows of a table that have the needed columns."""
        return [row for row in self.values.get(table, []) if row.keys() >= {*needed}]

    @property
    def groups(self) -> "EvaluationContents":
        """The evaluation of the means of groups."""
        return evaluation_in(self.folder / GROUPS)

    @property
    def classes(self) -> list[Row]:
        return self.rows("per_class", "class")

    def by_class(self, column: str) -> list[tuple[float, float, str]]:
        """A figure of each class that has it, the number of its images, and its name."""
        return [(x, count, row["class"]) for row in self.classes for x, count in points([row], column, "count")]


def evaluation_in(folder: Path) -> EvaluationContents:
    """The evaluation whose files are in the folder; empty without files that can be read."""
    return EvaluationContents(folder, read_evaluation(folder))


@dataclass(frozen=True)
class RunContents:
    """A run that trained or evaluated.

    options: all options by dotted key. values: of `run.json`. epochs: the rows of `metrics.csv`.
    evaluation: of the validation images, or of `-eval`. test: of the held-out test images.
    The others are for the page only: reports: the rows of the log lines of training. suspects: the first rows of the
    list of suspect labels.
    """

    folder: Path
    options: Values
    values: Mapping[str, Any]
    epochs: list[Row]
    evaluation: EvaluationContents
    test: EvaluationContents
    reports: list[Row] = field(default_factory=list)
    suspects: Rows = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def fact(self, kind: type[_F]) -> _F | None:
        return read_fact(self.values, kind)

    @property
    def is_evaluation(self) -> bool:
        return self.options["EVAL.ENABLED"] is True

    @property
    def is_multi_label(self) -> bool:
        return self.options["DATA.MULTI_LABEL"] is True

    def shows(self, metric: Metric) -> bool:
        """Returns whether the metric is for such labels, and for so many classes; for grades, whether one decides."""
        fits = metric.multi_label in (None, self.is_multi_label) and metric.is_ordinal <= self.metric.is_ordinal
        return fits and (to_float(self.options["MODEL.NUM_CLASSES"]) or 1) >= metric.min_classes

    @property
    def metric(self) -> Metric:
        """The metric that decides which epoch is the best."""
        return best_metric(self.options["EVAL.BEST_METRIC"], self.is_multi_label)

    @property
    def best(self) -> tuple[int, float] | None:
        """The best epoch (from 1) and the value of the metric; None without an evaluation."""
        return best_epoch(self.epochs, self.metric)

    @property
    def best_of_all(self) -> str:
        """'3 of 300' epochs; '' without an evaluation."""
        return f"{self.best[0]} of {self.options['TRAIN.NUM_EPOCHS']}" if self.best else ""

    @property
    def split(self) -> str:
        """The images of the result: validation, training or test; '' if `-eval` knows no split."""
        return self.evaluation.split if self.is_evaluation else SPLITS["val"]

    def earlier_epoch(self, evaluation: EvaluationContents) -> str:
        """'epoch 12' if the files of an evaluation are of this epoch, and a later one is better: there was no time."""
        epoch = evaluation.values.get("epoch")
        return f"epoch {epoch}" if self.best and epoch not in (None, self.best[0]) else ""

    @property
    def evaluated(self) -> str:
        """'validation' or 'epoch 12 validation': the images of the files of the evaluation."""
        return f"{self.earlier_epoch(self.evaluation)} {self.split}".strip()

    @property
    def latest(self) -> tuple[EvaluationContents, str]:
        """The evaluation of the test images if there is one, else of the result; and the name of its images."""
        return (self.test, SPLITS["test"]) if self.test else (self.evaluation, self.evaluated)

    @cached_property
    def figures(self) -> dict[str, float]:
        """The metrics of the best epoch, or of the evaluation, by name; without unknown ones."""
        best = self.best
        row = next((row for row in self.epochs if best and row["epoch"] == best[0]), {})
        of_epoch = {name: row.get(f"val_{name}") for name in METRICS}
        sources = (self.evaluation.values, of_epoch, self.values["result"])
        found = ((name, to_float(source.get(name))) for source in sources for name in METRICS)
        return {name: value for name, value in found if value is not None}

    @property
    def score(self) -> float | None:
        """The value of the metric; None without an evaluation."""
        return self.figures.get(self.metric.name)

    @property
    def test_score(self) -> float | None:
        """The value of the metric on the held-out test images; None if there are none."""
        return to_float(self.test_result.get(self.metric.name))

    @property
    def test_result(self) -> Values:
        test = self.values["result"].get("test")
        return test if isinstance(test, dict) else {}

    def measured(self, name: str) -> float | None:
        """A figure of the result or of `PixelBaseline`; of a run in progress, up to the last complete epoch."""
        latest = self.epochs[-1].get(name) if self.epochs else None
        for value in (self.values["result"].get(name), getattr(self.fact(PixelBaseline), name, None), latest):
            if value is not None:
                return to_float(value)
        return None

    @property
    def state(self) -> str:
        """A state of the record, killed or unknown."""
        state = str(self.values["state"])
        if state in UNFINISHED and self.values["host"] == socket.gethostname():
            with suppress(PermissionError, TypeError, OverflowError):  # of another user; a number that is no id
                try:
                    os.kill(self.values["pid"], 0)
                except ProcessLookupError:  # the process of a run on this machine may not exist any more
                    return "killed"
        return state

    @property
    def short_status(self) -> str:
        """The state, and the reason of a failure; at most 50 characters."""
        text = f"failed: {self.values['message']}" if self.state == "failed" else self.state
        return textwrap.shorten(text, _MAX_STATUS_CHARS, placeholder="...")


def points(rows: Iterable[Mapping[str, Any]], x_column: str, y_column: str) -> list[tuple[float, float]]:
    """(x, y) of the rows that have both as finite numbers of at most `LARGEST`."""
    cells = ((to_float(row.get(x_column)), to_float(row.get(y_column))) for row in rows)
    return [(x, y) for x, y in cells if x is not None and y is not None and max(abs(x), abs(y)) <= LARGEST]


def best_epoch(rows: list[Row], metric: Metric) -> tuple[int, float] | None:
    """(epoch, value of the metric) of `best.pth`, the first of equal ones; None without a value."""
    losses = dict(points(rows, "epoch", "val_loss"))
    scores = points(rows, "epoch", f"val_{metric.name}")
    if not scores:
        return None
    epoch, score = max(scores, key=lambda p: (metric.rank({"loss": losses.get(p[0]), metric.name: p[1]}), -p[0]))
    return int(epoch), score


def contents_of(record: RunRecord, config: Config, changes: Values | None = None) -> RunContents:
    """What the last lines of a run in this process show. changes: other options, by dotted key."""
    options = values_of(config) | (changes or {})
    evaluation = evaluation_in(record.folder / EVALUATION)
    test = EvaluationContents(record.folder / TEST_EVALUATION, {})
    if record.values["result"]["test"]:
        test = evaluation_in(test.folder)
    return RunContents(record.folder, options, record.values, [*record.epochs.values()], evaluation, test)


def read_contents(folder: Path) -> RunContents:
    """Raises UserError if the folder has no run that trained or evaluated, or its options are damaged; OSError."""
    if not (folder / RUN_OPTIONS).is_file():
        raise UserError(f"{folder}: is not the folder of a run (no {RUN_OPTIONS})")
    values = read_run(folder)
    if not values or folder.resolve().name.startswith(_WITHOUT_PAGE):
        problem = f"{folder}: is not the folder of a training or an evaluation"
        raise UserError(f"{problem}; predictions and profiles have no page")
    rows, _ = read_metrics(folder)
    options = with_defaults(read_yaml(folder / RUN_OPTIONS))
    if not properties_of(options["DATA.DATASET"]).has_files:
        options.pop("DATA.DATA_PATH", None)  # which nothing has read
    return RunContents(
        folder=folder,
        options=options,
        values=values,
        epochs=[*by_epoch(rows).values()],
        evaluation=evaluation_in(folder / EVALUATION),
        test=evaluation_in(folder / TEST_EVALUATION),
        reports=[row for row in rows if row["kind"] == "report"],
        suspects=_read_suspects(folder / SUSPECTS),
    )


def suspect_picture(split: str, path: str) -> str:
    """The name of the picture of a suspect, without its ending: a person may move and decide the rows of the table."""
    return hashlib.sha256(f"{split}/{on_one_line(path)}".encode()).hexdigest()[:16]


def _read_suspects(path: Path) -> Rows:
    """The first rows without a correction; rows with one are last. None of a file that an editor has changed."""
    rows = Rows()
    with suppress(OSError, ValueError, csv.Error):
        rows = [row for row in read_csv_rows(path)[:_SHOWN] if row.keys() >= _SUSPECT and not row.get("correction")]
    return [{column: unescaped_cell(text) for column, text in row.items()} for row in rows]
