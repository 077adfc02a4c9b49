"""The head of a page: state, result, model and data; and the verdict on a run.

The verdict is the line at the end of a run whose model is worse than the pixel baseline, or has not been trained
enough.
"""

import math
import shlex
from typing import Any

from configs.data_sets import properties_of
from engine.report.contents import RunContents
from engine.report.formats import duration, gigabytes, number, option, percent
from engine.run.facts import Attention, Devices, Environment, EvaluationData, Model, TrainingData
from engine.run.result import BASELINES, points
from utils.metric_table import METRICS
from utils.tables import to_float


def tiles_of(run: RunContents) -> list[tuple[str, str, str]]:
    """(name, value, remark) of the numbers of the result, the most important first; '' for no value."""
    evaluated = run.evaluation.summary if run.evaluation else {}
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
    if run.best and evaluation.summary.get("epoch") != run.best[0]:
        remark += f"; epoch {evaluation.summary.get('epoch')}"
    macro_f1 = run.figures.get("macro_f1") if run.metric.name != "macro_f1" else None
    tiles = [("macro F1", percent(macro_f1), ""), ("worst class", f"{column.upper()} {percent(lowest)}", remark)]
    return [tile for tile in tiles if tile[1]]


def class_figures(run: RunContents) -> str:
    """', macro F1 82.90%, worst class F1 0.00% (newt, 3 images)'; '' without these figures."""
    return "".join(f", {name} {value}{f' ({remark})' if remark else ''}" for name, value, remark in class_tiles(run))


def status_of(run: RunContents) -> tuple[str, str]:
    """A sentence on the state of the run, and the command that resumes it ('' if there is none)."""
    status = run.status
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
            command = f"python main_single_gpu.py -resume={shlex.quote(str(run.folder))}"
            reason = "The process ended before the run did, without a reason in status.json."
            return reason, resume if run.plugins else command
    return "The state of the run is not known: it has no status.json.", ""


def details_of(run: RunContents) -> dict[str, str]:
    """Model, data, devices and options of the training or the evaluation, by name."""
    options, facts = run.options, run.facts
    devices, attention, trained = facts.get(Devices), facts.get(Attention), facts.get(Model)
    data = facts.get(EvaluationData) if run.is_evaluation else facts.get(TrainingData)
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
        details |= {"Training": _training(run), "Started": _started(run)}
    if environment := facts.get(Environment):
        hosts, variables = dict.fromkeys(environment.hosts), environment.variables.items()
        details |= {"Environment": str(environment), "Hosts": ", ".join(hosts), "Command": environment.command}
        details["Variables"] = ", ".join(f"{name}={value}" for name, value in variables)
    return {name: text for name, text in details.items() if text}


def class_names_of(run: RunContents) -> list[str]:
    names = run.classes.get("class_names")
    return list(map(str, names)) if isinstance(names, list) else []


def evaluates_average(run: RunContents) -> bool:
    """Returns whether the evaluated weights are an average; `-pretrained` does not say which weights its file has."""
    has_average = run.options["TRAIN.MODEL_EMA"] is True
    return has_average and bool(not run.is_evaluation or run.options["MODEL.RESUME"])


def _preprocessing(run: RunContents) -> str:
    values = run.classes.get("preprocessing")
    values = values if isinstance(values, dict) else {}
    labels = {"crop_pct": "crop"} if values.get("resize", "crop") == "crop" else {"resize": ""}
    labels |= {"channels": "channels", "mean": "mean", "std": "std", "interpolation": ""}
    shown = [f"{label} {values[name]}".strip() for name, label in labels.items() if name in values]
    side = run.options["DATA.IMAGE_SIZE"]
    return ", ".join([f"{side} × {side} pixels", *shown])


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
        "devices": run.status.get("world_size"),
    }
    (first, size), *others = factors.items()
    shown = [f"{first} {option(size)}", *(f"{option(factor)} {name}" for name, factor in others if factor != 1)]
    if len(shown) > 1 and all(isinstance(factor, int) for factor in factors.values()):
        return f"{' × '.join(shown)} = {math.prod(factors.values()):,}"
    return shown[0]


def _started(run: RunContents) -> str:
    started, resumes = str(run.status.get("started") or ""), run.facts.starts - 1
    if started and resumes > 0:
        return f"{started}, resumed {resumes} time{'s' * (resumes > 1)}: this is the latest start"
    return started


_RISE, _MAX_GAP = 2.0, 2.0  # percentage points: in the last fifth of the epochs; of training above validation
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
    rises = _rises(val) and not run.status.get("stopped_early")
    longer = f"-resume={shlex.quote(str(run.folder))} -epochs={2 * options['TRAIN.NUM_EPOCHS']}"
    script = f"python main_{'multi' if run.status.get('world_size', 1) > 1 else 'single'}_gpu.py"
    baseline, name = max((run.measured(name) or 0.0, name.replace("_", " ")) for name in BASELINES)
    if top1 < baseline and run.metric.name in ("top1", "top5", "loss") and not any(options[key] for key in _WEIGHTED):
        text = f"The model is worse than the {name}: top-1 {percent(top1)} against {percent(baseline)}."
        if not rises and properties_of(options["DATA.DATASET"]).has_files:
            text += " Without a download: -cfg=configs/folder_small.yaml as it is."
        return text, f"{script} {longer if rises else _pretrained(run)}"
    is_plain = options["TRAIN.DISTILLATION_TYPE"] == "none" and not any(options[key] for key in _MIXED)
    if rises and is_plain and _rises(train) and train[-1] <= val[-1] + _MAX_GAP:
        figures = f"training top-1 {percent(train[-1])} and validation top-1 {percent(val[-1])} still rise"
        return f"The model underfits: {figures}.", f"{script} {longer}"
    return "", ""


def _rises(values: list[float]) -> bool:
    fifth = max(len(values) // 5, 1)
    return len(values) > 2 and sum(values[-fifth:]) - sum(values[-2 * fifth : -fifth]) >= _RISE * fifth


def _pretrained(run: RunContents) -> str:
    """The flags of a probe on the same data; after a probe, of a fine-tuning."""
    dataset, recipe = run.options["DATA.DATASET"], "finetune" if run.options["MODEL.TUNE"] == "probe" else "probe"
    path = f" -data_path={shlex.quote(run.options['DATA.DATA_PATH'])}" if properties_of(dataset).has_files else ""
    return f"-cfg=configs/{recipe}.yaml -dataset={dataset}{path}"
