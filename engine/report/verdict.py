"""The verdict on a run: the line at its end if the model is worse than a baseline or its own probe, or overfits.

A difference within the 95% intervals of the results is none. The advice is a command to type.
"""

import math
import shlex
from statistics import fmean

from configs.load import RUN_OPTIONS
from configs.programs import with_shown_recipes
from engine.checkpoint.run_folder import HELD_OUT_FILE
from engine.evaluation.limits import wilson
from engine.report.charts import number_text, percent
from engine.report.contents import Row, RunContents, best_epoch, points
from engine.run import facts
from engine.run.record import BASELINES
from utils.metric_table import METRICS
from utils.tables import to_float

_RISE = 2.0  # points
_FAR = 10.0  # points: training above validation; a first epoch below the probe
_MUCH = 1.5  # times the lowest loss
_WEIGHTED = {"DATA.BALANCED_SAMPLING": "false", "LOSS.CLASS_WEIGHTS": "null"}  # and their values without weights
_MIXED = ("TRAIN.MIXUP_ALPHA", "TRAIN.CUTMIX_ALPHA", "TRAIN.CUTMIX_MINMAX", *_WEIGHTED)
_LOSS = {"LOSS.NAME": "cross_entropy", "LOSS.CLASS_WEIGHTS": None, "TRAIN.DISTILLATION_TYPE": "none"}
Verdict = tuple[str, str]  # a defect with its numbers, and a command to try
NONE: Verdict = ("", "")  # of most runs


def verdict_of(run: RunContents) -> Verdict:
    """The first defect of a trained model."""
    if run.is_evaluation or run.state != "finished":
        return NONE
    for rule in (_training_at_chance, _lagging_average, _one_answer, _frequent_answer, _below_a_rival, _overfitting):
        verdict = rule(run)
        if verdict != NONE:
            return verdict
    return NONE


def _training_at_chance(run: RunContents) -> Verdict:
    """A training loss that ends at least as high as with equal probabilities of all classes.

    At a good rate it may, too, in the first steps: 100, or 30 if it was twice as high.
    """
    chance = math.log(to_float(run.options["MODEL.NUM_CLASSES"]) or 1)
    losses = points(run.epochs, "step", "train_loss")
    if not losses or any(run.options[key] != value for key, value in _LOSS.items()):
        return NONE
    steps, last = losses[-1]
    least = 30 if max(loss for _, loss in losses) > 2 * chance else 100
    if steps < least or not 0 < chance <= last:
        return NONE
    return f"The training loss is {number_text(last)}, and a guess of the class has {chance:.2f}.", _with_lower_rate(
        run
    )


def _lagging_average(run: RunContents) -> Verdict:
    """An average of the weights far below the raw weights: it has not followed them yet."""
    average = run.measured("average_score")
    raw = run.measured("raw_score")
    if average is None or raw is None or run.metric.sign * (raw - average) <= _FAR:
        return NONE
    figures = f"{run.metric.title} {run.metric.text(average)} against {run.metric.text(raw)} of the raw weights"
    options = ["TRAIN.MODEL_EMA=false", "EVAL_RAW=false"]
    if run.options["TRAIN.MODEL_EMA_WARMUP"] is not True:
        options = ["TRAIN.MODEL_EMA_WARMUP=true"]
    return f"The average of the weights lags behind them: {figures}.", _again(run, *options)


def _one_answer(run: RunContents) -> Verdict:
    """A model with one class for all images: its top-1 is the share of the class, however well it fits the training."""
    rows = run.evaluation.classes
    predicted = [row["class"] for row in rows if to_float(row.get("predicted"))]
    present = [row for row in rows if to_float(row.get("count"))]
    if run.is_multi_label or len(predicted) != 1 or len(present) < 2:
        return NONE
    text = f"The model predicts {predicted[0]} for all validation images: top-1 {percent(run.figures.get('top1'))}"
    return _longer_or_probe(run, f"{text} is the share of this class.")


def _frequent_answer(run: RunContents) -> Verdict:
    """A class that is predicted for many more images than have it, as by the weight of a rare class."""
    classes = run.evaluation.by_class("predicted")
    samples = to_float(run.evaluation.values.get("samples"))
    if run.is_multi_label or not classes or not samples:
        return NONE
    predicted, count, name = max(classes, key=lambda one: one[0] - one[1])
    if predicted - count <= samples / 4:
        return NONE
    called = f"{number_text(predicted)} of {number_text(samples)} validation images are called {name}"
    counts = f"{called}, {number_text(count)} are"
    text = f"The model predicts one class too often: {counts}."
    weighted = [key for key in _WEIGHTED if run.options[key]]
    if not weighted:
        return _longer_or_probe(run, text)
    return text, _again(run, *(f"{key}={_WEIGHTED[key]}" for key in weighted))


def _below_a_rival(run: RunContents) -> Verdict:
    """A trained epoch below the interval of the probe that is the best epoch; a baseline whose interval is above.

    A run with weighted classes may have less top-1.
    """
    baseline = run.fact(facts.PixelBaseline)
    limits = run.evaluation.values.get("interval")
    if limits is None or any(run.options[key] for key in _WEIGHTED):
        return NONE
    if gap := _gap_to_probe(run, limits[0]):
        text = f"Each epoch is worse than the linear probe of its initial weights: {gap}."
        return text, _longer(run) or _with_lower_rate(run)
    other, rival = max((run.measured(name) or 0.0, name) for name in BASELINES)
    if run.metric is not METRICS["top1"] or not baseline:
        return NONE
    if 100 * wilson(other / 100, baseline.validation)[0] <= limits[1]:
        return NONE
    text = f"The model is worse than the {rival.replace('_', ' ')}: top-1 {percent(run.score)}"
    return _longer_or_probe(run, f"{text} against {percent(other)}.")


