"""The line at the end of a run whose model is worse than the pixel baseline, or has not been trained enough."""

import shlex

from configs.data_sets import properties_of
from engine.report.contents import RunContents
from engine.report.formats import percent
from engine.run.result import BASELINES, points

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
