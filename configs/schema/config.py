"""The options of a run, and their dotted keys, such as TRAIN.OPTIMIZER.NAME."""

import functools
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from configs.parts import LOSSES
from configs.schema.compute import Amp, Parallel
from configs.schema.data import AUTO, Data
from configs.schema.families.family import ViT
from configs.schema.families.registry import MODEL_SECTIONS, AnyModel
from configs.schema.model import FIXED_KEYS, FREEZE_BACKBONE
from configs.schema.operating_point import Goal
from configs.schema.section import (
    Count,
    Name,
    Names,
    Path,
    Positive,
    Range,
    Section,
    as_names,
    option,
    optional,
    switch,
)
from configs.schema.train import Loss, Train
from utils.metric_table import Metric, MetricName, best_metric


class Evaluation(Section):
    """Evaluations and predictions. In YAML, `EVAL: true` means `EVAL: {ENABLED: true}`."""

    enabled: bool = switch("evaluate only")
    tta: Literal["none", "flip"] = option(
        "none",
        "test-time augmentation, of the validation in training too; flip: the mean of the logits of an image and of "
        "its mirror image",
    )
    save_logits: bool = switch(
        "write the logits of each image, before the temperature, float16, to evaluation/logits.npz"
    )
    suspects: bool = switch("MODEL.TUNE probe: list images with doubtful labels in suspects/suspects.csv")
    review: Positive | Range | None = optional(
        "-predict: the column needs_review: a number: the highest probability is below it; [low, high]: the "
        "probability of the class of the operating point, else of a label, else the highest one, is between them"
    )
    maps: Literal["crop", "image"] = option(
        "crop", "-explain: maps of the part of an image that the model sees, or of the whole image in its own size"
    )
    best_metric: MetricName | None = optional(
        "what decides which epoch is the best (best.pth, TRAIN.PATIENCE) and ranks runs; macro_f1, balanced_accuracy, "
        "precision, recall, specificity, auroc: means over the classes; min_recall: of the worst class; ece: expected "
        "calibration error; quadratic_kappa, linear_kappa: classes are grades in their order; null: top1, with "
        "DATA.MULTI_LABEL mean_ap"
    )
    operating_point: Goal | None = optional(
        "the threshold of a class against the others, after the temperature, chosen on the validation images, kept "
        "with the weights and used by -predict: {class: NAME, specificity: 0.95} for the highest sensitivity, or "
        "{class: NAME, sensitivity: 0.9}; with DATA.GROUPS, groups: any gives a group the class if any of its images "
        "has it"
    )


