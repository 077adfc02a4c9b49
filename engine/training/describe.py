"""The lines of a training before its first step: how its state was built, and options that do not fit it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from timm.layers import DropPath
from torch import nn

from configs.batch_plan import EpochLayout
from configs.schema import Model, Parallel, Train
from configs.yaml_io import format_value
from datasets.sources.class_names import list_names
from engine.progress import EpochProgress
from engine.run.cost import model_line
from engine.run.facts import Devices, TrainingData, place_of
from engine.training.loss import Teacher
from engine.training.optimizer import describe_optimizer, timm_name, unused_optimizer_keys
from engine.training.step import TrainState
from models.weights.fit import Fitted, NewHead
from utils.device import cpu_warning
from utils.notes import Note, texts_of

_MOST_CLASSES = 3  # on the screen


@dataclass(frozen=True)
class HeadClasses:
    """The classes of the data in the head of the weights.

    rows: as in `Purpose`. kept, new: names of classes with a row, and without one. ambiguity: the reason why
    the order of the outputs is unknown, if the weights have no class names.
    """

    rows: Sequence[int] = ()
    kept: Sequence[str] = ()
    new: Sequence[str] = ()
    ambiguity: str = ""


def notes_on_weights(weights: Fitted, classes: HeadClasses, has_solved_head: bool) -> list[Note]:
    """has_solved_head: the head is of the probe, by MODEL.HEAD."""
    notes = weights.notes()
    if has_solved_head:
        notes.append(Note("log", "the head starts as the probe's (MODEL.HEAD)"))
    if classes.ambiguity and NewHead.NO_KNOWN_CLASS in weights.new_heads.values():
        problem = "the weights have no class names, so that no row of the head is kept"
        notes.append(Note("screen", f"{problem}: {classes.ambiguity}"))
    parts = (("kept", classes.kept), ("new", classes.new))
    lists = [f"{len(names)} {kind} ({list_names(names)})" for kind, names in parts if names]
    if lists:
        notes.append(Note("screen", f"classes of the head: {', '.join(lists)}"))
    return [note.on("Pretrained") for note in notes]


def notes_on_teacher(teacher: Teacher) -> list[Note]:
    data = teacher.data
    fitted = teacher.fitted
    seen = f"{data.image_size} pixels, mean {list(data.imagenet_mean)}, std {list(data.imagenet_std)}"
    about = Note("screen", f"{teacher.name}, weights: {fitted.source}, {seen}")
    return [note.on("Teacher") for note in (about, *fitted.remarks)]


def notes_on_rates(model: nn.Module, options: Model) -> list[Note]:
    """The dropout and drop-path rates of timm's code that are higher than MODEL says; not of attention weights."""
    rates = {"DROPOUT": float(getattr(model, "drop_rate", 0) or 0), "DROPPATH": 0.0}
    for path, module in model.named_modules():
        if isinstance(module, DropPath):
            rates["DROPPATH"] = max(rates["DROPPATH"], module.drop_prob)
        elif isinstance(module, nn.Dropout) and not path.endswith("attn_drop"):
            rates["DROPOUT"] = max(rates["DROPOUT"], module.p)
    notes = []
    for key, rate in rates.items():
        given = getattr(options, key.lower())
        if rate > (given or 0) + 1e-6:
            notes.append(Note("log", f"MODEL.{key} {format_value(given)}: timm's code sets up to {rate:g}"))
    return notes


def notes_on_one_process(options: Parallel) -> list[Note]:
    """A warning of the options that one process does not use."""
    changed = options.model_dump(exclude_defaults=True)
    given = [f"PARALLEL.{key.upper()} {format_value(value)}" for key, value in changed.items()]
    return [Note("warning", f"one process does not use {', '.join(given)}")] if given else []


def notes_on_optimizer(optimizer: torch.optim.Optimizer, peak_lr: float, train: Train, global_size: int) -> list[Note]:
    notes = [Note("log", f"Optimizer: {describe_optimizer(optimizer, train.optimizer)}")]
    unused = unused_optimizer_keys(train.optimizer)
    if unused:
        notes.append(Note("warning", f"TRAIN.OPTIMIZER.NAME {train.optimizer.name} does not use {', '.join(unused)}"))
    if peak_lr != train.base_lr:
        scaled = f"BASE_LR {train.base_lr:g}, scaled for {global_size} images per step"
        notes.append(Note("log", f"Learning rate: peak {peak_lr:.3g} ({scaled})"))
    return notes


def notes_on_batches(layout: EpochLayout) -> list[Note]:
    """The images of the incomplete last batch, on the screen if they are over a tenth; DATA.GLOBAL_BATCH_SIZE."""
    notes = []
    if layout.left_out:
        text = f"of {layout.samples:,} images fill no batch: each epoch leaves out as many, others each time"
        kind: Literal["screen", "log"] = "screen" if 10 * layout.left_out > layout.samples else "log"
        notes.append(Note(kind, f"Training: {layout.left_out:,} {text}"))
    if layout.batch.whole_steps:
        notes.append(Note("log", f"Global batch: {layout.batch}; TRAIN.ACCUM_ITER is not used"))
    return notes


