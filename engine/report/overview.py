"""The head of a page: state, result, model and data; and the verdict on a run.

The verdict is the line at the end of a run whose model is worse than the pixel baseline or than its raw weights, has
not been trained enough, or overfits.
"""

import json
import math
import shlex
from pathlib import Path
from typing import Any

from configs.compare import differing_from_defaults
from configs.data_sets import properties_of
from configs.load import RUN_OPTIONS
from configs.weights import PLACE, SPLIT
from engine.report.charts import duration, gigabytes, number, option, percent
from engine.report.contents import RunContents, points
from engine.report.tables import OPTIONS_OF_RUN
from engine.run.facts import Attention, Devices, Environment, EvaluationData, Model, Start, TrainingData
from engine.run.record import BASELINES
from utils.metric_table import METRICS
from utils.tables import to_float


def tiles_of(run: RunContents) -> list[tuple[str, str, str]]:
    """(name, value, remark) of the numbers of the result, the most important first; '' for no value."""
    evaluated = run.evaluation.values if run.evaluation else {}
    metric, rest = run.metric, [METRICS[name] for name in run.figures if name not in (run.metric.name, "macro_f1")]
    epoch = f"epoch {run.best[0]} of {run.options['TRAIN.NUM_EPOCHS']}" if run.best else ""
    ece, ece_epoch = to_float(evaluated.get("ece")), evaluated.get("epoch")
    is_older = run.best and ece_epoch != run.best[0]
    test_samples = to_float(run.test_result.get("samples"))
    speed = run.measured("images_per_second")
    majority = f"majority class {percent(run.measured('majority_class'))}"
    split = run.split
    best = f"{'' if run.is_evaluation else 'best '}{split} {metric.title}"
    tiles = [
        (best, metric.text(run.score), epoch or ("" if run.score is not None else "no evaluation")),
        *class_tiles(run),
        (f"test {metric.title}", metric.text(run.test_score), f"{number(test_samples)} held-out images"),
        *((f"{split} {one.title}", one.text(run.figures[one.name]), "") for one in rest if run.shows(one)),
        ("pixel baseline", percent(run.measured("pixel_baseline")), majority),
        ("calibration error", percent(ece), f"ECE of epoch {ece_epoch}" if is_older else "ECE"),
        ("training time", duration(run.measured("train_seconds")), "without evaluations"),
        ("images/s", "" if speed is None else number(round(speed, 1)), "all devices"),
        ("peak memory", gigabytes(run.measured("peak_memory_bytes")), ""),
    ]
    first, *others = [(name.strip(), value, remark) for name, value, remark in tiles]
    return [first, *(tile for tile in others if tile[1])]


def class_tiles(run: RunContents) -> list[tuple[str, str, str]]:
    """Macro F1 and the class with the lowest F1 or AP, as `tiles_of`: a high top-1 may hide a class that is lost.

    Of classes with equal scores, the one with the most images. Empty without figures per class.
    """
    evaluation, column = run.evaluation, "ap" if run.is_multi_label else "f1"
    classes = [
        (score, -(to_float(row.get("count")) or 0), row["class"])
        for row in (evaluation.classes if evaluation else [])
        if (score := to_float(row.get(column))) is not None
    ]
    if not evaluation or not classes:
        return []
    lowest, negative_count, name = min(classes)
    remark = f"{name}, {-negative_count:,.0f} image{'s' * (negative_count != -1)}"
    zeros = sum(score == 0 for score, _, _ in classes)
    if zeros > 1:
        remark += f"; {zeros:,} of {len(classes):,} classes have 0%"
    if run.best and evaluation.values.get("epoch") != run.best[0]:
        remark += f"; epoch {evaluation.values.get('epoch')}"
    macro_f1 = run.figures.get("macro_f1") if run.metric.name != "macro_f1" else None
    tiles = [("macro F1", percent(macro_f1), ""), ("worst class", f"{column.upper()} {percent(lowest)}", remark)]
    return [tile for tile in tiles if tile[1]]


def class_figures(run: RunContents) -> str:
    """', macro F1 82.90%, worst class F1 0.00% (newt, 3 images)'; '' without these figures."""
    return "".join(f", {name} {value}{f' ({remark})' if remark else ''}" for name, value, remark in class_tiles(run))


def status_of(run: RunContents) -> tuple[str, str]:
    """A sentence on the state of the run, and the command that resumes it ('' if there is none)."""
    status = run.values
    resume = str(status.get("resume") or "")
    match run.state:
        case "finished":
            done = "All images are evaluated." if run.is_evaluation else "All epochs are trained."
            done = f"Stopped early: {status['reason']}." if status.get("reason") else done
            verdict, command = verdict_of(run)
            return f"{done} {verdict}".strip(), command or resume
        case "failed":
            return f"{status.get('message') or 'The reason is in log.txt.'}", ""
        case "interrupted":
            return f"Interrupted by {status.get('signal') or 'a signal'}, and saved.", resume
        case "stopped":
            return "Stopped at TRAIN.MAX_STEPS, and saved.", resume
        case "running" | "stopping":
            return f"The run was in progress when this page was written. Last status: {status.get('updated')}.", ""
        case "killed":
            reason = "The process ended before the run did, without a reason in run.json."
            return reason, _command(run, f"-resume={run.folder.absolute()}")
    return "The state of the run is not known.", ""


