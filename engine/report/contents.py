"""Reads the files in the folder of a run, for its page. A part whose file is missing or damaged is left out."""

import csv
import os
import socket
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from configs.compare import with_defaults
from configs.load import RECIPE_OPTIONS, RUN_OPTIONS
from configs.parts import PLUGINS_FOLDER
from configs.yaml_io import read_yaml, shorten
from engine.run import result
from engine.run.facts import FACTS, SPLITS, Facts, PixelBaseline, read_facts
from engine.run.result import FINDINGS, RESULT, Rows, best_epoch, points
from utils.errors import Unavailable, UserError, error_from
from utils.files import read_json
from utils.metric_table import METRICS, Metric, best_metric
from utils.status import STATUS, UNFINISHED
from utils.tables import read_rows, to_float, unescaped_cell

MAX_MATRIX_CLASSES = 50
SEVERAL = " | "  # between the true classes of an image
_WITHOUT_PAGE = ("predict-", "profile-")  # folders of these commands
_TEXTS = ("class", "true", "predicted", "path")  # columns with text from outside
_MAX_STATUS_CHARS = 50
_SHOWN = 24  # findings of a kind

_T = TypeVar("_T")


@dataclass(frozen=True)
class Evaluation:
    """The files of an evaluation. A part whose file is missing is empty or None. Names are without apostrophes.

    confusion: names of the classes, and images by true class (rows) and predicted class; up to 50 classes.
    bins: of the confidence, in percent: lowest and highest confidence, images, accuracy; without empty bins.
    coverage: (coverage, accuracy) in percent, by descending threshold of the confidence.
    """

    folder: Path
    summary: dict[str, Any]
    classes: Rows
    confusion: tuple[list[str], list[list[int]]] | None
    pairs: Rows
    bins: list[tuple[float, float, int, float]]
    coverage: list[tuple[float, float]]
    mistakes: Rows

    @property
    def split(self) -> str:
        """The evaluated images: validation, training or test; '' if they are no known split."""
        return SPLITS.get(str(self.summary.get("split")), "")


@dataclass(frozen=True)
class RunContents:
    """A run that trained or evaluated.

    Attributes:
        options: all options by dotted key. recipe: the options of the recipe; None if the run does not know it.
        earlier: the options up to a step, by this step, where a resumed run changed them.
        epochs, steps: rows of `metrics.csv`, none for an evaluation, and of `steps.csv`.
        status, result: the content of `status.json` and `result.json`; the latter is empty while the run is running.
        classes: the content of `classes.json`. problems: a line for each file that cannot be read.
        evaluation: of the validation images, or of `-eval`. test: of the held-out test images.
        plugins: their texts by name and hash. findings: the first rows of the lists of images that need a look, by
            name.
    """

    folder: Path
    options: dict[str, Any]
    recipe: dict[str, Any] | None
    earlier: dict[int, dict[str, Any]]
    epochs: Rows
    steps: Rows
    status: dict[str, Any]
    result: dict[str, Any]
    classes: dict[str, Any]
    facts: Facts
    evaluation: Evaluation | None
    test: Evaluation | None
    plugins: dict[str, str]
    findings: dict[str, Rows]
    problems: list[str]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def is_evaluation(self) -> bool:
        return self.options["EVAL.ENABLED"] is True

    @property
    def is_multi_label(self) -> bool:
        return self.options["DATA.MULTI_LABEL"] is True

    def shows(self, metric: Metric) -> bool:
        """Returns whether the model has as many classes as the metric needs."""
        return (to_float(self.options["MODEL.NUM_CLASSES"]) or 1) >= metric.min_classes

    @property
    def metric(self) -> Metric:
        """The metric that decides which epoch is the best."""
        return best_metric(self.options["EVAL.BEST_METRIC"], self.is_multi_label)

    @property
    def best(self) -> tuple[int, float] | None:
        """The best epoch (from 1) and the value of the metric; None without an evaluation."""
        return best_epoch(self.epochs, self.metric)

    @property
    def split(self) -> str:
        """The images of the result: validation, training or test; '' if `-eval` knows no split."""
        if not self.is_evaluation:
            return SPLITS["val"]
        return self.evaluation.split if self.evaluation else ""

    @cached_property
    def figures(self) -> dict[str, float]:
        """The metrics of the best epoch, or of the evaluation, by name; without unknown ones."""
        summary, best = self.evaluation.summary if self.evaluation else {}, self.best
        row = next((row for row in self.epochs if best and row["epoch"] == str(best[0])), {})
        of_epoch = {name: row.get(f"val_{name}") for name in METRICS}
        sources = (summary, of_epoch, self.result)
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
    def test_result(self) -> dict[str, Any]:
        test = self.result.get("test")
        return test if isinstance(test, dict) else {}

    def measured(self, name: str) -> float | None:
        """A baseline; train_seconds, images_per_second or peak_memory_bytes, perhaps up to the last complete epoch."""
        value = self.result.get(name, getattr(self.facts.get(PixelBaseline), name, None))
        return to_float(value if value is not None or not self.epochs else self.epochs[-1].get(name))

    @property
    def state(self) -> str:
        """A state of `RunStatus`, killed or unknown."""
        state = self.status.get("state")
        if not isinstance(state, str):
            return "finished" if self.result else "unknown"  # an evaluation has no status.json
        return "killed" if state in UNFINISHED and _has_ended(self.status) else state

    @property
    def short_status(self) -> str:
        """The state, and the reason of a failure; at most 50 characters."""
        text = f"failed: {self.status.get('message')}" if self.state == "failed" else self.state
        return textwrap.shorten(text, _MAX_STATUS_CHARS, placeholder="...")


