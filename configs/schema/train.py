"""The sections TRAIN, with its keys about augmentation and distillation, and LOSS."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from configs.parts import LOSSES, OPTIMIZERS
from configs.schema.section import (
    FROM_LIST,
    Count,
    Floats,
    OptionalPath,
    Positive,
    Probability,
    Section,
    Shares,
    option,
    optional,
    switch,
)
from configs.yaml_io import Values

# In the order in which they are tried. The content of a file tells its format.
WEIGHTS_EXTENSIONS = (
    ".pdparams", ".safetensors", ".pth", ".pt", ".bin", ".npz", ".pth.tar", ".ckpt", ".tar", ".pyth",
)  # fmt: skip
DEFAULT_TEACHER = "regnety_160.deit_in1k"  # DeiT's (Touvron et al., 2021)
_MAX_MAGNITUDE = 10
_M = r"m(\d|[12]\d|30)"
_STD = r"mstd\d{1,3}(\.\d{1,9})?"
_PROBABILITY = r"p(0(\.\d{1,9})?|1(\.0)?)"
# timm's policy strings, and torchvision's classes (tv_): name -> a section after it. n: weighted choice is without
# replacement, of 14 operations or more
_SECTIONS = {
    "rand": rf"{_M}|n([1-9]|1[0-4])|{_PROBABILITY}|{_STD}|mmax([1-9]|[12]\d|30)|inc[01]|tweights|t3a|t3aw",
    "augmix": rf"{_M}|w([1-9]|10)|d([1-9]|10)|a(0\.[1-9]\d{{0,8}}|[1-9]\d?(\.\d{{1,9}})?|100)|b[01]|{_STD}",
    **dict.fromkeys(("original", "originalr", "v0", "v0r", "3a"), _STD),
    **dict.fromkeys(("tv_ra", "tv_augmix"), _M),
    **dict.fromkeys(("tv_ta_wide", "tv_imagenet"), r"(?!)"),
}


def check_policy(text: str) -> str:
    """Raises ValueError for a string that timm would not read completely: it skips or asserts unknown sections."""
    name, *sections = text.split("-")
    if name not in _SECTIONS:
        raise ValueError(f"the policy {name!r} is unknown; known: {', '.join(_SECTIONS)}")
    values = {}
    for section in sections:
        if not re.fullmatch(_SECTIONS[name], section, re.ASCII):
            raise ValueError(f"the section {section!r} of {name} is unknown, or its value is out of range")
        key = "t" if section.startswith("t") else section.rstrip("0123456789.")
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = section.removeprefix(key)
    magnitude = int(values.get("m", 0))
    maximum = int(values.get("mmax", _MAX_MAGNITUDE))
    if magnitude > maximum and not name.startswith("tv_"):
        raise ValueError(f"m{magnitude} exceeds {maximum}, to which timm limits it: write m{maximum}")
    return text


class Augmentation(Section):
    color_jitter: float = option(
        0.0,
        "maximum change of brightness, contrast and saturation; applied without a policy, or with a 3a policy",
        ge=0,
    )
    auto_augment: bool = switch("AutoAugment's ImageNet policy, as PaddleViT has it")
    rand_augment: bool = switch("RandAugment as PaddleViT has it; precedes AUTO_AUGMENT")
    rand_augment_layers: int = option(2, "RandAugment: operations per image", ge=1, le=100)
    rand_augment_magnitude: float = option(9, "RandAugment: mean magnitude", ge=0, le=_MAX_MAGNITUDE)
    augment_policy: Annotated[str, AfterValidator(check_policy)] | None = optional(
        "timm's policy string, such as rand-m9-mstd0.5-inc1, 3a, augmix-m3-w3 or original, or torchvision's tv_ta_wide "
        "(TrivialAugmentWide), tv_ra-m9, tv_imagenet or tv_augmix-m3; precedes RAND_AUGMENT"
    )
    mixup_alpha: float = option(0.0, "mixup: Beta parameter; 0: off", ge=0)
    mixup_prob: Probability = option(1.0, "probability of mixup or CutMix per batch")
    mixup_switch_prob: Probability = option(0.5, "probability of CutMix if both are on")
    mixup_mode: Literal["batch"] = option("batch", "one draw for all images of a batch")
    mixup_off_epoch: int = option(0, "no mixup and CutMix from this epoch, counted from 0; 0: never", ge=0)
    cutmix_alpha: float = option(0.0, "CutMix: Beta parameter; 0: off", ge=0)
    cutmix_minmax: Shares | None = optional("CutMix: range of side / image size, instead of CUTMIX_ALPHA; null: off")
    random_erase_prob: Probability = option(0.0, "probability of random erasing per training image")
    random_erase_mode: Literal["const", "rand", "pixel"] = option(
        "pixel", "erased pixels become the mean color, one random color per rectangle, or noise"
    )
    random_erase_count: int = option(1, "maximum number of rectangles per erased image", ge=1, le=100)
    random_erase_after_mixup: bool = switch(
        "true: erase parts of the mixed images, as timm's default loader; false: erase, then mix, as DeiT, PaddleViT "
        "and timm's --no-prefetcher"
    )


class Distillation(Section):
    """The names are PaddleViT's, whose TEACHER_MODEL is a file of weights; TEACHER_WEIGHTS is ours."""

    distillation_type: Annotated[
        Literal["none", "soft", "hard"], BeforeValidator(lambda name: "none" if name is None else name)
    ] = option("none", "targets from a teacher; soft: its softened probabilities; hard: its most probable class")
    distillation_alpha: Probability = option(0.5, "weight of the distillation loss; the labels' loss has 1 - this")
    distillation_tau: Positive = option(1.0, "soft: temperature, which divides the logits of both models")
    teacher_model: OptionalPath = optional(
        "a model of timm's, or a recipe in configs/; null: the model that the checkpoint TEACHER_WEIGHTS "
        f"names, else {DEFAULT_TEACHER}; a file of weights: its stem is the model, if the file does not name it"
    )
    teacher_weights: OptionalPath = optional("the teacher's weights: a file, or timm to download timm's")

    @property
    def teacher_file(self) -> str | None:
        """The weights of the teacher: TEACHER_WEIGHTS, else TEACHER_MODEL if it is a file."""
        if self.teacher_weights or self.named_teacher:
            return self.teacher_weights
        return self.teacher_model

    @property
    def named_teacher(self) -> str | None:
        """TEACHER_MODEL if it names a model and no file."""
        return None if _is_file(self.teacher_model) else self.teacher_model

    @property
    def implied_teacher(self) -> str:
        """The model if neither TEACHER_MODEL nor the checkpoint names one."""
        if self.teacher_model is None:
            return DEFAULT_TEACHER
        name = os.path.basename(self.teacher_model)
        end = max((end for end in WEIGHTS_EXTENSIONS if name.lower().endswith(end)), key=len, default="")
        return name.removesuffix(name[len(name) - len(end) :])


