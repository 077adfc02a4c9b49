"""The head of a page: state, result, model and data; the same figures for tables and the log."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from configs.schema.operating_point import probability_of
from configs.yaml_io import Values
from engine.report.charts import number_text, percent
from engine.report.contents import EvaluationContents, RunContents, points
from engine.report.verdict import command_of, verdict_of
from engine.run import facts
from engine.run.facts import SPLITS
from engine.run.record import BASELINES
from utils.metric_table import METRICS
from utils.notes import UNFINISHED
from utils.tables import format_duration


@dataclass(frozen=True)
class Tile:
    """A figure of the first screen.

    name: in tables and in the log. value: '' if it is not known. words: the title on the page, if it is not the name.
    """

    name: str
    value: str
    remark: str = ""
    words: str = ""


_IN_WORDS = {
    "top1": "correct",
    "top5": "correct among the five most probable",
    "balanced_accuracy": "correct, mean over the classes",
    "min_recall": "correct in the weakest class",
}


def tiles_of(run: RunContents) -> tuple[list[Tile], list[Tile]]:
    """The result, first, and the figures that say what it is worth; all other figures.

    A figure of other images than the result's names them.
    """
    split = run.split
    best = "" if run.is_evaluation else "best "
    result = _result_tile(run, run.evaluation, f"{best}{split}", run.score, _remark_on_result(run))
    baseline, majority = (percent(run.measured(name)) for name in BASELINES)
    first = [
        _result_tile(run, run.test, "test", run.test_score),
        Tile("pixel baseline", baseline, f"majority class {majority}", "colours and shapes of 16x16 pixels alone"),
        Tile("linear probe", run.metric.text(run.measured("probe_score")), "the start of this run"),
        *_tiles_of_images(run, *run.latest),
        Tile("training time", _optional(run.measured("train_seconds"), format_duration), "without evaluations"),
    ]
    others = []
    remarks = {"sample_f1": "0 for an image without true and predicted labels"}
    if "calibrated" in run.evaluation.values:
        remarks["ece"] = "before the temperature"
    shown = Values()  # by other tiles
    if len(run.evaluation.classes) == 2 and not run.is_multi_label:  # both have the same AUROC
        shown["auroc"] = (run.evaluation.values.get("class_auroc") or {}).get("auroc")
    shown[run.metric.name] = run.score
    for name, metric in METRICS.items():
        if name in run.figures and run.shows(metric) and run.figures[name] != shown.get(name):
            others.append(Tile(f"{split} {metric.title}", metric.text(run.figures[name]), remarks.get(name, "")))
    if run.test:
        others += _tiles_of_images(run, run.evaluation, run.evaluated)
    others += [
        Tile("k-NN top-1", percent(run.measured("knn_top1")), "on the features of the start"),
        Tile(
            "images/s", _optional(run.measured("images_per_second"), lambda x: number_text(round(x, 1))), "all devices"
        ),
        Tile("peak memory", _optional(run.measured("peak_memory_bytes"), lambda x: f"{x / 1e9:.2f} GB")),
    ]
    return [result, *(tile for tile in first if tile.value)], [tile for tile in others if tile.value]


def _optional(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


def _remark_on_result(run: RunContents) -> str:
    evaluated = run.fact(facts.EvaluationData)
    if evaluated:
        return evaluated.remark
    return f"epoch {run.best_of_all}" if run.best else ""


def _tiles_of_images(run: RunContents, evaluation: EvaluationContents, split: str) -> list[Tile]:
    """The operating point, the groups and the worst class of an evaluation. split: names its images."""
    return _point_tiles(evaluation, split) + _group_tiles(run, evaluation, split) + _worst_class(run, evaluation, split)


def interval_text(limits: Sequence[float] | None) -> str:
    """'95% interval 88.65 to 98.10%'; '' without limits."""
    return f"95% interval {limits[0]:.2f} to {percent(limits[1])}" if limits else ""


def interval_of(run: RunContents, evaluation: EvaluationContents) -> str:
    """The interval of the metric that decides, or why there is none; '' for files of an earlier epoch than the best."""
    return "" if run.earlier_epoch(evaluation) else _interval_in(evaluation.values)


def _interval_in(values: Mapping[str, Any], key: str = "interval") -> str:
    reason = values.get(f"{key}_missing")
    return f"no interval: {reason}" if reason else interval_text(values.get(key))


def choice_on(run: RunContents, evaluation: EvaluationContents) -> str:
    """What was chosen on the images of a figure, 'best of 20 epochs on these images: too good'; '' of test images."""
    chosen = []
    epochs = len(points(run.epochs, "epoch", f"val_{run.metric.name}"))
    evaluated = run.fact(facts.EvaluationData)
    if evaluated:
        epochs = evaluated.epochs
    if epochs > 1:
        chosen.append(f"best of {epochs} epochs")
    if epochs and run.is_multi_label and run.metric.kind in ("mean", "share") and run.metric.is_percent:
        chosen.append("thresholds")
    if not chosen or evaluation.split == SPLITS["test"]:
        return ""
    return f"{' and '.join(chosen)} chosen on these images: too good"


def score_text(run: RunContents, evaluation: EvaluationContents, score: float | None) -> str:
    """'97.83%, 95% interval 95.72 to 98.92%': the metric that decides."""
    texts = [run.metric.text(score), interval_of(run, evaluation), choice_on(run, evaluation)]
    return ", ".join(filter(None, texts))


def _result_tile(
    run: RunContents,
    evaluation: EvaluationContents,
    kind: str,
    score: float | None,
    remark: str = "",
    of: str = "images",
) -> Tile:
    """The metric that decides. kind: of the images, as 'best validation'. of: images or groups."""
    title = run.metric.title
    samples = number_text(evaluation.values.get("samples"))
    images = " ".join(filter(None, [samples, kind.removeprefix("best "), of]))
    remarks = filter(None, [interval_of(run, evaluation), remark, choice_on(run, evaluation)])
    name = f"{kind} {title}".strip()
    words = f"{_IN_WORDS.get(run.metric.name, title)}, of {images}"
    return Tile(name, run.metric.text(score), "; ".join(remarks), words)


def pooled_tiles(run: RunContents, title: str, pooled: EvaluationContents) -> list[Tile]:
    """The tiles of all folds together, one of which is `run`. title: ', out of fold, 5 folds'."""
    run = replace(run, epochs=[])
    tile = _result_tile(run, pooled, "", pooled.values.get(run.metric.name))
    return [replace(tile, words=f"{tile.words}{title}"), *_tiles_of_images(run, pooled, "out of fold")]


def _worst_class(run: RunContents, evaluation: EvaluationContents, split: str) -> list[Tile]:
    """The class with the lowest F1 or AP: a high top-1 may hide a class that is lost. Empty without such figures.

    Of classes with equal scores, the one with the most images.
    """
    column = "ap" if run.is_multi_label else "f1"
    classes = evaluation.by_class(column)
    if not classes:
        return []
    lowest, count, name = min(classes, key=lambda one: (one[0], -one[1], one[2]))
    remark = f"{name}, {count:,.0f} image{'s' * (count != 1)}"
    zeros = sum(score == 0 for score, _, _ in classes)
    if zeros > 1:
        remark += f"; {zeros:,} of {len(classes):,} classes have 0%"
    return [Tile(f"{split} worst class".strip(), f"{column.upper()} {percent(lowest)}", remark)]


def _group_tiles(run: RunContents, evaluation: EvaluationContents, split: str) -> list[Tile]:
    """The metric that decides, and the operating point, of the means of groups."""
    groups = evaluation.groups
    if not groups:
        return []
    values = groups.values
    remarks = []  # the groups that do not count, and the option that counts them
    if left_out := values.get("unreadable"):
        remarks.append(f"left out for different labels, or no readable image: {left_out}")
    if any(known < values["samples"] for known, _, _ in groups.by_class("known")):
        remarks.append("labels that differ in a group count as unknown")
    point = values.get("operating_point")
    if remarks and point and not point.get("groups"):
        remarks.append("with groups: any in EVAL.OPERATING_POINT of a new run, one image of its class decides")
    score = values.get(run.metric.name)
    tile = _result_tile(run, groups, split, math.nan if score is None else score, "; ".join(remarks), "groups")
    return [replace(tile, name=f"{tile.name} by group"), *_point_tiles(groups, f"{split} group".strip())]


def _point_tiles(evaluation: EvaluationContents, split: str) -> list[Tile]:
    """The AUROC of a class, and the figures at its operating point. split: names the images."""
    tiles = []
    point = evaluation.values.get("operating_point")
    if ranked := evaluation.values.get("class_auroc"):
        of_class = f", {ranked.get('class')}" if point else ""  # else of both classes
        tiles.append(Tile(f"{split} AUROC{of_class}".strip(), percent(ranked.get("auroc")), _interval_in(ranked)))
    if point:
        positive = point.get("class")
        sensitivity, *figures = point_figures(point)
        remark = point.get("sensitivity_interval_missing") or "no threshold"
        logit = point.get("threshold")
        if logit is not None:
            place = "on these images" if evaluation.values.get("chooses_point") else "in validation"
            chosen = f"chosen {place} for {point.get('goal')}"
            if evaluation.split != SPLITS["test"] and not point.get("by_limit"):
                chosen += ", which half of such thresholds miss on other images"
            remark = "; ".join([*figures, f"from p {probability_of(logit):.4g} on", chosen])
        name = f"{split} sensitivity, {positive}".strip()
        tiles.append(Tile(name, sensitivity, remark, f"{positive} recognized"))
    return tiles


def point_figures(point: Mapping[str, Any]) -> list[str]:
    """The sensitivity of `figures_at`; then its counts, the specificity, and both intervals, where they are known."""
    recognized = ""
    match point.get("confusion"):
        case [_, [int(missed), int(found)]]:
            recognized = f"{found} of {missed + found}"
    remarks = [
        recognized,
        _interval_in(point, "sensitivity_interval"),
        f"specificity {percent(point.get('specificity')) or 'none'}",
        _interval_in(point, "specificity_interval"),
    ]
    return [percent(point.get("sensitivity")) or "none", *filter(None, remarks)]


def class_lines(run: RunContents) -> list[str]:
    """Lines for the log: 'Classes: macro F1 82.90%, worst class F1 0.00% (newt, 3 images)', the operating point and
    groups, of the test images if there are some; empty without these figures.
    """
    evaluation, split = run.latest
    named = split if run.test else ""
    macro_f1 = Tile(f"{named} macro F1".strip(), percent(evaluation.values.get("macro_f1")))
    classes = _texts_of([macro_f1, *_worst_class(run, evaluation, named)])
    lines = [f"Classes: {', '.join(classes)}"] if classes else []
    return lines + _texts_of(_point_tiles(evaluation, split) + _group_tiles(run, evaluation, split))


def _texts_of(tiles: list[Tile]) -> list[str]:
    """'macro F1 82.90% (remark)' of those with a value."""
    return [f"{tile.name} {tile.value}{f' ({tile.remark})' if tile.remark else ''}" for tile in tiles if tile.value]


def shift_by_weights(run: RunContents) -> str:
    """The label whose mean probability is farthest from its share of the images, if the classes have weights.

    '' for a difference below 5 points.
    """
    samples = run.evaluation.values.get("samples")
    if not samples or not run.options["LOSS.CLASS_WEIGHTS"]:
        return ""
    shifts = []
    known = {name: number for number, _, name in run.evaluation.by_class("known")}
    for mean, count, name in run.evaluation.by_class("probability"):
        share = 100 * count / known.get(name, samples)
        shifts.append((abs(mean - share), mean, share, name))
    shift, mean, share, name = max(shifts, default=(0.0, 0.0, 0.0, ""))
    if shift <= 5:
        return ""
    text = "LOSS.CLASS_WEIGHTS shifts the probabilities: the mean of"
    return f"{text} {name} is {percent(mean)}, and {percent(share)} of the images have it"


def status_of(run: RunContents) -> tuple[str, str]:
    """The remark beside the state of the run, and the command that resumes it or that its verdict advises; or ''."""
    values = run.values
    resume = values.get("resume") or ""
    if run.state == "killed":
        return "Its process has ended without a reason.", command_of(run, f"-resume={run.folder.absolute()}")
    if run.state in UNFINISHED:
        return f"Last status: {values.get('updated')}.", ""
    verdict, command = verdict_of(run)
    remarks = [values.get(key) for key in ("reason", "message", "signal")]
    return ". ".join(map(str, filter(None, [*remarks, verdict]))), command or resume


def details_of(run: RunContents) -> dict[str, str]:
    """Model, data, devices and environment, by name."""
    options = run.options
    model = run.fact(facts.Model)
    path = options.get("DATA.DATA_PATH")
    environment = run.fact(facts.Environment) or facts.Environment("", {}, [])
    resumes = run.values["starts"] - 1
    details = {
        "Model": f"{options['MODEL.NAME']} ({options['MODEL.TYPE']})",
        "Size": model.size if model else "",
        "Initial weights": str(options["MODEL.PRETRAINED"] or options["MODEL.RESUME"] or "random"),
        "Data set": f"{options['DATA.DATASET']}, {path}" if path else options["DATA.DATASET"],
    }
    kinds = {facts.TrainingData: "Data", facts.EvaluationData: "Data"}
    kinds |= {facts.Preprocessing: "Preprocessing", facts.Devices: "Devices", facts.ImagesRead: "Images"}
    for kind, name in kinds.items():
        if fact := run.fact(kind):
            details[name] = str(fact).removeprefix(f"{name}: ")
    return details | {
        "Environment": str(environment),
        "Hosts": ", ".join(dict.fromkeys(environment.hosts)),
        "Command": environment.command,
        "Started": f"{run.values['started'] or ''}{f', resume {resumes}' if resumes > 0 else ''}",
    }