def find_misfits(state: TrainState, is_new: bool) -> list[Note]:
    """Warnings of options that do not fit the size of this run, or this device."""
    train = state.config.train
    layout = state.layout
    model = state.config.model
    epochs = train.num_epochs
    rate = train.base_lr
    optimizer = train.optimizer.name
    is_sgd = optimizer.lower() in ("sgd", "nesterov", "momentum")
    has_constant_decay = train.model_ema and train.model_ema_warmup is not True
    initial = train.model_ema_decay ** (epochs * layout.steps_per_epoch)
    lacks_weights = is_new and model.tune != "full" and not model.pretrained
    other_batch = _of_other_batch(train, layout.batch.global_size)
    on_cpu = cpu_warning(state.context.device)
    texts = texts_of(
        (other_batch, other_batch),
        (
            rate > 0.05 and optimizer.lower().startswith("adam"),
            f"TRAIN.BASE_LR {rate:g} is a rate of SGD, and {optimizer} diverges: use 1e-3",
        ),
        (
            is_sgd and 0 < rate < 1e-4,
            f"TRAIN.BASE_LR {rate:g} is a rate of AdamW, and {optimizer} changes the weights little: try 0.1",
        ),
        (
            train.end_lr > rate,
            f"TRAIN.END_LR {train.end_lr:g} exceeds BASE_LR {rate:g}, so the rate rises; lower it",
        ),
        (
            train.warmup_epochs > epochs / 2,
            f"TRAIN.WARMUP_EPOCHS {train.warmup_epochs:g} exceeds half of NUM_EPOCHS {epochs}; lower it",
        ),
        (
            has_constant_decay and initial > 0.1,
            f"TRAIN.MODEL_EMA_DECAY {train.model_ema_decay:g}: the last average is {initial:.0%} initial weights; "
            "lower it, or TRAIN.MODEL_EMA_WARMUP=true",
        ),
        (
            lacks_weights,
            f"MODEL.TUNE={model.tune} keeps random weights: give the weights of the backbone with -pretrained",
        ),
        (on_cpu, on_cpu),
    )
    return [Note("warning", text) for text in texts]


def _of_other_batch(train: Train, size: int) -> str:
    """A warning of a rate that is tuned for another global batch; '' for this one."""
    tuned_for = train.base_lr_batch_size
    if tuned_for in (None, size) or train.linear_scaled_lr:
        return ""
    # As timm's train.py: linear for SGD (Goyal et al., 2017), else the square root (for Adam: Malladi et al., 2022).
    is_sgd = timm_name(train.optimizer).startswith(("sgd", "momentum", "nesterov", "lars"))
    fitting = train.base_lr * (size / tuned_for) ** (1 if is_sgd else 0.5)
    return (
        f"BASE_LR {train.base_lr:g} is tuned for a global batch of {tuned_for}, not {size}: "
        f"use TRAIN.BASE_LR={fitting:.3g}"
    )


def describe_on_screen(
    state: TrainState,
    fitted: Fitted,
    data: TrainingData,
    class_names: Sequence[str] | None,
    resumed: EpochProgress | None,
) -> list[str]:
    """The lines of the screen before the first step: data, model, and the training. resumed: the position."""
    config = state.config
    train = state.config.train
    layout = state.layout
    weights = "random weights"
    if resumed:
        weights = f"resumed at epoch {resumed.epoch + 1}, step {resumed.done_steps}"
    elif fitted.source:
        new = {*fitted.new_heads.values()} - {NewHead.OTHER_NORM}
        weights = f"weights: {Path(str(config.model.pretrained)).name}"
        if new:
            weights += ", new head"
    training = "linear probe"
    if not config.model.solves_head:
        steps = layout.steps_per_epoch
        images = layout.batches_per_epoch * layout.batch.micro_step_size
        size = min(layout.batch.global_size, images)
        last = images - (steps - 1) * layout.batch.global_size
        training = f"{_count(train.num_epochs, 'epoch')} of {_count(steps, 'step')} of {_count(size, 'image')}"
        if last < size:
            training += f" (the last of {last:,})"
    if train.minutes and not resumed:
        training += f", {_count(train.minutes, 'minute')}"
    devices = Devices(state.context.world_size, str(state.context.device), state.precision.short_name)
    classes = f": {list_names(class_names, _MOST_CLASSES)}" if class_names else ""
    return [
        f"Data: {data.images}{place_of(config.data)}{classes}",
        model_line(config, state.meta_model, weights),
        f"Training: {training}; {devices}",
    ]


def _count(number: float, noun: str) -> str:
    """'1 minute', '2.5 minutes' or '1,437 images'."""
    text = f"{number:,}".removesuffix(".0")
    return f"{text} {noun}" if number == 1 else f"{text} {noun}s"