class Config(Section):
    """All options of a run, checked and frozen."""

    name: Name | None = optional("the run's folder is NAME-DATE-TIME in SAVE; null: the name of the recipe")
    save: Path = option("./output", "output folder; each run creates a folder in it")
    save_freq: Count = option(10, "epochs between checkpoints")
    save_freq_steps: int | None = optional("steps between additional checkpoints; null: off", ge=1)
    save_freq_minutes: float | None = option(15, "minutes between additional checkpoints; null: off", gt=0)
    keep_checkpoints: int = option(3, "number of periodic checkpoints to keep besides last and best", ge=0)
    report_freq: Count = option(20, "steps between log lines")
    loggers: Annotated[tuple[Literal["wandb", "mlflow", "trackio"], ...], BeforeValidator(as_names)] = option(
        (), "wandb, mlflow, trackio: where the figures of training go besides TensorBoard"
    )
    validate_freq: Count = option(1, "epochs between evaluations; the last epoch is always evaluated")
    seed: int = option(0, "seed of all random numbers of the run", ge=0, lt=2**63)
    deterministic: bool = switch("deterministic algorithms only, which are slower on a GPU")
    timeout_seconds: float = option(
        600,
        "a rank aborts after waiting this long for another rank, also at the start, or 0.9 times as long for its "
        "workers",
        ge=1,
        le=10**6,
    )
    eval: Evaluation = Evaluation()
    eval_raw: bool = switch(
        "training with TRAIN.MODEL_EMA: evaluate the raw weights too, in each evaluation instead of the last one; the "
        "average decides the best"
    )
    plugins: Names = option((), "Python files with own parts; their code runs only if -plugin names them")
    amp: Amp = Amp()
    data: Data = Data()
    model: AnyModel = ViT()
    loss: Loss = Loss()
    train: Train = Train()
    parallel: Parallel = Parallel()

    @property
    def best_metric(self) -> Metric:
        return best_metric(self.eval.best_metric, self.data.multi_label)

    def with_model(self, **changes: Any) -> "Config":
        """A copy with other values of some MODEL keys."""
        return self.changed(model=self.model.changed(**changes))

    def with_data(self, **changes: Any) -> "Config":
        """A copy with other values of some DATA keys."""
        return self.changed(data=self.data.changed(**changes))

    def with_train(self, **changes: Any) -> "Config":
        """A copy with other values of some TRAIN keys."""
        return self.changed(train=self.train.changed(**changes))

    @property
    def _is_probe(self) -> bool:
        return self.model.solves_head and not self.eval.enabled

    def _problems(self) -> Iterator[str]:
        yield from self._problems_of_image_size()
        yield from self._problems_of_weights()
        yield from self._problems_of_batches()
        yield from self._problems_of_training()
        if self.data.multi_label:
            yield from self._problems_of_several_labels()

    def _problems_of_image_size(self) -> Iterator[str]:
        model = self.model
        multiple = model.image_size_multiple
        height, width = self.data.input_size
        size = f"DATA.IMAGE_SIZE {self.data.image_size}"
        if height % multiple or width % multiple:
            nearest = ",".join(str(max(1, round(side / multiple)) * multiple) for side in (height, width))
            other = "" if model.pretrained or model.resume else "; -model=resnet10t takes any size"
            yield f"{size} is not a multiple of {multiple}, as {model.name} needs; the nearest is {nearest}{other}"
        if model.type == "crossvit" and height != width:
            yield f"{size}: CrossViT resizes images to squares; use a number"

    def _problems_of_weights(self) -> Iterator[str]:
        model = self.model
        train = self.train
        trains = not self.eval.enabled
        if model.pretrained == "timm" and model.type != "timm":
            yield f"MODEL.PRETRAINED timm needs a -model of timm's in place of MODEL.TYPE {model.type}"
        if not (trains or model.pretrained or model.resume):
            yield "EVAL.ENABLED: -eval, -predict and -embed need weights; give -resume=RUN or -pretrained=FILE"
        if trains and train.teacher_weights and train.distillation_type == "none":
            yield "TRAIN.TEACHER_WEIGHTS needs a distillation; set TRAIN.DISTILLATION_TYPE to hard or soft, or omit it"
        if self.eval_raw and not train.model_ema:
            yield "EVAL_RAW needs an average of the weights; set TRAIN.MODEL_EMA=true or remove EVAL_RAW"
        if trains and train.sqrt_scaled_lr and not model.resume:
            fix = "give TRAIN.BASE_LR, WARMUP_START_LR, END_LR times the square root of global batch size / this"
            yield f"TRAIN.SQRT_SCALED_LR is for runs of before; remove it, and {fix}"

    def _problems_of_batches(self) -> Iterator[str]:
        data = self.data
        if data.batch_size != AUTO:
            return
        if self.eval.enabled or self._is_probe:  # no steps
            if not data.batch_size_eval:
                yield "DATA.BATCH_SIZE auto is for training steps; give -batch_size_eval"
        elif not data.global_batch_size:
            yield "DATA.BATCH_SIZE auto needs the images per optimizer step; set DATA.GLOBAL_BATCH_SIZE, too"

    def _problems_of_training(self) -> Iterator[str]:
        model = self.model
        data = self.data
        train = self.train
        trains = not self.eval.enabled
        if self.eval.suspects and trains and not self._is_probe:
            yield "EVAL.SUSPECTS needs MODEL.TUNE probe; set MODEL.TUNE=probe, or remove it"
        if self._is_probe and self.parallel.strategy != "ddp":
            yield f"PARALLEL.STRATEGY {self.parallel.strategy}: MODEL.TUNE probe needs whole models; set it to ddp"
        if model.tune == "lora" and "lamb" in train.optimizer.name.lower() and trains:
            steps = "LAMB's steps are in proportion to the weights, and LoRA's B starts as zero"
            yield f"TRAIN.OPTIMIZER.NAME: {steps}; set it to AdamW"
        if self.deterministic and train.compile == "max":
            yield "DETERMINISTIC excludes TRAIN.COMPILE max, which times kernels; use default or model"
        if data.balanced_sampling and self.loss.class_weights == "balanced":
            both = "DATA.BALANCED_SAMPLING and LOSS.CLASS_WEIGHTS balanced"
            yield f"{both} correct the same imbalance twice; remove one of them"
        if train.patience is not None and train.patience < self.validate_freq:
            between = "the epochs between two evaluations; raise the first or lower the second"
            yield f"TRAIN.PATIENCE {train.patience} is less than VALIDATE_FREQ {self.validate_freq}, {between}"

    def _problems_of_several_labels(self) -> Iterator[str]:
        name = self.loss.name
        distillation = self.train.distillation_type
        needed = "needs one label per image, but DATA.MULTI_LABEL is on"
        loss = LOSSES[name]
        if not loss.several_labels:
            yield f"LOSS.NAME {name} {needed}; set LOSS.NAME=bce or asl"
        if self.loss.class_weights and loss.code:
            yield f"LOSS.NAME {name} with CLASS_WEIGHTS {needed}; set LOSS.NAME=bce or asl"
        if distillation != "none":
            yield f"TRAIN.DISTILLATION_TYPE {distillation} {needed}; set it to none"


@functools.cache
def known_keys(family: str) -> tuple[str, ...]:
    """The keys and sections of a run whose model is of this family; also keys of MODEL that are in no field."""
    fixed = (f"MODEL.{key}" for key in (*FIXED_KEYS.get(family, ()), FREEZE_BACKBONE))
    return (*(key for key, _ in (*fields(Config), *fields(MODEL_SECTIONS[family], "MODEL."))), *fixed)


def fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The fields of a section and of the sections in it, by dotted key; MODEL without its keys."""
    for field in section.model_fields.values():
        key = f"{prefix}{field.alias}"
        yield key, field
        if is_section(field):
            yield from fields(field.annotation, f"{key}.")  # type: ignore[arg-type]


def is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def model_type(given: Any) -> str:
    """The family that a value of MODEL.TYPE names, or the default one."""
    name = str(given).lower()
    return name if name in MODEL_SECTIONS else "vit"
