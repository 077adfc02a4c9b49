"""Every option once: name, type, unit, default, check.

Keys are upper case in YAML (`TRAIN.BASE_LR`) and lower case in Python (`config.train.base_lr`). Keys and defaults are
those of PaddleViT's `config.py`. This module does not import torch.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from configs.section import Floats, Names, Pair, Path, Probability, Section


class Amp(Section):
    """Mixed precision. In YAML, `AMP: true` means `AMP: {ENABLED: true}`. The loss scaling keys are Paddle Fleet's."""

    enabled: bool = Field(False, description="mixed precision in training and evaluation")
    dtype: Literal["float16", "bfloat16"] | None = Field(
        None, description="half-precision dtype; null: float16 on a GPU, bfloat16 on a CPU"
    )
    level: Literal["O1", "O2", "O3"] = Field(
        "O1",
        description="O1: autocast; O2: half weights, fp32 norms and master weights; O3: half weights only",
    )
    tf32: bool | None = Field(None, description="TensorFloat-32 for fp32 operations on a GPU; null: as ENABLED")
    init_loss_scaling: float = Field(65536.0, ge=1e-6, le=1e38, description="float16: initial loss scale")
    use_dynamic_loss_scaling: bool = Field(True, description="float16: change the loss scale after overflows")
    incr_ratio: float = Field(2.0, gt=1, description="growth factor of the loss scale")
    incr_every_n_steps: int = Field(
        2000, ge=1, lt=2**31, description="consecutive steps without overflow before the loss scale grows"
    )
    decr_ratio: float = Field(0.5, gt=0, lt=1, description="backoff factor of the loss scale")
    decr_every_n_nan_or_inf: int = Field(1, ge=1, description="consecutive overflows before the loss scale shrinks")
    min_loss_scaling: float = Field(1.0, ge=1e-6, le=1e38, description="minimum loss scale")
    max_skipped_steps: int | None = Field(
        None,
        ge=0,
        description="abort after this many consecutive steps with non-finite gradients, in any precision; 0: never; "
        "null: the number of steps from the initial to the minimum loss scale, plus 2 (18 by default)",
    )
    custom_white_list: Names = Field((), description="ops and modules (blocks.11.*) that compute in the half dtype")
    custom_black_list: Names = Field(
        (), description="ops and modules that compute in fp32; has priority over the white list"
    )

    @model_validator(mode="after")
    def _check(self) -> "Amp":
        if self.min_loss_scaling > self.init_loss_scaling:
            raise ValueError(f"MIN_LOSS_SCALING {self.min_loss_scaling:g} exceeds INIT_LOSS_SCALING; lower it")
        both = sorted(set(self.custom_white_list) & set(self.custom_black_list))
        if both:
            raise ValueError(f"CUSTOM_WHITE_LIST contains {both[0]}, which is in CUSTOM_BLACK_LIST too; remove one")
        return self


