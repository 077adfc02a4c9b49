"""The head of a page: state, result, model and data; and the verdict on a run.

The verdict is the line at the end of a run whose model is worse than a baseline or its own probe, or overfits.
Differences within their standard error are none.
"""

import json
import math
import os
import shlex
from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

from configs.compare import differing_from_defaults
from configs.load import FINETUNED, RUN_OPTIONS
from configs.schema.data import properties_of
from configs.weights import PLACE, SPLIT
from engine.report.charts import duration, gigabytes, number, percent
from engine.report.contents import Evaluation, Row, RunContents, best_epoch, points
from engine.run import facts
from engine.run.record import BASELINES
from utils.file_formats.hf_folder import HUB, LOCAL, find_on_hub
from utils.metric_table import METRICS
from utils.notes import SWEEP
from utils.tables import to_float


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
    """The result, first, and the figures that say what it is worth; all other figures."""
    epoch = "" if run.score is not None else "no evaluation"
    if run.best:
        epoch = f"epoch {run.best[0]} of {run.options['TRAIN.NUM_EPOCHS']}"
    evaluated = run.fact(facts.EvaluationData)
    if evaluated and evaluated.remark:
        epoch = evaluated.remark
    split = run.split
    latest, kind = (run.test, "test") if run.test else (run.evaluation, split)
    before = run.evaluation if run.test else None
    best = "" if run.is_evaluation else "best "
    baseline, majority = (percent(run.measured(name)) for name in BASELINES)
    first = [
        _result_tile(run, run.test, "test", run.test_score),
        Tile("pixel baseline", baseline, f"majority class {majority}", "colours and shapes of 16x16 pixels alone"),
        Tile("linear probe", run.metric.text(run.measured("probe_score")), "the start of this run"),
        *_point_tiles(latest, kind),
        *_group_tiles(run, latest, kind),
        *_worst_class(run),
        Tile("training time", duration(run.measured("train_seconds")), "without evaluations"),
    ]
    shown = [metric for name, metric in METRICS.items() if name in run.figures and run.shows(metric)]
    ece = run.evaluation.values.get("ece") if run.evaluation else None
    speed = run.measured("images_per_second")
    others = [
        *(Tile(f"{split} {one.title}", one.text(run.figures[one.name])) for one in shown if one is not run.metric),
        *_point_tiles(before, split),
        *_group_tiles(run, before, split),
        Tile("k-NN top-1", percent(run.measured("knn_top1")), "on the features of the start"),
        Tile("L2 penalty", number(run.measured("probe_l2")), "of the probe, on standardized features"),
        Tile("calibration error", percent(to_float(ece)), "ECE"),
        Tile("images/s", "" if speed is None else number(round(speed, 1)), "all devices"),
        Tile("peak memory", gigabytes(run.measured("peak_memory_bytes"))),
    ]
    result = _result_tile(run, run.evaluation, f"{best}{split}", run.score, epoch)
    return [result, *(tile for tile in first if tile.value)], [tile for tile in others if tile.value]


def interval_text(limits: Any) -> str:
    """'95% interval 88.65 to 98.10%'; '' if they are not two numbers."""
    given = limits if isinstance(limits, list | tuple) else []
    numbers = [one for one in map(to_float, given) if one is not None]
    return f"95% interval {numbers[0]:.2f} to {percent(numbers[1])}" if len(numbers) == 2 else ""


def interval_of(run: RunContents, evaluation: Evaluation | None) -> str:
    """The interval of the metric that decides, or why there is none; '' for files of an earlier epoch than the best."""
    if not evaluation or (run.best and evaluation.values.get("epoch") not in (None, run.best[0])):
        return ""
    reason = evaluation.values.get("interval_missing")
    return f"no interval: {reason}" if reason else interval_text(evaluation.values.get("interval"))


