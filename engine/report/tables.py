"""The tables of a page: options, classes, runs, groups of runs; the galleries."""

import base64
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from mimetypes import guess_type
from pathlib import Path
from typing import Any, NamedTuple

from configs.yaml_io import Values
from engine.evaluation.limits import t_quantile
from engine.report.charts import Chart, Series, unit_of
from engine.report.contents import EvaluationContents, RunContents
from engine.report.overview import interval_of, tiles_of
from engine.run.facts import EvaluationData, TrainingData
from engine.run.record import MISTAKES, PICTURES, Row
from utils.metric_table import METRICS, OPERATING, Metric
from utils.tables import to_float

MAX_CLASSES = 2000  # rows; a page of more opens slowly
OPTIONS_OF_RUN = ("NAME", "SAVE", "MODEL.RESUME", "EVAL.ENABLED")
_CLASS_COLUMNS = {
    "count": "images", "predicted": "predicted", "precision": "precision", "recall": "recall, sensitivity",
    "specificity": "specificity", "f1": "F1", "top5": "top-5", "ap": "AP", "auroc": "AUROC",
    "threshold": "threshold", "probability": "mean probability", "ece": "ECE", **OPERATING,
}  # fmt: skip
_REPEATED = ("SEED", "DATA.FOLD")
_SHARE = "DATA.FRACTION"
_DIFFERENCE = ("difference", "difference_low", "difference_high", "difference_p")


def compared_options(runs: Sequence[RunContents]) -> dict[str, list[Any]]:
    """The values of each run by dotted key, for the options whose values are not the same in all runs.

    First those with most values: of three runs with two recipes and three rates, the rate.
    """
    keys = sorted({key for run in runs for key in run.options}.difference(OPTIONS_OF_RUN))
    values = {key: [run.options.get(key) for run in runs] for key in keys}
    counts = {key: len({repr(one) for one in given}) for key, given in values.items()}
    return {key: values[key] for key in sorted(values, key=lambda key: -counts[key]) if counts[key] > 1}


def _score(row: Row) -> float:
    """F1 or AP of a class; infinite if it is not known."""
    score = to_float(row.get("ap", row.get("f1")))
    return math.inf if score is None else score


def class_table(evaluation: EvaluationContents) -> tuple[dict[str, str], list[Row]]:
    """The titles of the columns by name, and a row per class in the order of the labels.

    Of more than 2,000 classes, the ones with the lowest F1 or AP, in ascending order.
    """
    rows = evaluation.classes
    filled = {name for row in rows for name, value in row.items() if value != ""}
    if len(rows) == 2 and "ap" not in filled:  # one label of two classes, whose AUROC is a figure of the first screen
        filled.discard("auroc")
    if len(rows) > MAX_CLASSES:
        rows = sorted(rows, key=_score)[:MAX_CLASSES]
    return {name: title for name, title in _CLASS_COLUMNS.items() if name in filled}, rows


def ranked(runs: Sequence[RunContents]) -> list[RunContents]:
    """Sorts training runs before evaluations, both by metric, and the best value of each metric first.

    Evaluations of the same split are together; runs without a value are last.
    """

    def rank(run: RunContents) -> tuple[Any, ...]:
        score = -run.metric.rank({run.metric.name: run.score})[0]
        metric = [*METRICS].index(run.metric.name)
        return run.is_evaluation, metric, run.score is None, not run.split, run.split, score, run.name

    return sorted(runs, key=rank)


def results(runs: Sequence[RunContents]) -> tuple[list[str], list[list[str]], list[str]]:
    """The columns, the cells of each run, and lines about figures of different images.

    The first row of a page has the same figures.
    """
    rows = []
    found = set[str]()  # the names of results, whose columns are first
    for run in runs:
        result, *others = tiles_of(run)[0]
        found.add(result.name)
        interval = interval_of(run, run.evaluation).removeprefix("95% interval ")
        values = {result.name: result.value, "95% interval": interval, "epoch": run.best_of_all}
        values |= {one.name: one.value for one in others}
        rows.append({name: value for name, value in values.items() if value})
    names = sorted((name for row in rows for name in row), key=lambda name: name not in found)
    header = [*dict.fromkeys(names)]
    cells = [[*(row.get(name, "") for name in header), run.short_status] for row, run in zip(rows, runs, strict=True)]
    return [*header, "state"], cells, _notes_on_images(runs) + _note_on_choice(runs) + learning_curve(runs)


def evaluated_images(run: RunContents) -> tuple[int, str] | None:
    """The number and the digest of the images of the run's metric; the digest is '' if it is not known."""
    if evaluated := run.fact(EvaluationData):
        return evaluated.number, evaluated.digest
    trained = run.fact(TrainingData)
    return (trained.validation, trained.validation_digest) if trained else None