class Data(Section):
    unsupported: ClassVar = {"DECODE": ("decoding on a GPU", "host")}  # in option files of earlier versions

    batch_size: int = Field(256, ge=1, description="images per device and forward pass in training")
    batch_size_eval: int | None = Field(None, ge=1, description="images per device in evaluation; null: BATCH_SIZE")
    data_path: Path = Field("/dataset/imagenet/", description="folder or file of the data set")
    dataset: str = Field("imagenet2012", description="name of the data set: a key of datasets/registry.py")
    on_bad_image: Literal["error", "skip"] = Field(
        "error", description="unreadable images: abort the run, or skip them and list them"
    )
    image_size: int = Field(224, ge=1, description="height and width of the model's input, pixels")
    image_channels: Literal[1, 3] = Field(3, description="1: grayscale, 3: RGB")
    crop_pct: float = Field(0.875, gt=0, le=1, description="evaluation: centre crop / shorter side")
    num_workers: int | None = Field(
        None, ge=0, description="processes per rank; null: one per core, two fewer with a GPU, 0 for data in memory"
    )
    imagenet_mean: Floats = Field((0.5, 0.5, 0.5), description="per channel, of pixels in 0..1")
    imagenet_std: Floats = Field((0.5, 0.5, 0.5), description="per channel, of pixels in 0..1")
    val_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="validation fraction of a data set without a validation split; null: its default",
    )
    split_seed: int = Field(0, ge=0, lt=2**32, description="seed of that split, independent of SEED")
    random_crop_scale: Pair = Field((0.08, 1.0), description="training crop: area / area of the image")
    random_crop_ratio: Pair = Field((3 / 4, 4 / 3), description="training crop: width / height")
    hflip_prob: Probability = Field(0.5, description="training: probability of a horizontal flip")
    affine_degrees: float = Field(0.0, ge=0, le=180, description="training: maximum random rotation, degrees")
    affine_translate: float = Field(0.0, ge=0, le=1, description="training: maximum random shift / image size")
    affine_scale: Pair = Field((1.0, 1.0), description="training: range of the random scale factor")

    @property
    def eval_batch_size(self) -> int:
        return self.batch_size_eval or self.batch_size

    @model_validator(mode="after")
    def _check(self) -> "Data":
        for key, values in (("IMAGENET_MEAN", self.imagenet_mean), ("IMAGENET_STD", self.imagenet_std)):
            if len(values) != self.image_channels:
                raise ValueError(f"{key} has {len(values)} values for IMAGE_CHANNELS {self.image_channels}")
        if min(self.imagenet_std) <= 0:
            raise ValueError("IMAGENET_STD must be greater than 0")
        for key in ("RANDOM_CROP_SCALE", "RANDOM_CROP_RATIO", "AFFINE_SCALE"):
            low, high = getattr(self, key.lower())
            if not 0 < low <= high:
                raise ValueError(f"{key} ({low}, {high}) must be greater than 0 and in ascending order")
        if self.random_crop_scale[1] > 1:
            raise ValueError("RANDOM_CROP_SCALE is a fraction of the image, at most 1")
        return self


_VIT_ONLY = ("PATCH_SIZE", "EMBED_DIM", "NUM_HEADS", "ATTN_HEAD_SIZE", "DEPTH", "MLP_RATIO", "QKV_BIAS")


class Model(Section):
    unsupported: ClassVar = {
        "WINDOW_SIZE": ("windowed attention (Swin)", None),
        "STAGE_DEPTHS": ("stages (Swin)", None),
        "QK_SCALE": ("a custom attention scale (Swin)", None),
        "APE": ("Swin's absolute position embedding", None),
        "PATCH_NORM": ("Swin's patch norm", None),
        "INIT_VALUES": ("layer scale (BEiT, CaiT)", None),
        "USE_ABS_POS_EMB": ("BEiT's position embedding switch", None),
        "USE_REL_POS_BIAS": ("relative position bias (BEiT)", None),
        "DEPTH_TOKEN_ONLY": ("class attention (CaiT)", None),
    }

    type: Literal["vit", "timm"] = Field("vit", description="vit: built from the keys below; timm: the timm model NAME")
    name: str = Field("vit", description="name in the log; for TYPE timm, timm's model name")
    resume: Path | None = Field(
        None, description="checkpoint to resume (the whole state): a file, a run folder, or auto"
    )
    pretrained: Path | None = Field(
        None, description="initial weights: .safetensors, .pth, .npz or .pdparams file; for TYPE timm also 'timm'"
    )
    num_classes: int = Field(1000, ge=1, description="number of classes")
    freeze_backbone: bool = Field(False, description="train the head only")
    dropout: Probability = Field(0.0, description="dropout rate after the position embedding and the projections")
    attention_dropout: Probability = Field(0.0, description="dropout rate of the attention weights")
    droppath: Probability = Field(0.0, description="drop-path rate of the last block; linear from 0 at the first")
    grad_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass: less memory, about a third more computation"
    )
    attention: Literal["auto", "fused", "cudnn", "explicit"] = Field(
        "auto",
        description="fused: torch chooses the kernel; cudnn; explicit: softmax(q k^T) v; auto: fused only on a GPU",
    )
    patch_size: int = Field(16, ge=1, description="height and width of a patch, pixels")
    embed_dim: int = Field(768, ge=1, description="channels of a token")
    num_heads: int = Field(12, ge=1, description="attention heads per block")
    attn_head_size: int | None = Field(None, ge=1, description="channels per head; null: EMBED_DIM / NUM_HEADS")
    depth: int = Field(12, ge=1, description="number of blocks")
    mlp_ratio: float = Field(4.0, gt=0, description="hidden channels of the MLP / EMBED_DIM")
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name or "/" in name or not name.isprintable():
            raise ValueError("must be a printable name without /")
        return name

    @model_validator(mode="before")
    @classmethod
    def _check_type_first(cls, values: Any) -> Any:
        """The error of a Swin file names its TYPE, not the first key that belongs to Swin."""
        if isinstance(values, dict) and isinstance(values.get("TYPE"), str) and values["TYPE"] not in ("vit", "timm"):
            raise ValueError(f"TYPE: {values['TYPE']} is not available yet; use vit or timm")
        return values

    @model_validator(mode="after")
    def _check(self) -> "Model":
        if self.type == "timm":
            for key in _VIT_ONLY:
                if getattr(self, key.lower()) != type(self).model_fields[key.lower()].default:
                    raise ValueError(f"{key} does not apply to TYPE timm; remove it")
        if self.type == "vit" and self.attn_head_size is None and self.embed_dim % self.num_heads:
            raise ValueError(
                f"EMBED_DIM {self.embed_dim} is not a multiple of NUM_HEADS {self.num_heads}; "
                "change one of them or set ATTN_HEAD_SIZE"
            )
        return self


