"""The section TRAIN."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from configs.parts import OPTIMIZERS
from configs.schema.augmentation import Augmentation
from configs.schema.distillation import Distillation
from configs.schema.section import Probability, Section, as_tuple

_Beta = Annotated[float, Field(ge=0, lt=1)]
_PADDLEVIT_NAMES = {"warmupcosine": "cosine"}


class Optimizer(Section):  # type: ignore[no-redef]  # pydantic's plugin, on a field that is called kwargs
    name: str = Field(
        "AdamW", description="AdamW, AdamWDL (AdamW with LAYER_DECAY), Adam, SGD, or any of timm or a plugin"
    )
    eps: float | None = Field(
        None, gt=0, description="term added to the denominator; null: the optimizer's own (AdamW 1e-8)"
    )
    betas: Annotated[tuple[_Beta, ...], Field(min_length=2, max_length=3), BeforeValidator(as_tuple)] | None = Field(
        None, description="decay rates of the two or three moments; null: the optimizer's own (AdamW 0.9, 0.999)"
    )
    momentum: Probability = Field(0.9, description="momentum of SGD and similar optimizers")
    kwargs: Annotated[dict[str, Any] | None, AfterValidator(OPTIMIZERS.check_kwargs)] = Field(
        None,
        description="other arguments of the optimizer's class, such as {caution: true} for lion",
    )


class LRScheduler(Section):
    """The decay of the learning rate after the warm-up."""

    name: Annotated[
        Literal["cosine", "step", "linear", "wsd"],
        BeforeValidator(lambda name: _PADDLEVIT_NAMES.get(name, name) if isinstance(name, str) else name),
    ] = Field(
        "cosine",
        description="cosine (or PaddleViT's warmupcosine) and linear: decay to END_LR; step: multiply by DECAY_RATE "
        "every DECAY_EPOCHS, not below END_LR; wsd: constant, then a linear decay to END_LR in the last DECAY_EPOCHS",
    )
    decay_epochs: float | None = Field(
        None,
        gt=0,
        description="step: epochs between two reductions, counted from the first epoch, warm-up included; wsd: epochs "
        "of the final decay; null: 30, for wsd a fifth of NUM_EPOCHS",
    )
    decay_rate: float = Field(0.1, gt=0, le=1, description="step: factor of each reduction")
    warmup_prefix: bool | None = Field(
        None,
        description="true: the decay starts after the warm-up; false: it starts at step 0, and the warm-up overrides "
        "its first steps, as in timm; null: false for step, else true; wsd always starts after the warm-up",
    )

    @model_validator(mode="after")
    def _check(self) -> "LRScheduler":
        if self.decay_epochs is not None and self.name not in ("step", "wsd"):
            raise ValueError(f"DECAY_EPOCHS applies to NAME step and wsd, not to {self.name}; remove it or change NAME")
        if self.decay_rate != type(self).model_fields["decay_rate"].default and self.name != "step":
            raise ValueError(f"DECAY_RATE applies to NAME step, not to {self.name}; remove it or change NAME")
        if self.warmup_prefix is not None and self.name == "wsd":
            raise ValueError("WARMUP_PREFIX does not apply to NAME wsd; remove it or change NAME")
        return self


class Train(Augmentation, Distillation):
    last_epoch: int = Field(0, ge=0, description="number of finished epochs; training starts at the next one")
    num_epochs: int = Field(300, ge=1, description="number of epochs")
    max_steps: int | None = Field(None, ge=1, description="save a checkpoint and stop after this many steps in all")
    warmup_epochs: float = Field(
        32,
        ge=0,
        description="epochs of linear warm-up, included in NUM_EPOCHS; a tenth of them where another file, -epochs or "
        "-opts lowers them to the warm-up or less",
    )
    weight_decay: float = Field(0.3, ge=0, description="weight decay; not applied to biases, norms and tokens")
    base_lr: float = Field(3e-3, ge=0, description="peak learning rate")
    warmup_start_lr: float = Field(1e-6, ge=0, description="learning rate at the first step of the warm-up")
    end_lr: float = Field(0.0, ge=0, description="minimum learning rate, at the end of the schedule")
    lr_scheduler: LRScheduler = LRScheduler()
    base_lr_batch_size: int | None = Field(
        None,
        ge=1,
        description="global batch size that BASE_LR was tuned for; a run with another one logs a warning; "
        "null: unknown, as for a BASE_LR that -opts or a recipe over its BASE sets",
    )
    linear_scaled_lr: int | None = Field(
        None, ge=1, description="multiplies the three learning rates by global batch size / this value; null: by 1"
    )
    sqrt_scaled_lr: int | None = Field(
        None, ge=1, description="multiplies them by the square root of global batch size / this value; null: by 1"
    )
    grad_clip: float | None = Field(None, ge=0, description="max gradient norm over all parameters; null or 0: off")
    accum_iter: int = Field(
        1,
        ge=1,
        description="gradient accumulation steps: forward passes per optimizer step; not used with "
        "DATA.GLOBAL_BATCH_SIZE",
    )
    compile: Literal["none", "default", "model", "max"] = Field(
        "none",
        description="default: compile each block (the whole model if it uses drop-path); model: compile the whole "
        "model, which takes longer; max: also autotune it on a GPU, with CUDA graphs on one GPU without accumulation",
    )
    layer_decay: float | None = Field(None, gt=0, le=1, description="learning rate of a layer / rate of the next layer")
    head_lr_scale: float = Field(1.0, gt=0, description="learning rate of the head / rate of the layer before it")
    smoothing: Probability = Field(0.0, description="label smoothing")
    model_ema: bool = Field(False, description="keep an exponential moving average of the weights and evaluate it")
    model_ema_decay: float = Field(0.99996, ge=0, lt=1, description="decay of the average per step")
    model_ema_warmup: bool = Field(
        True,
        description="a lower decay in the first steps: 1 - step ** (-2 / 3), up to MODEL_EMA_DECAY, as in timm; false: "
        "always MODEL_EMA_DECAY, as in PaddleViT",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="end the run at the first evaluation that is this many epochs after the best one (by "
        "EVAL.BEST_METRIC, among equal ones the lowest loss); null: off",
    )
    optimizer: Optimizer = Optimizer()

    @model_validator(mode="after")
    def _check(self) -> "Train":
        if self.warmup_epochs > self.num_epochs:
            raise ValueError(
                f"WARMUP_EPOCHS {self.warmup_epochs:g} exceeds NUM_EPOCHS {self.num_epochs}; lower it or train longer"
            )
        if self.sqrt_scaled_lr and self.linear_scaled_lr:
            raise ValueError("SQRT_SCALED_LR and LINEAR_SCALED_LR exclude each other; remove one of them")
        if self.optimizer.name.lower() == "adamwdl" and self.layer_decay is None:
            raise ValueError("OPTIMIZER.NAME AdamWDL needs LAYER_DECAY; set it, such as to 0.75, or use AdamW")
        decay = self.lr_scheduler.decay_epochs if self.lr_scheduler.name == "wsd" else None
        if decay and decay + self.warmup_epochs > self.num_epochs:
            raise ValueError(
                f"LR_SCHEDULER.DECAY_EPOCHS {decay:g} and WARMUP_EPOCHS {self.warmup_epochs:g} exceed NUM_EPOCHS "
                f"{self.num_epochs}; lower one of them"
            )
        if self.last_epoch >= self.num_epochs:
            raise ValueError(
                f"LAST_EPOCH {self.last_epoch} of NUM_EPOCHS {self.num_epochs}: no epoch is left to train; lower it"
            )
        return self
