"""The verdict on a run: the line at its end if the model is worse than a baseline or its own probe, or overfits.

Differences within their standard error are none. The advice is a command to type.
"""

import math
import os
import shlex
from collections.abc import Container
from functools import cache
from pathlib import Path
from statistics import fmean, harmonic_mean

from configs.compare import differing_from_defaults
from configs.load import FINETUNED, RUN_OPTIONS
from configs.weights import PLACE, SPLIT
from configs.yaml_io import as_option
from engine.report.charts import number, percent
from engine.report.contents import Row, RunContents, best_epoch, points
from engine.run import facts
from engine.run.record import BASELINES
from utils.file_formats.hf_folder import HUB, LOCAL, find_on_hub
from utils.metric_table import METRICS, Metric
from utils.notes import SWEEP
from utils.tables import to_float

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
    for rule in (_training_at_chance, _one_answer, _below_a_rival, _overfitting):
        text, command = rule(run)
        if text:
            return text, command
    return "", ""


def _training_at_chance(run: RunContents) -> tuple[str, str]:
    text = _at_chance(run)
    return (f"{text}.", _with_lower_rate(run)) if text else ("", "")


def _one_answer(run: RunContents) -> tuple[str, str]:
    """A model with one class for all images: its top-1 is the share of the class, however well it fits the training."""
    rows = run.evaluation.classes if run.evaluation else []
    predicted = [row["class"] for row in rows if to_float(row.get("predicted"))]
    present = [row for row in rows if to_float(row.get("count"))]
    if run.is_multi_label or len(predicted) != 1 or len(present) < 2:
        return "", ""
    text = f"The model predicts {predicted[0]} for all validation images: top-1 {percent(run.figures.get('top1'))}"
    return f"{text} is the share of this class.", _longer(run, has_one=True) or _other_tuning(run)


def _below_a_rival(run: RunContents) -> tuple[str, str]:
    better = _better_rivals(run)
    if not better:
        return "", ""
    _, _, rival, scores = max(better)
    subject = "Each epoch" if rival == "probe_score" else "The model"
    text = f"{subject} is worse than the {_RIVALS[rival]}: {scores}."
    if longer := _longer(run, rival in BASELINES):
        return text, longer
    if rival not in BASELINES and "probe_score" in {key for _, _, key, _ in better}:
        return text, _with_lower_rate(run)
    return text, _other_tuning(run)


def _longer(run: RunContents, has_one: bool) -> str:
    """The command that doubles the epochs, if the validation still rises or time has ended the run.

    has_one: also of a run of several epochs with one evaluation, which cannot rise.
    """
    val = _top1_curve(run, "val")
    epochs = run.options["TRAIN.NUM_EPOCHS"]
    is_early = has_one and len(val) == 1 < epochs
    if is_early or run.options["TRAIN.MINUTES"] or _rises(run, val):
        return command_of(run, f"-resume={run.folder.absolute()}", f"-epochs={2 * epochs}")
    return ""


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
    for key in _RIVALS:
        metric = run.metric if key == "probe_score" else METRICS["top1"]
        own = run.figures.get(metric.name)
        if key == "probe_score":
            trained = best_epoch(_trained_epochs(run), metric)
            own = trained and trained[1]
        other = run.measured(key)
        if own is None or other is None or not _is_aim(run, metric):
            continue
        if other - own > _noise(own, other, _sample_size(run, metric.name)):
            scores = f"{metric.title} {percent(own)} against {percent(other)}"
            found.append((other - own, other, key, scores))
    return found


def _is_aim(run: RunContents, metric: Metric) -> bool:
    """Whether the run was trained for the metric, or for one that rises with it."""
    if metric.name == "loss":
        return False
    is_weighted = any(run.options[key] for key in _WEIGHTED)
    if is_weighted and metric.name in _OF_IMAGES:
        return False
    return metric is run.metric or run.metric.name in _OF_IMAGES


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
    if _is_in_sweep(run):
        given["SAVE"] = str(_output_of(run))
    recipe = Path(__file__).parents[2] / "configs" / f"{'finetune' if is_probe else 'probe'}.yaml"
    flags = [f"-cfg={recipe}", f"-dataset={options['DATA.DATASET']}"]
    if "DATA.DATA_PATH" in given:
        flags.append(f"-data_path={given.pop('DATA.DATA_PATH')}")
    if weights and options["MODEL.TYPE"] == "transformers":
        flags.append(f"-model={_source_of(weights)}")
    elif weights:
        given |= {key: options[key] for key in options if _describes_model(key, differing)}
    if given:
        flags += ["-opts", *(f"{key}={as_option(value)}" for key, value in given.items())]
    return command_of(run, *flags)


def _source_of(weights: str) -> str:
    """The value of -model for weights of transformers, beside which config.json has the MODEL.KWARGS."""
    if weights.startswith(HUB):
        return weights
    folder = os.path.dirname(weights) if os.path.isfile(weights) else weights
    return f"{LOCAL}{folder}"


def _describes_model(key: str, differing: Container[str]) -> bool:
    if key in ("MODEL.TYPE", "MODEL.NAME"):
        return True
    return key in differing and key.startswith("MODEL.") and key.split(".")[1] not in _OF_TRAINING


@cache
def _finds_weights_of_probe() -> bool:
    from models.timm_model import published_on_hub  # imports timm, which a page does not need

    return find_on_hub(*published_on_hub(FINETUNED)) is not None


def _with_lower_rate(run: RunContents) -> str:
    return _again(run, f"TRAIN.BASE_LR={run.options['TRAIN.BASE_LR'] / 10:g}")


def _again(run: RunContents, *options: str) -> str:
    """The run with other options, beside it."""
    output = [f"-output={_output_of(run)}"] if "SAVE" in differing_from_defaults(run.options) else []
    return command_of(run, f"-cfg={run.folder.absolute() / RUN_OPTIONS}", *output, "-opts", *options)


def _is_in_sweep(run: RunContents) -> bool:
    """Another run beside this one would be compared with the sweep's."""
    return (run.folder.absolute().parent / SWEEP).exists()


def _output_of(run: RunContents) -> Path:
    """The folder of the run, or of its sweep."""
    folder = run.folder.absolute().parent
    return folder.parent if _is_in_sweep(run) else folder


def command_of(run: RunContents, *flags: str) -> str:
    """The command line with these flags for the script of the run, its number of processes and its device."""
    return f"{(run.fact(facts.Start) or facts.Start('', 0)).program} {shlex.join(flags)}"