class Optimizer(Section):
    name: str = Field("AdamW", description="AdamW, Adam, SGD, or the name of another optimizer of timm's")
    eps: float = Field(1e-8, gt=0, description="term added to the denominator")
    betas: Pair = Field((0.9, 0.999), description="decay rates of the first and second moment")
    momentum: Probability = Field(0.9, description="momentum of SGD and similar optimizers")

    @field_validator("betas")
    @classmethod
    def _below_one(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("both values must satisfy 0 <= beta < 1")
        return betas


class Train(Section):
    unsupported: ClassVar = {
        "MODEL_EMA_FORCE_CPU": ("an average in host memory", False),
        "CUTMIX_MINMAX": ("CutMix by side lengths", None),
        "COLOR_JITTER": ("color jitter", 0.0),
        "AUTO_AUGMENT": ("AutoAugment", False),
        "RAND_AUGMENT": ("RandAugment", False),
        "RAND_AUGMENT_LAYERS": ("RandAugment", None),
        "RAND_AUGMENT_MAGNITUDE": ("RandAugment", None),
        "RANDOM_ERASE_SPLIT": ("random erasing of a part of the batch only", False),
        "DISTILLATION_TYPE": ("distillation", None),
        "DISTILLATION_ALPHA": ("distillation", None),
        "DISTILLATION_TAU": ("distillation", None),
        "TEACHER_MODEL": ("distillation", None),
    }

    last_epoch: int = Field(0, ge=0, description="number of finished epochs; training starts at the next one")
    num_epochs: int = Field(300, ge=1, description="number of epochs")
    max_steps: int | None = Field(None, ge=1, description="save a checkpoint and stop after this many steps in all")
    warmup_epochs: float = Field(32, ge=0, description="epochs of linear warm-up, included in NUM_EPOCHS")
    weight_decay: float = Field(0.3, ge=0, description="weight decay; not applied to biases, norms and tokens")
    base_lr: float = Field(3e-3, ge=0, description="peak learning rate")
    warmup_start_lr: float = Field(1e-6, ge=0, description="learning rate at the first step of the warm-up")
    end_lr: float = Field(0.0, ge=0, description="minimum learning rate, at the end of the cosine schedule")
    base_lr_batch_size: int | None = Field(
        None,
        ge=1,
        description="global batch size that BASE_LR was tuned for; a run with another one logs a warning; "
        "null: unknown",
    )
    linear_scaled_lr: int | None = Field(
        None, ge=1, description="multiplies the three learning rates by global batch size / this value; null: by 1"
    )
    grad_clip: float | None = Field(None, ge=0, description="max gradient norm over all parameters; null or 0: off")
    accum_iter: int = Field(1, ge=1, description="gradient accumulation steps: forward passes per optimizer step")
    compile: Literal["none", "default", "max"] = Field(
        "none",
        description="default: compile each block (the whole model if it uses drop-path); max: compile and autotune the "
        "whole model, which takes longer",
    )
    layer_decay: float | None = Field(None, gt=0, le=1, description="learning rate of a layer / that of the next layer")
    smoothing: Probability = Field(0.0, description="label smoothing")
    model_ema: bool = Field(False, description="keep an exponential moving average of the weights and evaluate it")
    model_ema_decay: float = Field(0.99996, ge=0, lt=1, description="decay of the average per step")
    mixup_alpha: float = Field(0.0, ge=0, description="mixup: Beta parameter; 0: off")
    mixup_prob: Probability = Field(1.0, description="probability of mixup or CutMix per batch")
    mixup_switch_prob: Probability = Field(0.5, description="probability of CutMix if both are on")
    mixup_mode: Literal["batch"] = Field("batch", description="one mixing weight per batch")
    cutmix_alpha: float = Field(0.0, ge=0, description="CutMix: Beta parameter; 0: off")
    optimizer: Optimizer = Optimizer()
    random_erase_prob: Probability = Field(0.0, description="probability of random erasing per training image")
    random_erase_mode: Literal["const", "rand", "pixel"] = Field(
        "pixel", description="erased pixels become the mean color, one random color, or noise"
    )
    random_erase_count: int = Field(1, ge=1, le=100, description="rectangles per erased image")

    @model_validator(mode="after")
    def _check(self) -> "Train":
        if self.warmup_epochs > self.num_epochs:
            raise ValueError(
                f"WARMUP_EPOCHS {self.warmup_epochs:g} exceeds NUM_EPOCHS {self.num_epochs}; lower it or train longer"
            )
        if self.last_epoch >= self.num_epochs:
            raise ValueError(
                f"LAST_EPOCH {self.last_epoch} of NUM_EPOCHS {self.num_epochs}: no epoch is left to train; lower it"
            )
        return self


class Config(Section):
    """All options of a run, checked and frozen."""

    save: Path = Field("./output", description="output folder; each run creates a folder in it")
    save_freq: int = Field(10, ge=1, description="epochs between checkpoints")
    save_freq_steps: int | None = Field(None, ge=1, description="steps between additional checkpoints; null: off")
    save_freq_minutes: float | None = Field(15, gt=0, description="minutes between additional checkpoints; null: off")
    keep_checkpoints: int = Field(3, ge=0, description="number of periodic checkpoints to keep besides last and best")
    report_freq: int = Field(20, ge=1, description="steps between log lines")
    validate_freq: int = Field(1, ge=1, description="epochs between evaluations; the last epoch is always evaluated")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of all random numbers of the run")
    deterministic: bool = Field(False, description="deterministic algorithms only, which are slower on a GPU")
    timeout_seconds: float = Field(
        600,
        ge=1,
        le=10**6,
        description="a rank aborts after waiting this long for another rank, or 0.9 times as long for its workers",
    )
    eval: bool = Field(False, description="evaluate only")
    amp: Amp = Amp()
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()

    def with_model(self, **changes: str | None) -> "Config":
        """A copy with other values of some MODEL keys."""
        return self.model_copy(update={"model": self.model.model_copy(update=changes)})

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if self.model.type == "vit" and self.data.image_size % self.model.patch_size:
            raise ValueError(
                f"DATA.IMAGE_SIZE {self.data.image_size} is not a multiple of MODEL.PATCH_SIZE {self.model.patch_size}"
            )
        if self.eval and not (self.model.pretrained or self.model.resume):
            raise ValueError("EVAL needs weights; give -pretrained or -resume")
        return self