def _notes_on_images(runs: Sequence[RunContents]) -> list[str]:
    """A line for each split, or fold, whose images are not the same in all runs."""
    sets = defaultdict[tuple[str, Any], dict[tuple[int, str], str]](dict)
    for run in runs:
        images = evaluated_images(run)
        if images and images[1]:
            sets[run.split or "evaluated", run.options["DATA.FOLD"]].setdefault(images, run.name)
    notes = []
    for (split, _), found in sets.items():
        if len(found) > 1:
            named = ", ".join(f"{number:,} of {name}" for (number, _), name in found.items())
            notes.append(f"The {split} images or their labels differ, so that the figures cannot be compared: {named}")
    return notes


def _note_on_choice(runs: Sequence[RunContents]) -> list[str]:
    """A line if three trainings or more have a figure of the same images."""
    numbers = Counter(evaluated_images(run) for run in runs if not run.is_evaluation and run.score is not None)
    most = max(numbers.values(), default=0)
    return [f"The best of {most} runs on the same images is too good by chance; on test images it is not"] * (most > 2)


def _given(run: RunContents) -> Values:
    """The options that files, flags and -opts gave; of older runs, all options."""
    given: Values = run.values["given"] or run.options
    return given


def asked_options(runs: Sequence[RunContents]) -> list[str]:
    """The dotted keys, besides seed and fold, that were given values which differ between the runs."""
    values = {key: {repr(_given(run).get(key)) for run in runs} for key in compared_options(runs)}
    return [key for key, found in values.items() if key not in _REPEATED and len(found) > 1]


def _is_result(run: RunContents) -> bool:
    """Whether the run has ended as planned, with a value of its metric."""
    return run.state in ("finished", "stopped") and run.score is not None


def _latest(runs: Sequence[RunContents]) -> list[RunContents]:
    """Of a run and its continuation, or a repetition with the same seed and fold, the one that was started last."""
    in_time = sorted(runs, key=lambda run: str(run.values["started"]))
    return [*{repr([run.options[key] for key in (*_REPEATED, _SHARE)]): run for run in in_time}.values()]


def _means_by_share(runs: Sequence[RunContents]) -> dict[float, float]:
    """The mean metric of the finished runs by DATA.FRACTION, ascending; empty for runs that differ in others, too."""
    trained = [run for run in runs if not run.is_evaluation and _is_result(run)]
    if asked_options(trained) != [_SHARE]:
        return {}
    scores = defaultdict[float, list[float]](list)
    for run in _latest(trained):
        scores[run.options[_SHARE]].append(run.score or 0.0)
    return {share: statistics.mean(found) for share, found in sorted(scores.items())}


def learning_curve(runs: Sequence[RunContents]) -> list[str]:
    """What a doubling of the images brought, between the two largest shares of runs that differ in DATA.FRACTION.

    Means over seeds and folds.
    """
    means = _means_by_share(runs)
    if not means:
        return []
    (less, before), (more, after) = [*means.items()][-2:]
    metric = runs[0].metric
    gain = metric.text((after - before) / math.log2(more / less), " points")
    values = f"{metric.text(before)} with {100 * less:g}% of the training images, {metric.text(after)} with"
    return [f"{metric.title}: {values} {100 * more:g}%: {gain} per doubling, if each has trained to its end"]


def share_chart(runs: Sequence[RunContents]) -> list[Chart]:
    """The mean of the metric by the share of the training images, where `learning_curve` has a line."""
    points = [(100 * share, mean) for share, mean in _means_by_share(runs).items()]
    if not points:
        return []
    title = f"Validation {runs[0].metric.title} by training images"
    return [Chart(title, "share of the training images (%)", [Series("mean", points)], unit_of(runs[0].metric))]


Pictured = tuple[Row, str, str]  # with picture and attention map


def gallery_of(evaluation: EvaluationContents) -> list[Pictured]:
    """The worst mistakes."""
    found = []
    for row in evaluation.rows("mistakes", *MISTAKES):
        if str(row["index"]).isdecimal():
            path = evaluation.folder / PICTURES / str(row["index"])
            found.append((row, data_uri(path.with_suffix(".jpg")), data_uri(Path(f"{path}-attention.jpg"))))
    return found


def data_uri(path: Path) -> str:
    """The picture; '' if there is no such file."""
    try:
        data = path.read_bytes()
    except OSError:
        return ""
    return f"data:{guess_type(path.name)[0]};base64,{base64.b64encode(data).decode()}"