def score_text(run: RunContents, evaluation: Evaluation | None, score: float | None) -> str:
    """'97.83%, 95% interval 95.72 to 98.92%': the metric that decides."""
    return ", ".join(filter(None, [run.metric.text(score), interval_of(run, evaluation)]))


def _result_tile(
    run: RunContents,
    evaluation: Evaluation | None,
    kind: str,
    score: float | None,
    remark: str = "",
    of: str = "images",
) -> Tile:
    """The metric that decides. kind: of the images, as 'best validation'. of: images or groups."""
    title = run.metric.title
    samples = to_float(evaluation.values.get("samples")) if evaluation else None
    images = [number(samples), kind.removeprefix("best "), of]
    remarks = filter(None, [interval_of(run, evaluation), remark])
    words = f"{_IN_WORDS.get(run.metric.name, title)}, of {' '.join(filter(None, images))}"
    by_group = " by group" if of == "groups" else ""
    return Tile(f"{kind} {title}{by_group}".strip(), run.metric.text(score), "; ".join(remarks), words)


def pooled_tiles(run: RunContents, title: str, pooled: Evaluation) -> list[Tile]:
    """The result of all folds together, one of which is `run`. title: ', out of fold, 5 folds'."""
    tile = _result_tile(replace(run, epochs=[]), pooled, "", to_float(pooled.values.get(run.metric.name)))
    return [replace(tile, words=f"{tile.words}{title}"), *_point_tiles(pooled, "out of fold")]


def _worst_class(run: RunContents) -> list[Tile]:
    """The class with the lowest F1 or AP: a high top-1 may hide a class that is lost. Empty without such figures.

    Of classes with equal scores, the one with the most images.
    """
    evaluation = run.evaluation
    column = "ap" if run.is_multi_label else "f1"
    rows = evaluation.classes if evaluation else []
    figures = ((row["class"], points([row], column, "count")) for row in rows)
    classes = [(score, -count, name) for name, known in figures for score, count in known]
    if not evaluation or not classes:
        return []
    lowest, negative_count, name = min(classes)
    remark = f"{name}, {-negative_count:,.0f} image{'s' * (negative_count != -1)}"
    zeros = sum(score == 0 for score, _, _ in classes)
    if zeros > 1:
        remark += f"; {zeros:,} of {len(classes):,} classes have 0%"
    if run.best and evaluation.values.get("epoch") != run.best[0]:
        remark += f"; epoch {evaluation.values.get('epoch')}"
    return [Tile("worst class", f"{column.upper()} {percent(lowest)}", remark)]


def _group_tiles(run: RunContents, evaluation: Evaluation | None, split: str) -> list[Tile]:
    """The metric that decides, and the operating point, of the means of groups."""
    groups = evaluation.groups if evaluation else None
    if not groups:
        return []
    left_out = groups.values.get("unreadable")
    remark = f"{left_out} have different labels, or no image" if left_out else ""
    score = to_float(groups.values.get(run.metric.name))
    tile = _result_tile(run, groups, split, score, remark, "groups")
    return [tile, *_point_tiles(groups, f"{split} group".strip())]


def _point_tiles(evaluation: Evaluation | None, split: str) -> list[Tile]:
    """The figures at the operating point, on the images of a split."""
    point = evaluation.values.get("operating_point") if evaluation else None
    if not isinstance(point, dict):
        return []
    sensitivity, specificity = (percent(to_float(point.get(name))) for name in ("sensitivity", "specificity"))
    logit = to_float(point.get("threshold"))
    remarks = ["no threshold reaches the goal"]
    if logit is not None:
        probability = 1 / (1 + math.exp(min(-logit, 700)))
        interval = interval_text(point.get("sensitivity_interval"))
        remarks = [interval, f"specificity {specificity}, from p {probability:.4g} on"]
    name = f"{split} sensitivity, {point.get('class')}".strip()
    return [Tile(name, sensitivity or "none", "; ".join(filter(None, remarks)), f"{point.get('class')} recognized")]