def _has_ended(status: dict[str, Any]) -> bool:
    """Returns whether the process of a run on this machine does not exist any more."""
    pid = status.get("pid")
    if status.get("host") != socket.gethostname() or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def read_contents(folder: Path) -> RunContents:
    """Raises UserError if the folder has no run that trained or evaluated, or its options or `metrics.csv` are damaged.

    A run that failed early has no `metrics.csv` and `result.json`.
    """
    if not folder.exists():
        raise Unavailable(f"{folder}: does not exist; give the folder of a run")
    if not (folder / RUN_OPTIONS).is_file():
        raise UserError(f"{folder}: is not the folder of a run (no {RUN_OPTIONS})")
    has_status = any((folder / name).is_file() for name in (STATUS, RESULT))
    if not has_status or folder.resolve().name.startswith(_WITHOUT_PAGE):
        raise UserError(
            f"{folder}: is not the folder of a training or an evaluation; predictions and profiles have no page"
        )
    options = _read_options(folder / RUN_OPTIONS)
    try:
        epochs = read_rows(folder / "metrics.csv") if (folder / "metrics.csv").exists() else []
    except (ValueError, OSError, csv.Error) as error:
        raise error_from(error, f"{folder / 'metrics.csv'}: cannot be read ({shorten(str(error))})") from None
    problems: list[str] = []

    def read(name: str, reader: Callable[[Path], _T], missing: _T) -> _T:
        """The content of a file; `missing` if there is none."""
        path = folder / name
        try:
            return reader(path) if path.exists() else missing
        except (OSError, ValueError, KeyError, IndexError, csv.Error, UserError) as error:
            problems.append(f"{name} cannot be read: {str(error) or type(error).__name__}")
            return missing

    status, copies = read_json(folder / STATUS), sorted((folder / PLUGINS_FOLDER).glob("[!.]*#sha256=*"))
    plugins = [one.name for one in copies if one.is_file() and not one.is_symlink()]  # no other file of the reader's
    return RunContents(
        folder=folder,
        options=options,
        recipe=read(RECIPE_OPTIONS, _read_options, None),
        earlier={
            int(path.stem[12:]): read(path.name, _read_options, options)
            for path in sorted(folder.glob("config-step-*.yaml"), key=lambda path: (len(path.name), path.name))
            if path.stem[12:].isdecimal()
        },
        epochs=epochs,
        steps=read("steps.csv", read_rows, []),
        status=status,
        # While a run is running, its result is from before it was resumed.
        result={} if status.get("state") in UNFINISHED else read_json(folder / RESULT),
        classes=read_json(folder / "classes.json"),
        facts=read(FACTS, read_facts, Facts()),
        evaluation=_read_evaluation(folder, result.EVALUATION, read),
        test=_read_evaluation(folder, result.TEST_EVALUATION, read),
        plugins={name: read(f"{PLUGINS_FOLDER}/{name}", lambda one: one.read_text("utf-8"), "") for name in plugins},
        findings={name: read(f"{name}/{name}.csv", _read_findings, []) for name in FINDINGS},
        problems=problems,
    )


def _read_options(path: Path) -> dict[str, Any]:
    return with_defaults(read_yaml(path)[0])


def _read_evaluation(folder: Path, name: str, read: Callable[[str, Callable[..., Any], Any], Any]) -> Evaluation | None:
    if not (folder / name).is_dir():
        return None
    classes = read(f"{name}/{result.PER_CLASS}", partial(_read_texts, needed=["class"]), [])
    has_matrix = len(classes) <= MAX_MATRIX_CLASSES  # the matrix of 1,000 classes has a million cells
    return Evaluation(
        folder=folder / name,
        summary=read_json(folder / name / result.SUMMARY),
        classes=classes,
        confusion=read(f"{name}/{result.CONFUSION}", read_matrix, None) if has_matrix else None,
        pairs=read(f"{name}/{result.PAIRS}", partial(_read_texts, needed=["true", "predicted", "count", "share"]), []),
        bins=read(f"{name}/{result.CALIBRATION}", _read_bins, []),
        coverage=points(read(f"{name}/{result.COVERAGE}", read_rows, []), "coverage", "accuracy"),
        mistakes=read(f"{name}/{result.MISTAKES}", partial(_read_texts, needed=["kind", "index"]), []),
    )


def _read_texts(path: Path, needed: list[str]) -> Rows:
    """The rows, with the texts as they were before `safe_cell`; of several true classes, each."""
    rows = read_rows(path)
    if rows and (missing := [column for column in needed if column not in rows[0]]):
        raise ValueError(f"it has no column {', '.join(missing)}")
    for row in rows:
        texts = {column: row[column] or "" for column in _TEXTS if column in row}
        row |= {column: SEVERAL.join(map(unescaped_cell, text.split(SEVERAL))) for column, text in texts.items()}
    return rows


def _read_findings(path: Path) -> Rows:
    return [{column: unescaped_cell(text or "") for column, text in row.items()} for row in read_rows(path)[:_SHOWN]]


def read_matrix(path: Path) -> tuple[list[str], list[list[int]]]:
    """The first row and the first column have the names. Raises OSError, ValueError or csv.Error."""
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    counts = [list(map(int, row[1:])) for row in rows]
    if any(len(row) != len(rows) or min(row) < 0 for row in counts) or len(header) != len(rows) + 1:
        raise ValueError("it is no square matrix of counts")
    return list(map(unescaped_cell, header[1:])), counts


def _read_bins(path: Path) -> list[tuple[float, float, int, float]]:
    return [
        (float(row["low"]), float(row["high"]), int(row["count"]), float(row["accuracy"]))
        for row in read_rows(path)
        if row["accuracy"]
    ]