def _is_file(teacher: str | None) -> bool:
    if teacher is None or teacher.lower().endswith(WEIGHTS_EXTENSIONS):
        return teacher is not None
    is_path = teacher.startswith(("/", "./", "../"))  # PaddleViT's files are named without their ending
    return (is_path or os.path.isfile(teacher)) and not teacher.endswith((".yaml", ".yml"))


Plans = Sequence[Sequence[float]]


@dataclass
class Horizon:
    """The end of a run: its epochs, and its plans with TRAIN.MINUTES. A new plan changes the one object of the run.

    plans: as TRAIN.PLANS.
    """

    num_epochs: int
    plans: Plans = ()

    @property
    def plans_in_use(self) -> Plans:
        """PLANS, unless NUM_EPOCHS has been changed since."""
        if self.plans and self.plans[-1][2] == self.num_epochs:
            return self.plans
        return ((0, 0, self.num_epochs),)

    def in_first_plan(self, at: float, per_epoch: int = 1) -> float:
        """The place in the first plan of the place `at` in the run: in epochs, or in steps, `per_epoch` of them."""
        plans = [[per_epoch * one for one in plan] for plan in self.plans_in_use]
        for since, place, end in reversed(plans):
            if at > since:
                return place + (at - since) * ((plans[0][2] - place) / (end - since))
        return at

    @property
    def options(self) -> Values:
        """By dotted key."""
        return {"TRAIN.NUM_EPOCHS": self.num_epochs, "TRAIN.PLANS": self.plans}


_Beta = Annotated[float, Field(ge=0, lt=1)]
_PADDLEVIT_NAMES = {"warmupcosine": "cosine"}


