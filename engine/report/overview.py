"""The head of a page: state, result, model and data."""

import math
import shlex
from dataclasses import dataclass
from typing import Any

from engine.report.contents import RunContents
from engine.report.formats import duration, gigabytes, number, option, percent
from engine.run.facts import Attention, Devices, EvaluationData, Model, TrainingData
from utils.tables import to_float

_METRICS = {"mean_ap": "mean AP", "top1": "top-1"}
SPLITS = {"train": "training", "val": "validation", "test": "test"}
_SHOWN_CLASSES = 12


@dataclass(frozen=True)
class Tile:
    """A number, its name, and a short text about it."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Detail:
    """A property of the run.

    names: a list of class names, of which `more` others are left out.
    """

    name: str
    text: str
    names: tuple[str, ...] = ()
    more: int = 0


def split_of(run: RunContents) -> str:
    """The images of the result: validation, training or test; '' if `-eval` knows no split."""
    if not run.summary.is_evaluation:
        return SPLITS["val"]
    return SPLITS.get(str(run.evaluation.summary.get("split")), "") if run.evaluation else ""


def metric_of(run: RunContents) -> tuple[str, float | None]:
    """The name and the best value of the metric, in percent; None without an evaluation."""
    summary = run.summary
    evaluated = run.evaluation.summary if run.evaluation else {}
    best = summary.best[1] if summary.best else None
    for key, name in _METRICS.items():
        values = [
            summary.result.get(key),
            best if summary.score_column == f"val_{key}" else None,
            evaluated.get(key),
        ]
        if (value := next(filter(lambda one: one is not None, map(to_float, values)), None)) is not None:
            return name, value
    return _METRICS["mean_ap" if summary.is_multi_label else "top1"], None


def tiles_of(run: RunContents) -> list[Tile]:
    """The numbers of the result, the most important first."""
    summary, result = run.summary, run.summary.result
    evaluated = run.evaluation.summary if run.evaluation else {}
    metric, value = metric_of(run)
    epoch = f"epoch {summary.best[0]} of {summary.num_epochs}" if summary.best else ""
    split = split_of(run)
    name = f"{'' if summary.is_evaluation else 'best '}{split} {metric}".strip()
    tiles = [Tile(name, percent(value), epoch or ("" if value is not None else "no evaluation"))]
    top5 = next((figures["top5"] for figures in (result, evaluated) if to_float(figures.get("top5"))), None)
    if top5 is not None and run.shows_top5:
        tiles.append(Tile(f"{split} top-5".strip(), percent(to_float(top5))))
    tiles += _test_tiles(run)
    if (loss := _loss(run)) is not None:
        tiles.append(Tile(f"{split} loss".strip(), f"{loss:.4f}"))
    if (error := to_float(evaluated.get("ece"))) is not None:
        measured_at = evaluated.get("epoch")
        is_older = summary.best and measured_at != summary.best[0]
        tiles.append(Tile("calibration error", percent(error), f"ECE of epoch {measured_at}" if is_older else "ECE"))
    if summary.train_seconds is not None:
        tiles.append(Tile("training time", duration(summary.train_seconds), "without evaluations"))
    if summary.images_per_second is not None:
        tiles.append(Tile("images/s", number(round(summary.images_per_second, 1)), "all devices"))
    if summary.peak_memory_bytes is not None:
        tiles.append(Tile("peak memory", gigabytes(summary.peak_memory_bytes)))
    return tiles


def _loss(run: RunContents) -> float | None:
    """The text about the number: the best epoch, or the evaluation."""
    if run.summary.best is None:
        return to_float(run.summary.result.get("loss"))
    rows = (row for row in run.summary.epochs if row["epoch"] == str(run.summary.best[0]))
    return next((to_float(row.get("val_loss")) for row in rows), None)


def test_of(run: RunContents) -> tuple[str, float | None]:
    """The name and the value of the metric on the held-out test images, in percent; None if there are none."""
    test = _test_result(run)
    values = ((name, to_float(test.get(key))) for key, name in _METRICS.items())
    return next((one for one in values if one[1] is not None), ("", None))


def _test_result(run: RunContents) -> dict[str, Any]:
    test = run.summary.result.get("test")
    return test if isinstance(test, dict) else {}


def _test_tiles(run: RunContents) -> list[Tile]:
    metric, value = test_of(run)
    samples = to_float(_test_result(run).get("samples"))
    remark = f"{samples:,.0f} held-out images" if samples else "held out"
    return [Tile(f"test {metric}", percent(value), remark)] if value is not None else []


def status_of(run: RunContents) -> tuple[str, str]:
    """A sentence on the state of the run, and the command that resumes it ('' if there is none)."""
    summary, status = run.summary, run.summary.status
    resume = str(status.get("resume") or "")
    match summary.state:
        case "finished":
            done = "All images are evaluated." if summary.is_evaluation else "All epochs are trained."
            return (f"Stopped early: {status['reason']}." if status.get("reason") else done), resume
        case "failed":
            return f"{status.get('message') or 'The reason is in log.txt.'}", ""
        case "interrupted":
            return f"Interrupted by {status.get('signal') or 'a signal'}, and saved.", resume
        case "stopped":
            return "Stopped at TRAIN.MAX_STEPS, and saved.", resume
        case "running":
            return f"The run was in progress when this page was written. Last status: {status.get('updated')}.", ""
        case "killed":
            command = f"python main_single_gpu.py -resume={shlex.quote(str(summary.folder))}"
            return "The process ended before the run did, without a reason in status.json.", command
    return "The state of the run is not known: it has no status.json.", ""


def details_of(run: RunContents) -> list[Detail]:
    """Model, data, devices and options of the training or the evaluation."""
    options, known = run.summary.options, run.facts
    devices, attention, trained = known.get(Devices), known.get(Attention), known.get(Model)
    data = known.get(EvaluationData) if run.summary.is_evaluation else known.get(TrainingData)
    size = f"{options['DATA.IMAGE_SIZE']} × {options['DATA.IMAGE_SIZE']} pixels"
    model = [str(options["MODEL.NAME"]), f"family {options['MODEL.TYPE']}", trained.size if trained else ""]
    details = [
        Detail("Model", ", ".join(filter(None, model))),
        Detail("Weights" if run.summary.is_evaluation else "Initial weights", _weights(options)),
        Detail("Evaluated weights", "exponential moving average (EMA)" if evaluates_average(run) else ""),
        Detail("Data", _data(options)),
        Detail("Images", data.images if data else ""),
        Detail("Classes", *_classes(run)),
        Detail("Preprocessing", ", ".join([size, *_preprocessing(run.preprocessing)])),
        Detail("Devices", devices.hardware if devices else ""),
        Detail("Precision", devices.precision if devices else ""),
        Detail("Attention", ", ".join(attention.kernels) if attention else ""),
    ]
    if run.summary.is_evaluation:
        details.append(Detail("Test-time augmentation", str(options.get("EVAL.TTA", "none"))))
    else:
        details += [Detail("Training", _training(run)), Detail("Started", _started(run))]
    return [detail for detail in details if detail.text]


def evaluates_average(run: RunContents) -> bool:
    """Returns whether the evaluated weights are an average; `-pretrained` does not say which weights its file has."""
    options = run.summary.options
    has_average = options["TRAIN.MODEL_EMA"] is True
    return has_average and bool(not run.summary.is_evaluation or options["MODEL.RESUME"])


def _weights(options: dict[str, Any]) -> str:
    return str(options["MODEL.PRETRAINED"] or options["MODEL.RESUME"] or "random")


def _data(options: dict[str, Any]) -> str:
    dataset = options["DATA.DATASET"]
    return dataset if dataset == "digits" else f"{dataset}, {options['DATA.DATA_PATH']}"


def _classes(run: RunContents) -> tuple[str, tuple[str, ...], int]:
    names, number_of = run.class_names, run.summary.options["MODEL.NUM_CLASSES"]
    total = len(names) or to_float(number_of)
    return (number(total) if total else ""), tuple(names[:_SHOWN_CLASSES]), max(0, len(names) - _SHOWN_CLASSES)


def _preprocessing(values: dict[str, Any]) -> list[str]:
    shown = {"crop_pct": "crop", "channels": "channels", "mean": "mean", "std": "std", "interpolation": ""}
    return [f"{label} {values[name]}".strip() for name, label in shown.items() if name in values]


def _training(run: RunContents) -> str:
    options = run.summary.options
    epochs, learning_rate, seed = (option(options[key]) for key in ("TRAIN.NUM_EPOCHS", "TRAIN.BASE_LR", "SEED"))
    is_scaled = options["TRAIN.LINEAR_SCALED_LR"] or options["TRAIN.SQRT_SCALED_LR"]
    return (
        f"{epochs} epochs, {options['TRAIN.OPTIMIZER.NAME']}, peak learning rate {learning_rate}"
        f"{' before scaling' if is_scaled else ''}, {_batch_size(run)}, seed {seed}"
    )


def _batch_size(run: RunContents) -> str:
    """'batch size 32 × 4 accumulation steps × 2 devices = 256', or 'global batch size 256, batch size 32'."""
    options = run.summary.options
    if total := options.get("DATA.GLOBAL_BATCH_SIZE"):
        return f"global batch size {option(total)}, batch size {option(options['DATA.BATCH_SIZE'])}"
    batch = options["DATA.BATCH_SIZE"]
    factors = {
        "accumulation steps": options["TRAIN.ACCUM_ITER"],
        "devices": run.summary.status.get("world_size"),
    }
    shown = [f"batch size {option(batch)}"]
    shown += [f"{option(factor)} {name}" for name, factor in factors.items() if factor not in (1, None)]
    values = batch, *factors.values()
    is_known = len(shown) > 1 and all(isinstance(value, int) for value in values)
    return " × ".join(shown) + (f" = {math.prod(values):,}" if is_known else "")


def _started(run: RunContents) -> str:
    status, resumes = run.summary.status, run.facts.starts - 1
    started = str(status.get("started") or "")
    if started and resumes > 0:
        return f"{started}, resumed {resumes} time{'s' * (resumes > 1)}: this is the latest start"
    return started