def details_of(run: RunContents) -> dict[str, str]:
    """Model, data, devices and options of the training or the evaluation, by name."""
    options = run.options
    devices, attention, trained = run.fact(Devices), run.fact(Attention), run.fact(Model)
    data = run.fact(EvaluationData) if run.is_evaluation else run.fact(TrainingData)
    model = [str(options["MODEL.NAME"]), f"family {options['MODEL.TYPE']}", trained.size if trained else ""]
    dataset = options["DATA.DATASET"]
    details = {
        "Model": ", ".join(filter(None, model)),
        "Weights" if run.is_evaluation else "Initial weights": str(
            options["MODEL.PRETRAINED"] or options["MODEL.RESUME"] or "random"
        ),
        "Evaluated weights": "exponential moving average (EMA)" if evaluates_average(run) else "",
        "Data": f"{dataset}, {options['DATA.DATA_PATH']}" if properties_of(dataset).has_files else dataset,
        "Images": data.images if data else "",
        "Preprocessing": _preprocessing(run),
        "Devices": devices.hardware if devices else "",
        "Precision": devices.precision if devices else "",
        "Attention": ", ".join(attention.kernels) if attention else "",
    }
    if run.is_evaluation:
        details["Test-time augmentation"] = str(options["EVAL.TTA"])
    else:
        started, resumes = str(run.values["started"] or ""), run.values["starts"] - 1
        if started and resumes > 0:
            started += f", resumed {resumes} time{'s' * (resumes > 1)}: this is the latest start"
        details |= {"Training": _training(run), "Options changed": _changes(run), "Started": started}
    if environment := run.fact(Environment):
        hosts, variables = dict.fromkeys(environment.hosts), environment.variables.items()
        details |= {"Environment": str(environment), "Hosts": ", ".join(hosts), "Command": environment.command}
        details["Variables"] = ", ".join(f"{name}={value}" for name, value in variables)
    return {name: text for name, text in details.items() if text}


def evaluates_average(run: RunContents) -> bool:
    """Returns whether the evaluated weights are an average; `-pretrained` does not say which weights its file has."""
    has_average = run.options["TRAIN.MODEL_EMA"] is True
    return has_average and bool(not run.is_evaluation or run.options["MODEL.RESUME"])


def _preprocessing(run: RunContents) -> str:
    values = run.values.get("preprocessing")
    values = values if isinstance(values, dict) else {}
    labels = {"crop_pct": "crop"} if values.get("resize", "crop") == "crop" else {"resize": ""}
    labels |= {"channels": "channels", "mean": "mean", "std": "std", "interpolation": ""}
    shown = [f"{label} {values[name]}".strip() for name, label in labels.items() if name in values]
    size = run.options["DATA.IMAGE_SIZE"]
    height, width = size if isinstance(size, list) else (size, size)
    return ", ".join([f"{height} × {width} pixels", *shown])


def _training(run: RunContents) -> str:
    options = run.options
    if options["MODEL.TUNE"] == "probe":
        return f"linear probe, seed {option(options['SEED'])}"
    epochs, learning_rate, seed = (option(options[key]) for key in ("TRAIN.NUM_EPOCHS", "TRAIN.BASE_LR", "SEED"))
    is_scaled = options["TRAIN.LINEAR_SCALED_LR"] or options["TRAIN.SQRT_SCALED_LR"]
    return (
        f"{epochs} epochs, {options['TRAIN.OPTIMIZER.NAME']}, peak learning rate {learning_rate}"
        f"{' before scaling' if is_scaled else ''}, {_batch_size(run)}, seed {seed}"
    )


def _batch_size(run: RunContents) -> str:
    """'batch size 32 × 4 accumulation steps × 2 devices = 256'."""
    factors: dict[str, Any] = {
        "batch size": run.options["DATA.BATCH_SIZE"],
        "accumulation steps": run.options["TRAIN.ACCUM_ITER"],
        "devices": run.values.get("world_size"),
    }
    (first, size), *others = factors.items()
    shown = [f"{first} {option(size)}", *(f"{option(factor)} {name}" for name, factor in others if factor != 1)]
    if len(shown) > 1 and all(isinstance(factor, int) for factor in factors.values()):
        return f"{' × '.join(shown)} = {math.prod(factors.values()):,}"
    return shown[0]


def _changes(run: RunContents) -> str:
    """'at step 1,144: DATA.BATCH_SIZE 32 → 64' of a resumed run."""
    stages, texts = [*run.earlier.values(), run.options], []
    for step, before, after in zip(run.earlier, stages, stages[1:], strict=False):
        differing = [key for key in before if key in after and before[key] != after[key] and key not in OPTIONS_OF_RUN]
        changes = ", ".join(f"{key} {option(before[key])} → {option(after[key])}" for key in differing)
        texts += [f"at step {step:,}: {changes}"] if changes else []
    return "; ".join(texts)