def class_figures(run: RunContents) -> list[str]:
    """Lines for the log: 'Classes: macro F1 82.90%, worst class F1 0.00% (newt, 3 images)', the operating point and
    groups, of the test images if there are some; empty without these figures.
    """
    latest, kind = (run.test, "test") if run.test else (run.evaluation, run.split)
    macro_f1 = percent(run.figures.get("macro_f1")) if run.metric.name != "macro_f1" else ""
    classes = [_text_of_tile(one) for one in (Tile("macro F1", macro_f1), *_worst_class(run)) if one.value]
    lines = [f"Classes: {', '.join(classes)}"] if classes else []
    others = [*_point_tiles(latest, kind), *_group_tiles(run, latest, kind)]
    return lines + [_text_of_tile(one) for one in others]


def _text_of_tile(tile: Tile) -> str:
    return f"{tile.name} {tile.value}{f' ({tile.remark})' if tile.remark else ''}"


def shift_by_weights(run: RunContents) -> str:
    """The label whose mean probability is farthest from its share of the images, if the classes have weights.

    '' for a difference below 5 points.
    """
    evaluation = run.evaluation
    if not evaluation or not run.options["LOSS.CLASS_WEIGHTS"]:
        return ""
    images = to_float(evaluation.values.get("samples")) or math.inf
    figures = ((row["class"], points([row], "probability", "count")) for row in evaluation.classes)
    shifts = [(mean, 100 * count / images, name) for name, known in figures for mean, count in known]
    mean, share, name = max(shifts, key=lambda one: abs(one[0] - one[1]), default=(0.0, 0.0, ""))
    if abs(mean - share) <= 5:
        return ""
    text = f"of {name} is {percent(mean)} on average, and {percent(share)} of the images have it"
    return f"LOSS.CLASS_WEIGHTS shifts the probabilities: that {text}"


def status_of(run: RunContents) -> tuple[str, str]:
    """The remark beside the state of the run, and the command that resumes it or that its verdict advises; or ''."""
    values = run.values
    resume = str(run.values.get("resume") or "")
    match run.state:
        case "finished":
            verdict, command = verdict_of(run)
            reason = f"Stopped early: {values['reason']}." if values.get("reason") else ""
            return f"{reason} {verdict}".strip(), command or resume
        case "killed":
            return "Its process has ended without a reason.", _command(run, f"-resume={run.folder.absolute()}")
        case "running" | "stopping":
            return f"Last status: {values.get('updated')}.", ""
    return str(values.get("message") or values.get("signal") or ""), resume


def details_of(run: RunContents) -> dict[str, str]:
    """Model, data, devices and environment, by name; '' if it is not known."""
    options = run.options
    model = run.fact(facts.Model)
    data = run.fact(facts.TrainingData) or run.fact(facts.EvaluationData)
    environment = run.fact(facts.Environment) or facts.Environment("", {}, [])
    dataset = options["DATA.DATASET"]
    resumes = run.values["starts"] - 1
    return {
        "Model": f"{options['MODEL.NAME']} ({options['MODEL.TYPE']})",
        "Size": model.size if model else "",
        "Initial weights": str(options["MODEL.PRETRAINED"] or options["MODEL.RESUME"] or "random"),
        "Data set": f"{dataset}, {options['DATA.DATA_PATH']}" if properties_of(dataset).has_files else dataset,
        "Data": str(data or "").removeprefix("Data: "),
        "Preprocessing": str(run.fact(facts.Preprocessing) or "").removeprefix("Preprocessing: "),
        "Devices": str(run.fact(facts.Devices) or ""),
        "Environment": str(environment),
        "Hosts": ", ".join(dict.fromkeys(environment.hosts)),
        "Command": environment.command,
        "Started": f"{run.values['started'] or ''}{f', resume {resumes}' if resumes > 0 else ''}",
    }