class Group(NamedTuple):
    """Runs of which only SEED or DATA.FOLD was asked to differ.

    options: in which groups differ, by dotted key; None for one that rules made differ.
    figures: the metric that decides, the number of finished runs; mean and standard deviation (n - 1) of their metric,
    and of its value on test images, and from 3 runs on the 95% limits of the mean over seeds (Student's t);
    `out_of_fold`, which the script sets: the metric of the held-out images of all folds together; `difference` and its
    limits and p, of `compare_settings`. None without a value.
    """

    options: Values
    figures: Values
    runs: Sequence[RunContents] = ()  # finished ones

    @property
    def cells(self) -> Values:
        """A row of `groups.csv`."""
        return self.options | self.figures

    @property
    def texts(self) -> dict[str, str]:
        """The figures as the ones of a run are written, by column: '62.58% ± 9.92'; '' without a value."""
        figures = self.figures
        metric = METRICS[figures["metric"]]
        texts = {"metric": metric.title, "runs": str(figures["runs"])}
        for prefix in ("", "test_"):
            deviation = metric.text(figures[f"{prefix}std"], "")
            mean = metric.text(figures[f"{prefix}mean"])
            texts[f"{prefix}mean ± std".replace("_", " ")] = " ± ".join(filter(None, (mean, deviation)))
        texts["95% interval of the mean"] = _range(metric, figures["mean_low"], figures["mean_high"])
        texts["difference to the first"] = ""
        if figures["difference"] is not None:
            limits = _range(metric, figures["difference_low"], figures["difference_high"])
            difference = metric.text(figures["difference"], " points")
            texts["difference to the first"] = f"{difference}, {limits}, p {figures['difference_p']:.2g}"
        texts["out of fold"] = metric.text(figures["out_of_fold"])
        return texts

    @property
    def are_folds(self) -> bool:
        return len(self.runs) > 1 and len({run.options["DATA.FOLD"] for run in self.runs}) == len(self.runs)


def _range(metric: Metric, low: float | None, high: float | None) -> str:
    return "" if low is None else f"{metric.text(low, '')} to {metric.text(high)}"


def groups_of(runs: Sequence[RunContents], problems: list[str]) -> list[Group]:
    """The groups in the order of their first runs, by the options that files, flags and -opts gave: rules may derive
    other epochs for each fold. No groups if no two runs differ only in seed or fold.

    problems: receives the reason why there is no mean, and the runs that are left out of one.
    """
    trained = [run for run in runs if not run.is_evaluation]
    asked = asked_options(trained)
    groups = dict[str, list[RunContents]]()
    for run in trained:
        options = _given(run)
        groups.setdefault(repr([[options.get(key) for key in asked], run.metric.name]), []).append(run)
    if len(groups) == len(trained):
        differing = compared_options(trained)
        if repeated := [key for key in _REPEATED if key in differing]:
            others = " and ".join(asked) or "metric"
            problems.append(f"no mean over {' and '.join(repeated)}: no two runs have the same {others}")
        return []
    left_out = [run for run in trained if not _is_result(run)]
    problems += [f"left out of the mean: {run.name}: {run.short_status}" for run in left_out]
    found = [_group(asked, members) for members in groups.values()]
    for group in found:
        if len(group.runs) > 1 and {run.best and run.best[0] for run in group.runs} == {0}:
            problems.append(f"{group.runs[0].name} and others: epoch 0, one probe, is the best; seeds are not compared")
    return [group for group in found if len(group.runs) > 1]


def _group(keys: list[str], members: list[RunContents]) -> Group:
    derived = compared_options(members)
    options = {key: None if key in derived else members[0].options.get(key) for key in keys}
    runs = _latest([run for run in members if _is_result(run)])
    figures: Values = {"metric": members[0].metric.name, "runs": len(runs)}
    for name, found in {"": [run.score for run in runs], "test_": [run.test_score for run in runs]}.items():
        values = [value for value in found if value is not None]
        figures[f"{name}mean"] = statistics.mean(values) if values else None
        figures[f"{name}std"] = statistics.stdev(values) if len(values) > 1 else None
    if figures["std"] is not None and figures["runs"] >= 3:
        distance = float(t_quantile(len(runs) - 1)) * figures["std"] / math.sqrt(len(runs))
        limits = {"mean_low": figures["mean"] - distance, "mean_high": figures["mean"] + distance}
    else:
        limits = dict.fromkeys(("mean_low", "mean_high"))
    return Group(options, figures | limits | dict.fromkeys(("out_of_fold", *_DIFFERENCE)), runs)


def group_columns(groups: Sequence[Group]) -> list[str]:
    """The columns of `Group.texts` that have a value."""
    return list(dict.fromkeys(name for group in groups for name, text in group.texts.items() if text))