_RISE, _MAX_GAP, _OVERFITS = 2.0, 2.0, 20.0  # points: in the last fifth of the epochs; training above validation
_WEIGHTED = ("DATA.BALANCED_SAMPLING", "LOSS.CLASS_WEIGHTS")
_MIXED = ("TRAIN.MIXUP_ALPHA", "TRAIN.CUTMIX_ALPHA", "TRAIN.CUTMIX_MINMAX", *_WEIGHTED)


def verdict_of(run: RunContents) -> tuple[str, str]:
    """Returns the defect of a trained model, in numbers, and a command to try; '' and '' for most runs.

    A run with weighted classes, or for another metric, may have less top-1 than the baseline. Top-1 of training means
    nothing with mixed images or a teacher.
    """
    options, top1 = run.options, run.figures.get("top1")
    if run.is_evaluation or run.state != "finished" or top1 is None:
        return "", ""
    evaluated = [row for row in run.epochs if points([row], "epoch", "val_top1")]
    train, val = ([y for _, y in points(evaluated, "epoch", f"{split}_top1")] for split in ("train", "val"))
    rises = _rises(val) and not run.values.get("stopped_early")
    longer = _command(run, f"-resume={run.folder.absolute()}", f"-epochs={2 * options['TRAIN.NUM_EPOCHS']}")
    baseline, name = max((run.measured(name) or 0.0, name.replace("_", " ")) for name in BASELINES)
    is_below = top1 < baseline and run.metric.name in ("top1", "top5", "loss")
    is_below = is_below and not any(options[key] for key in _WEIGHTED)
    average, raw = map(run.measured, ("average_score", "raw_score"))
    lag = 0.0 if average is None or raw is None else run.metric.sign * (raw - average)
    if lag > _MAX_GAP and not (is_below and (raw or 0.0) < baseline):
        scores = f"{run.metric.title} {run.metric.text(average)} against {run.metric.text(raw)}"
        again = _command(run, f"-cfg={run.folder.absolute() / RUN_OPTIONS}", "-opts", "TRAIN.MODEL_EMA_WARMUP=true")
        text = f"The average of the weights is worse than the raw weights of the last epoch: {scores}."
        return text, longer if options["TRAIN.MODEL_EMA_WARMUP"] else again
    if is_below:
        text = f"The model is worse than the {name}: top-1 {percent(top1)} against {percent(baseline)}."
        if not rises and properties_of(options["DATA.DATASET"]).has_files:
            text += " Without a download: -cfg=configs/folder_small.yaml as it is."
        return text, longer if rises else _pretrained(run)
    is_plain = options["TRAIN.DISTILLATION_TYPE"] == "none" and not any(options[key] for key in _MIXED)
    if rises and is_plain and _rises(train) and train[-1] <= val[-1] + _MAX_GAP:
        figures = f"training top-1 {percent(train[-1])} and validation top-1 {percent(val[-1])} still rise"
        return f"The model underfits: {figures}.", longer
    best, epochs = run.best, len(run.epochs)
    if is_plain and best and train and epochs > 8 and 3 * best[0] <= epochs and train[-1] > val[-1] + _OVERFITS:
        figures = f"training top-1 {percent(train[-1])}, validation top-1 {percent(val[-1])}"
        return f"The model overfits: best epoch {best[0]} of {epochs}, at the end {figures}.", _pretrained(run)
    return "", ""


def _rises(values: list[float]) -> bool:
    fifth = max(len(values) // 5, 1)
    return len(values) > 2 and sum(values[-fifth:]) - sum(values[-2 * fifth : -fifth]) >= _RISE * fifth


_OF_DATA = {f"DATA.{key}" for key in (*PLACE[1:], *SPLIT, "COLUMNS", "ON_BAD_IMAGE", "GREY_RANGE", "RESIZE")}
_OF_DATA |= {"DATA.CACHE_DIR", "DATA.CACHE_GB", "DATA.NUM_WORKERS", "SAVE"}


def _pretrained(run: RunContents) -> str:
    """The command of a probe on the same data, read with the same options; after a probe, of a fine-tuning."""
    recipe = "finetune" if run.options["MODEL.TUNE"] == "probe" else "probe"
    differing = differing_from_defaults(run.options).items()
    options = {key: value for key, (value, _) in differing if key in _OF_DATA}
    flags = [f"-cfg={Path(__file__).parents[2] / 'configs' / recipe}.yaml", f"-dataset={run.options['DATA.DATASET']}"]
    paths = {"data_path": "DATA.DATA_PATH", "output": "SAVE"}
    flags += [f"-{flag}={options.pop(key)}" for flag, key in paths.items() if key in options]
    texts = (value if isinstance(value, str) and value.isalpha() else json.dumps(value) for value in options.values())
    return _command(run, *flags, *(["-opts", *map("=".join, zip(options, texts, strict=True))] if options else []))


def _command(run: RunContents, *flags: str) -> str:
    """The command line with these flags for the script of the run, its number of processes and its device."""
    return f"{(run.fact(Start) or Start('', 0)).program} {shlex.join(flags)}"