_RISE, _OVERFITS = 2.0, 10.0  # points, or the noise: of a rise; of training above validation
_WEIGHTED = ("DATA.BALANCED_SAMPLING", "LOSS.CLASS_WEIGHTS")
_MIXED = ("TRAIN.MIXUP_ALPHA", "TRAIN.CUTMIX_ALPHA", "TRAIN.CUTMIX_MINMAX", *_WEIGHTED)
_MANY = 1e9  # images, if their number is not known
_OF_IMAGES = ("top1", "top5", "loss")  # metrics in which all images weigh the same
_RIVALS = {
    "pixel_baseline": "pixel baseline",
    "majority_class": "majority class",
    "knn_top1": "k-NN on the features of its initial weights",
    "probe_score": "linear probe of its initial weights",
}


def verdict_of(run: RunContents) -> tuple[str, str]:
    """The first defect of a trained model, with its numbers, and a command to try; '' and '' for most runs."""
    if run.is_evaluation or run.state != "finished" or run.score is None:
        return "", ""
    for rule in (_training_at_chance, _below_a_rival, _overfitting):
        text, command = rule(run)
        if text:
            return text, command
    return "", ""


def _training_at_chance(run: RunContents) -> tuple[str, str]:
    text = _at_chance(run)
    return (f"{text}.", _with_lower_rate(run)) if text else ("", "")


def _below_a_rival(run: RunContents) -> tuple[str, str]:
    better = _better_rivals(run)
    if not better:
        return "", ""
    _, _, rival, scores = max(better)
    subject = "Each epoch" if rival == "probe_score" else "The model"
    text = f"{subject} is worse than the {_RIVALS[rival]}: {scores}."
    val = _top1_curve(run, "val")
    epochs = run.options["TRAIN.NUM_EPOCHS"]
    has_one = len(val) == 1 < epochs
    if _rises(run, val) or run.options["TRAIN.MINUTES"] or (has_one and rival in BASELINES):  # one cannot rise
        return text, _command(run, f"-resume={run.folder.absolute()}", f"-epochs={2 * epochs}")
    if rival not in BASELINES and "probe_score" in {key for _, _, key, _ in better}:
        return text, _with_lower_rate(run)
    return text, _other_tuning(run)


def _overfitting(run: RunContents) -> tuple[str, str]:
    """Top-1 of training means nothing with mixed images or a teacher."""
    options = run.options
    train = _top1_curve(run, "train")
    val = _top1_curve(run, "val")
    if options["TRAIN.DISTILLATION_TYPE"] != "none" or any(options[key] for key in _MIXED) or not (train and val):
        return "", ""
    gap = train[-1] - val[-1]
    noise = _noise(train[-1], val[-1], _sample_size(run, "top1"))
    epochs = _trained_epochs(run)
    early = [y for x, y in points(epochs, "epoch", "val_top1") if 3 * x <= len(epochs)]
    if not early or gap <= max(_OVERFITS, 2 * noise) or max(val) >= max(early) + _RISE:
        return "", ""
    figures = f"training top-1 {percent(train[-1])} and validation top-1 {percent(val[-1])}"
    text = f"validation is flat after the first third of {len(epochs)} epochs; at the end {figures}"
    return f"The model overfits, or training differs from validation: {text}.", _other_tuning(run)


def _trained_epochs(run: RunContents) -> list[Row]:
    return [row for row in run.epochs if row["epoch"]]  # epoch 0 is the probe


def _top1_curve(run: RunContents, split: str) -> list[float]:
    """Top-1 of the epochs with an evaluation."""
    evaluated = [row for row in _trained_epochs(run) if points([row], "epoch", "val_top1")]
    return [top1 for _, top1 in points(evaluated, "epoch", f"{split}_top1")]