class Optimizer(Section):  # type: ignore[no-redef]  # pydantic's plugin, on a field that is called kwargs
    name: str = option(
        "AdamW",
        "AdamW, AdamWDL (AdamW with LAYER_DECAY), Adam, SGD (with momentum), nesterov (timm's sgd), or any of timm "
        "or a plugin",
    )
    eps: float | None = optional("term added to the denominator; null: the optimizer's own (AdamW 1e-8)", gt=0)
    betas: Annotated[tuple[_Beta, ...], Field(min_length=2, max_length=3), FROM_LIST] | None = optional(
        "decay rates of the two or three moments; null: the optimizer's own (AdamW 0.9, 0.999)"
    )
    momentum: Probability = option(0.9, "momentum of SGD and similar optimizers")
    kwargs: Annotated[Values | None, AfterValidator(OPTIMIZERS.check_kwargs)] = optional(
        "other arguments of the optimizer, such as {caution: true} for lion, {fallback_list: [head.*]} for muon"
    )


class LRScheduler(Section):
    """The decay of the learning rate after the warm-up."""

    needs = (
        ("DECAY_EPOCHS", "NAME", "step", "wsd"),
        ("DECAY_RATE", "NAME", "step"),
        ("WARMUP_PREFIX", "NAME", "cosine", "linear", "step"),
    )
    name: Annotated[
        Literal["cosine", "step", "linear", "wsd"],
        BeforeValidator(lambda name: _PADDLEVIT_NAMES.get(name, name) if isinstance(name, str) else name),
    ] = option(
        "cosine",
        "cosine (or PaddleViT's warmupcosine) and linear: decay to END_LR; step: multiply by DECAY_RATE every "
        "DECAY_EPOCHS, not below END_LR; wsd: constant, then a linear decay to END_LR in the last DECAY_EPOCHS",
    )
    decay_epochs: float | None = optional(
        "step: epochs between two reductions, counted from the first epoch, warm-up included; wsd: epochs of the "
        "final decay; null: 30, for wsd a fifth of NUM_EPOCHS",
        gt=0,
    )
    decay_rate: float = option(0.1, "step: factor of each reduction", gt=0, le=1)
    warmup_prefix: bool | None = optional(
        "true: the decay starts after the warm-up; false: it starts at step 0, and the warm-up overrides its first "
        "steps, as in timm; null: false for step, else true; wsd always starts after the warm-up"
    )