def _gap_to_probe(run: RunContents, least: float) -> str:
    """'top-1 60.00% against 79.33%', if the best epoch is the probe, and the best trained one is below `least`."""
    best = run.best
    trained = best_epoch(_trained_epochs(run), run.metric)
    if not best or best[0] or not trained or trained[1] >= least:
        return ""
    return f"{run.metric.title} {percent(trained[1])} against {percent(best[1])}"


def _overfitting(run: RunContents) -> Verdict:
    """A validation that is flat by the metric that decides, and far below training, or whose loss rises.

    Top-1 of training means nothing with mixed images or a teacher. Where a class is rare, top-1 of training and of
    validation are near each other, while another metric, such as AUROC, falls: the loss shows it there.
    """
    options = run.options
    if options["TRAIN.DISTILLATION_TYPE"] != "none" or any(options[key] for key in _MIXED):
        return NONE
    metric = METRICS["top1"] if run.metric.sign < 0 else run.metric
    epochs = _trained_epochs(run)
    val = points(epochs, "epoch", f"val_{metric.name}")
    early = [y for x, y in val if 3 * x <= len(epochs)]
    train, val_top1, losses = (points(epochs, "epoch", name) for name in ("train_top1", "val_top1", "val_loss"))
    if not early or not losses or max(y for _, y in val) >= max(early) + _RISE:
        return NONE
    lowest = min(loss for _, loss in losses)
    if train and val_top1 and train[-1][1] - val_top1[-1][1] > _FAR:
        figures = f"training top-1 {percent(train[-1][1])} and validation top-1 {percent(val_top1[-1][1])}"
    elif metric is not METRICS["top1"] and losses[-1][1] > _MUCH * lowest:
        figures = f"the loss of validation is {number_text(losses[-1][1])} after {number_text(lowest)}"
    else:
        return NONE
    text = f"validation is flat after the first third of {len(epochs)} epochs; at the end {figures}"
    return _probe(run, f"The model overfits, or training differs from validation: {text}.")


def _trained_epochs(run: RunContents) -> list[Row]:
    return [row for row in run.epochs if row["epoch"]]  # epoch 0 is the probe


def first_epoch_of(run: RunContents) -> str:
    """A line on a first epoch far below the probe of its run; '' for others."""
    gap = _gap_to_probe(run, run.best[1] - _FAR) if run.best else ""
    if not gap:
        return ""
    return f"The first epoch is far below the probe: {gap}; -lr={_lower_rate(run)} changes the weights less"


def _longer_or_probe(run: RunContents, text: str) -> Verdict:
    if longer := _longer(run):
        return text, longer
    return _probe(run, text)


def _longer(run: RunContents) -> str:
    """The command that doubles the epochs, if time has ended the run, after a single epoch, or if the validation rises:
    the mean of the last fifth is above the mean of the fifth before. '' after an early stop, which more epochs do not
    undo.
    """
    if run.values["stopped_early"]:
        return ""
    val = [y for _, y in points(_trained_epochs(run), "epoch", "val_top1")]
    fifth = max(len(val) // 5, 1)
    rises = len(val) > 1 and fmean(val[-fifth:]) - fmean(val[-2 * fifth : -fifth]) >= _RISE
    if rises or len(val) == 1 or run.options["TRAIN.MINUTES"]:
        epochs = 2 * run.options["TRAIN.NUM_EPOCHS"]
        return command_of(run, f"-resume={run.folder.absolute()}", f"-epochs={epochs}")
    return ""


def _probe(run: RunContents, text: str) -> Verdict:
    """A probe of the weights of the run; without weights, the recipe that reads some."""
    if run.options["MODEL.TUNE"] in ("probe", "head"):
        return text, ""
    if run.options["MODEL.PRETRAINED"]:
        return text, _again(run, "MODEL.TUNE=probe")
    recipe = with_shown_recipes("-cfg=configs/probe.yaml")
    text += f" A pretrained model needs fewer images: {recipe} with the options of the data"
    return f"{text}, offline also -pretrained=FILE -model=NAME.", ""


def _with_lower_rate(run: RunContents) -> str:
    return _again(run, f"TRAIN.BASE_LR={_lower_rate(run)}")


def _lower_rate(run: RunContents) -> str:
    return f"{run.options['TRAIN.BASE_LR'] / 10:g}"


def _again(run: RunContents, *options: str) -> str:
    """The run with other options, on the same images."""
    folder = run.folder.absolute()
    flags = [f"-cfg={folder / RUN_OPTIONS}"]
    has_folds = run.options["DATA.FOLDS"]  # which exclude -held_out
    if (folder / HELD_OUT_FILE).exists() and not has_folds:  # data that have grown would be split in another way
        flags.append(f"-held_out={folder}")
    if run.options["TRAIN.MINUTES"]:  # else it plans for another speed
        options = (*options, "TRAIN.MINUTES=null")
    return command_of(run, *flags, "-opts", *options)


def command_of(run: RunContents, *flags: str) -> str:
    """The command line with these flags for the script of the run, its number of processes and its device."""
    start = run.fact(facts.Start) or facts.Start("", 0)
    return f"{start.program} {shlex.join(flags)}"