def _rises(run: RunContents, val: list[float]) -> bool:
    """Returns whether the mean of the last fifth is above the mean of the fifth before."""
    if len(val) < 2 or run.values.get("stopped_early"):
        return False
    fifth = max(len(val) // 5, 1)
    before = fmean(val[-2 * fifth : -fifth])
    last = fmean(val[-fifth:])
    noise = _noise(before, last, _sample_size(run, "top1")) / math.sqrt(fifth)
    return last - before >= max(_RISE, noise)


def _better_rivals(run: RunContents) -> list[tuple[float, float, str, str]]:
    """(points, figure, key, 'top-1 60.00% against 79.33%') of each of `_RIVALS` that is better by more than the noise.

    A run with weighted classes, or for another metric, may have less top-1.
    """
    found = list[tuple[float, float, str, str]]()
    chosen = run.metric
    is_weighted = any(run.options[key] for key in _WEIGHTED)
    for key in _RIVALS:
        metric = chosen if key == "probe_score" else METRICS["top1"]
        trained = best_epoch(_trained_epochs(run), metric)
        own = run.figures.get(metric.name) if key != "probe_score" else trained and trained[1]
        other = run.measured(key)
        images = _sample_size(run, metric.name)
        is_aim = metric is chosen or chosen.name in _OF_IMAGES
        is_aim = is_aim and metric.name != "loss" and not (is_weighted and metric.name in _OF_IMAGES)
        if is_aim and own is not None and other is not None and other - own > _noise(own, other, images):
            scores = f"{metric.title} {percent(own)} against {percent(other)}"
            found.append((other - own, other, key, scores))
    return found


def first_epoch_of(run: RunContents) -> str:
    """A line on a first epoch at chance, or below the probe of its run by more than twice the noise; '' for others."""
    text = _at_chance(run, math.inf)
    for gap, probe, rival, scores in _better_rivals(run):
        if rival == "probe_score" and gap > 2 * _noise(probe - gap, probe, _sample_size(run, run.metric.name)):
            text = text or f"The first epoch is far below the probe: {scores}"
    return text and f"{text}; -lr={run.options['TRAIN.BASE_LR'] / 10:g} changes the weights less"


def _at_chance(run: RunContents, few_steps: float = 100) -> str:
    """A text, if the training loss ends at least as high as with equal probabilities of all classes; '' for others.

    At a good rate it may, too, after a few steps, but then it was never twice as high.
    """
    options = run.options
    chance = math.log(to_float(run.options["MODEL.NUM_CLASSES"]) or 1)
    steps, losses = zip(*(points(run.epochs, "step", "train_loss") or [(0.0, -math.inf)]), strict=True)
    loss = [options[key] for key in ("LOSS.NAME", "LOSS.CLASS_WEIGHTS", "TRAIN.DISTILLATION_TYPE")]
    is_high = 0 < chance <= losses[-1] and (steps[-1] >= few_steps or max(losses) > 2 * chance)
    if not is_high or loss != ["cross_entropy", None, "none"]:
        return ""
    return f"The training loss is {number(losses[-1])}, and a guess of the class has {chance:.2f}"


def _sample_size(run: RunContents, name: str) -> float:
    """The number of validation images for the noise of a metric: in a mean over classes, small classes count more."""
    data = run.fact(facts.TrainingData)
    classes = run.evaluation.classes if run.evaluation else []
    counts = list(filter(None, (to_float(row.get("count")) for row in classes)))
    if name in _OF_IMAGES or not counts:
        return run.measured("samples") or (data.validation if data else _MANY)
    return min(counts) if name == "min_recall" else len(counts) * harmonic_mean(counts)


def _noise(first: float, second: float, images: float) -> float:
    """The standard error of the difference of two figures in percent, of `images` images each.

    Of the same images it is lower. A share of n images is (hits + 1) / (n + 2): 0 and 100% have noise, too (Laplace).
    """
    images = max(images, 1)
    shares = [(min(max(one / 100, 0), 1) * images + 1) / (images + 2) for one in (first, second)]
    return 100 * math.sqrt(sum(share * (1 - share) for share in shares) / images)


_OF_DATA = {f"DATA.{key}" for key in (*PLACE[1:], *SPLIT, "ON_BAD_IMAGE", "GREY_RANGE", "RESIZE")}
_OF_DATA |= {"DATA.CACHE_DIR", "DATA.CACHE_GB", "DATA.NUM_WORKERS", "SAVE"}
_OF_TRAINING = ("NUM_CLASSES", "RESUME", "TUNE", "HEAD", "BATCH_NORM", "GRAD_CHECKPOINTING", "LORA")  # of MODEL


def _head_alone(run: RunContents) -> str:
    """The run as a probe; with its head trained alone if it is not one linear layer; '' after such a run."""
    options = run.options
    model = run.fact(facts.Model)
    tune = "head" if model and not model.can_probe else "probe"
    if options["MODEL.TUNE"] == tune:
        return ""
    changed = [f"MODEL.TUNE={tune}"]
    if tune == "probe" and options["PARALLEL.STRATEGY"] != "ddp":
        changed.append("PARALLEL.STRATEGY=ddp")
    return _again(run, *changed)


def _other_tuning(run: RunContents) -> str:
    """A probe: of the weights of the run, else of probe.yaml's; after a probe, a fine-tuning.

    '' if a recipe reads weights of timm that are not here and cannot be downloaded.
    """
    options = run.options
    is_probe = options["MODEL.TUNE"] == "probe"
    weights = options["MODEL.PRETRAINED"]
    if weights and not is_probe:
        return _head_alone(run)
    if not weights and not _finds_weights_of_probe():
        return ""
    differing = differing_from_defaults(options)
    given = {key: options[key] for key in differing if key in _OF_DATA}
    recipe = Path(__file__).parents[2] / "configs" / f"{'finetune' if is_probe else 'probe'}.yaml"
    flags = [f"-cfg={recipe}", f"-dataset={options['DATA.DATASET']}"]
    if "DATA.DATA_PATH" in given:
        flags.append(f"-data_path={given.pop('DATA.DATA_PATH')}")
    if weights and options["MODEL.TYPE"] == "transformers":  # config.json beside the weights has the MODEL.KWARGS
        folder = os.path.dirname(weights) if os.path.isfile(weights) else weights
        flags.append(f"-model={weights if weights.startswith(HUB) else LOCAL + folder}")
    elif weights:
        given |= {key: options[key] for key in options if _describes_model(key, differing)}
    if given:
        flags += ["-opts", *(f"{key}={_text_of(value)}" for key, value in given.items())]
    return _command(run, *flags)


def _describes_model(key: str, differing: Container[str]) -> bool:
    if key in ("MODEL.TYPE", "MODEL.NAME"):
        return True
    return key in differing and key.startswith("MODEL.") and key.split(".")[1] not in _OF_TRAINING


def _text_of(value: Any) -> str:
    if isinstance(value, str) and value.isalpha():
        return value
    return json.dumps(value)


@cache
def _finds_weights_of_probe() -> bool:
    from models.timm_model import published_on_hub  # imports timm, which a page does not need

    return find_on_hub(*published_on_hub(FINETUNED)) is not None


def _with_lower_rate(run: RunContents) -> str:
    return _again(run, f"TRAIN.BASE_LR={run.options['TRAIN.BASE_LR'] / 10:g}")


def _again(run: RunContents, *options: str) -> str:
    """The run with other options, beside it, but not in a sweep."""
    folder = run.folder.absolute()
    is_beside = "SAVE" in differing_from_defaults(run.options)
    output = [f"-output={folder.parent}"] if is_beside and not (folder.parent / SWEEP).exists() else []
    return _command(run, f"-cfg={folder / RUN_OPTIONS}", *output, "-opts", *options)


def _command(run: RunContents, *flags: str) -> str:
    """The command line with these flags for the script of the run, its number of processes and its device."""
    return f"{(run.fact(facts.Start) or facts.Start('', 0)).program} {shlex.join(flags)}"