class Train(Augmentation, Distillation):
    last_epoch: int = option(0, "number of finished epochs; training starts at the next one", ge=0)
    num_epochs: Count = option(300, "number of epochs")
    max_steps: int | None = optional("save a checkpoint and stop after this many steps in all", ge=1)
    minutes: float | None = optional(
        "from the command to the end, evaluations and files included: NUM_EPOCHS and EPOCH_STEPS of a new run follow "
        "from the speed of its first steps",
        gt=0,
    )
    plans: Annotated[tuple[tuple[float, float, int], ...], FROM_LIST] = option(
        (),
        "written by a run with MINUTES, for each plan: its first epoch, the epoch of the first plan with that learning "
        "rate, NUM_EPOCHS; WARMUP_EPOCHS, MIXUP_OFF_EPOCH and DECAY_EPOCHS are of the first plan; no effect on another "
        "NUM_EPOCHS than the last one",
    )
    epoch_steps: int | None = optional("steps of an epoch, if all images are more; other images in each", ge=1)
    warmup_epochs: float = option(
        32,
        "epochs of linear warm-up, included in NUM_EPOCHS; a tenth of them where another file, -epochs or -opts "
        "lowers them to twice the recipe's warm-up or less (without one in the recipe: to the warm-up or less)",
        ge=0,
    )
    weight_decay: float = option(0.3, "weight decay; not applied to biases, norms and tokens", ge=0)
    base_lr: float = option(3e-3, "peak learning rate, before LINEAR_SCALED_LR", ge=0)
    warmup_start_lr: float = option(1e-6, "learning rate at the first step of the warm-up", ge=0)
    end_lr: float = option(0.0, "minimum learning rate, at the end of the schedule", ge=0)
    lr_scheduler: LRScheduler = LRScheduler()
    base_lr_batch_size: int | None = optional(
        "global batch size that BASE_LR was tuned for; a run with another one logs a warning; null: unknown, as for a "
        "BASE_LR that -opts or a recipe over its BASE sets",
        ge=1,
    )
    linear_scaled_lr: int | None = optional("multiplies the three learning rates by global batch size / this", ge=1)
    sqrt_scaled_lr: int | None = optional("the same by the square root, in runs of before that resume", ge=1)
    grad_clip: float | None = optional("max gradient norm over all parameters; null or 0: off", ge=0)
    accum_iter: Count = option(1, "gradient accumulation steps; not used with DATA.GLOBAL_BATCH_SIZE")
    compile: Literal["auto", "none", "default", "model", "max"] = option(
        "auto",
        "auto: default on a GPU if the steps save more time than compiling takes (-h RULES), else none; default: "
        "compile each block, equal ones once, or a model without any; model: compile the whole model, which takes "
        "longer; max: also autotune it on a GPU, with CUDA graphs on one GPU without accumulation",
    )
    layer_decay: float | None = optional("learning rate of a layer / rate of the next layer", gt=0, le=1)
    head_lr_scale: Positive = option(1.0, "learning rate of the head / rate of the layer before it")
    smoothing: Probability = option(0.0, "label smoothing")
    model_ema: bool = switch("keep an exponential moving average of the weights and evaluate it")
    model_ema_decay: float = option(0.99996, "decay of the average per step", ge=0, lt=1)
    model_ema_warmup: bool | Literal["copy"] = option(
        True,
        "a lower decay in the first steps: 1 - step ** (-2 / 3), up to MODEL_EMA_DECAY, as in timm; copy: the first "
        "step copies the weights, as timm does without its warm-up; false: always MODEL_EMA_DECAY, as in PaddleViT",
    )
    patience: int | None = optional(
        "end the run at the first evaluation that is this many epochs after the best one (by EVAL.BEST_METRIC, among "
        "equal ones the lowest loss); null: off",
        ge=1,
    )
    optimizer: Optimizer = Optimizer()

    @property
    def compiles(self) -> bool:
        """Of a plan: auto is then one of the other values, or stands for none."""
        return self.compile not in ("auto", "none")

    @property
    def horizon(self) -> Horizon:
        return Horizon(self.num_epochs, self.plans)

    def _problems(self) -> Iterator[str]:
        length = f"NUM_EPOCHS {self.num_epochs}"
        warmup = f"WARMUP_EPOCHS {self.warmup_epochs:g}"
        scheduler = self.lr_scheduler
        decay = scheduler.decay_epochs or 0.0
        if self.warmup_epochs > self.num_epochs:
            yield f"{warmup} exceeds {length}; lower it or train longer"
        if self.optimizer.name.lower() == "adamwdl" and self.layer_decay is None:
            yield "OPTIMIZER.NAME AdamWDL needs LAYER_DECAY; set it, such as to 0.75, or use AdamW"
        if scheduler.name == "wsd" and decay + self.warmup_epochs > self.horizon.plans_in_use[0][2]:
            yield f"LR_SCHEDULER.DECAY_EPOCHS {decay:g} and {warmup} exceed {length}; lower one of them"
        if self.last_epoch >= self.num_epochs:
            yield f"LAST_EPOCH {self.last_epoch} of {length}: no epoch is left to train; lower it"


class Loss(Section):  # type: ignore[no-redef]  # pydantic's plugin, on a field that is called kwargs
    """The training loss. `TRAIN.SMOOTHING` applies to all of them; the evaluation loss is always cross-entropy."""

    needs = (("TARGET_THRESHOLD", "NAME", "bce"),)
    name: Annotated[str, AfterValidator(LOSSES.check_name)] = option(
        "cross_entropy",
        "cross_entropy; bce: of each class, binary (ResNet strikes back, DeiT III); asl: the same with less weight of "
        "easy negatives (Ridnik et al., 2021); or a plugin's",
    )
    kwargs: Annotated[Values | None, AfterValidator(LOSSES.check_kwargs)] = optional(
        "asl: {gamma_neg: 4, gamma_pos: 1, clip: 0.05}; or the options of a plugin's loss"
    )
    target_threshold: float | None = optional(
        "bce: targets above it, smoothed and mixed, become 1, others 0; null: soft targets", ge=0, lt=1
    )
    smooth_to_half: bool = switch(
        "with DATA.MULTI_LABEL, TRAIN.SMOOTHING moves each target toward 0.5, as timm's; false: toward 1 / classes"
    )
    class_weights: Literal["balanced"] | Floats | None = optional(
        "factor of the loss of each class (bce, asl: of its positive term); balanced: proportional to 1 / training "
        "images, with a mean of 1 over these images (DATA.MULTI_LABEL: images without / with the label); or a list of "
        "NUM_CLASSES values; null: 1"
    )

    def _problems(self) -> Iterator[str]:
        weights = self.class_weights
        if isinstance(weights, tuple) and min(weights, default=0) <= 0:
            yield f"CLASS_WEIGHTS {list(weights)}: each weight must be greater than 0"
