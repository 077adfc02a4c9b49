"""Every option once: name, type, unit, default, check.

In YAML the keys are upper case (`TRAIN.BASE_LR`), in Python lower case (`config.train.base_lr`). The keys and the
defaults of PaddleViT are kept; see its `config.py` for the originals. This module needs no torch.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator


def _as_tuple(value: Any) -> Any:
    """YAML has no tuples: a list is one, and so is PaddleViT's text '(0.9, 0.999)'."""
    if isinstance(value, str) and value.startswith("(") and value.endswith(")"):
        try:
            return tuple(float(part) for part in value[1:-1].split(",") if part.strip())
        except ValueError:
            return value
    return tuple(value) if isinstance(value, list) else value


def _file_name(path: str) -> str:
    if "\0" in path:
        raise ValueError("no name holds a zero byte")
    return path


Pair = Annotated[tuple[float, float], BeforeValidator(_as_tuple)]
Floats = Annotated[tuple[float, ...], BeforeValidator(_as_tuple)]
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else _as_tuple(value))
]
Path = Annotated[str, Field(min_length=1), AfterValidator(_file_name)]
Probability = Annotated[float, Field(ge=0, le=1)]


def _not_yet(feature: str, neutral: Any = None) -> Any:
    """A key of PaddleViT's whose feature is not there yet: only its neutral value is accepted."""
    return Field(neutral, description=f"{feature}: not available yet", json_schema_extra={"not_yet": feature})


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=str.upper, allow_inf_nan=False)

    @model_validator(mode="after")
    def _refuse_what_is_not_there_yet(self) -> "Section":
        for name, field in type(self).model_fields.items():
            feature = (field.json_schema_extra or {}).get("not_yet")
            if feature and getattr(self, name) != field.default:
                neutral = "null" if field.default is None else str(field.default).lower()
                raise ValueError(f"{field.alias}: {feature} is not available yet; remove it or set it to {neutral}")
        return self


class Amp(Section):
    """Mixed precision. In YAML `AMP: true` is short for `AMP: {ENABLED: true}`. The scaling keys are Fleet's."""

    enabled: bool = Field(False, description="train and evaluate in mixed precision")
    dtype: Literal["float16", "bfloat16"] | None = Field(
        None, description="the half type; null: float16 on a GPU, bfloat16 on a CPU"
    )
    level: Literal["O1", "O2", "O3"] = Field(
        "O1", description="O1: autocast; O2: half weights, fp32 masters and norms; O3: half weights, no masters"
    )
    tf32: bool | None = Field(None, description="TensorFloat-32 in what a GPU computes in fp32; null: as ENABLED")
    init_loss_scaling: float = Field(65536.0, ge=1e-6, le=1e38, description="float16: the first loss scale")
    use_dynamic_loss_scaling: bool = Field(True, description="float16: let the loss scale follow the overflows")
    incr_ratio: float = Field(2.0, gt=1, description="factor by which the loss scale grows")
    incr_every_n_steps: int = Field(2000, ge=1, lt=2**31, description="steps in a row without overflow until it grows")
    decr_ratio: float = Field(0.5, gt=0, lt=1, description="factor by which the loss scale shrinks")
    decr_every_n_nan_or_inf: int = Field(1, ge=1, description="overflows in a row until it shrinks")
    min_loss_scaling: float = Field(1.0, ge=1e-6, le=1e38, description="the loss scale never falls below")
    max_skipped_steps: int | None = Field(
        None,
        ge=0,
        description="stop after so many non-finite gradients in a row, in any precision; 0: never; "
        "null: as many as take the loss scale to its lowest, and 2 (18)",
    )
    custom_white_list: Names = Field((), description="ops and modules (blocks.11.*) that compute in the half type")
    custom_black_list: Names = Field((), description="ops and modules that compute in fp32; wins over the white list")

    @model_validator(mode="after")
    def _check(self) -> "Amp":
        if self.min_loss_scaling > self.init_loss_scaling:
            raise ValueError(f"MIN_LOSS_SCALING {self.min_loss_scaling:g} exceeds INIT_LOSS_SCALING; lower it")
        both = sorted(set(self.custom_white_list) & set(self.custom_black_list))
        if both:
            raise ValueError(f"CUSTOM_WHITE_LIST has {both[0]}, and so has CUSTOM_BLACK_LIST; keep it in one of them")
        return self


class Data(Section):
    batch_size: int = Field(256, ge=1, description="images per device in one forward pass of training")
    batch_size_eval: int | None = Field(None, ge=1, description="images per device in evaluation; null: BATCH_SIZE")
    data_path: Path = Field("/dataset/imagenet/", description="folder (or file) of the data set")
    dataset: str = Field("imagenet2012", description="which data set; see datasets/registry.py for the table")
    on_bad_image: Literal["error", "skip"] = Field(
        "error", description="an image that cannot be read ends the run, or counts for nothing and is listed"
    )
    image_size: int = Field(224, ge=1, description="pixels on a side of the model's input")
    image_channels: Literal[1, 3] = Field(3, description="1: grey, 3: RGB")
    crop_pct: float = Field(0.875, gt=0, le=1, description="evaluation: centre crop's share of the shorter side")
    num_workers: int | None = Field(
        None, ge=0, description="loading processes per rank; null: one per core, none for data held in memory"
    )
    imagenet_mean: Floats = Field((0.5, 0.5, 0.5), description="per channel, of pixels in 0..1")
    imagenet_std: Floats = Field((0.5, 0.5, 0.5), description="per channel, of pixels in 0..1")
    val_fraction: float | None = Field(
        None, gt=0, lt=1, description="held out per class where a data set has no validation split; null: its custom"
    )
    split_seed: int = Field(0, ge=0, lt=2**32, description="seed of that split, whatever SEED is")
    random_crop_scale: Pair = Field((0.08, 1.0), description="training crop's area as a share of the image")
    random_crop_ratio: Pair = Field((3 / 4, 4 / 3), description="training crop's width / height")
    hflip_prob: Probability = Field(0.5, description="probability of a horizontal flip in training")
    affine_degrees: float = Field(0.0, ge=0, le=180, description="random rotation in training, degrees either way")
    affine_translate: float = Field(0.0, ge=0, le=1, description="random shift in training, share of the image's side")
    affine_scale: Pair = Field((1.0, 1.0), description="random zoom in training, factor from..to")

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
                raise ValueError(f"{key} ({low}, {high}) must rise and be greater than 0")
        if self.random_crop_scale[1] > 1:
            raise ValueError("RANDOM_CROP_SCALE is a share of the image, at most 1")
        return self


_VIT_ONLY = ("PATCH_SIZE", "EMBED_DIM", "NUM_HEADS", "ATTN_HEAD_SIZE", "DEPTH", "MLP_RATIO", "QKV_BIAS")


class Model(Section):
    type: Literal["vit", "timm"] = Field("vit", description="vit: built from these keys; timm: any timm model by NAME")
    name: str = Field("vit", description="a name for the log; for TYPE timm the timm model's name")
    resume: Path | None = Field(
        None, description="checkpoint whose whole state is continued: file, folder of a run, or auto"
    )
    pretrained: Path | None = Field(
        None, description="weights to start from: .safetensors, .pth, .npz, .pdparams; for TYPE timm also 'timm'"
    )
    num_classes: int = Field(1000, ge=1, description="classes of the head")
    freeze_backbone: bool = Field(False, description="train the head alone")
    dropout: Probability = Field(0.0, description="after the position embedding and both projections, not in the head")
    attention_dropout: Probability = Field(0.0, description="on the attention weights")
    droppath: Probability = Field(0.0, description="stochastic depth at the last block, rising linearly from 0")
    attention: Literal["auto", "fused", "explicit"] = Field(
        "auto", description="torch's fused kernels, softmax(q k^T) v, or what is faster here: measured at the start"
    )
    patch_size: int = Field(16, ge=1, description="pixels on a side of a patch")
    embed_dim: int = Field(768, ge=1, description="width of a token")
    num_heads: int = Field(12, ge=1, description="attention heads")
    attn_head_size: int | None = Field(None, ge=1, description="width of a head; null: EMBED_DIM / NUM_HEADS")
    depth: int = Field(12, ge=1, description="blocks")
    mlp_ratio: float = Field(4.0, gt=0, description="hidden width of the MLP / EMBED_DIM")
    qkv_bias: bool = Field(True, description="bias of the query, key and value projections")
    # Swin, BEiT, CaiT
    window_size: Any = _not_yet("windowed attention (Swin)")
    stage_depths: Any = _not_yet("stages (Swin)")
    qk_scale: Any = _not_yet("a custom attention scale (Swin)")
    ape: Any = _not_yet("Swin's absolute position embedding")
    patch_norm: Any = _not_yet("Swin's patch norm")
    init_values: Any = _not_yet("layer scale (BEiT, CaiT)")
    use_abs_pos_emb: Any = _not_yet("BEiT's position embedding switch")
    use_rel_pos_bias: Any = _not_yet("relative position bias (BEiT)")
    depth_token_only: Any = _not_yet("class attention (CaiT)")

    @field_validator("name")
    @classmethod
    def _name_is_a_file_name(cls, name: str) -> str:
        if not name or "/" in name or not name.isprintable():
            raise ValueError("must be a plain name")
        return name

    @model_validator(mode="before")
    @classmethod
    def _family_first(cls, values: Any) -> Any:
        """A Swin file fails on its TYPE, not on the first of the keys that follow from it."""
        if isinstance(values, dict) and isinstance(values.get("TYPE"), str) and values["TYPE"] not in ("vit", "timm"):
            raise ValueError(f"TYPE: {values['TYPE']} is not available yet; available are vit, timm")
        return values

    @model_validator(mode="after")
    def _check(self) -> "Model":
        if self.type == "timm":
            for key in _VIT_ONLY:
                if getattr(self, key.lower()) != type(self).model_fields[key.lower()].default:
                    raise ValueError(f"{key} has no meaning for TYPE timm, whose NAME says it all; remove it")
        if self.type == "vit" and self.attn_head_size is None and self.embed_dim % self.num_heads:
            raise ValueError(
                f"EMBED_DIM {self.embed_dim} is no multiple of NUM_HEADS {self.num_heads}; "
                "change one of them or set ATTN_HEAD_SIZE"
            )
        return self


class Optimizer(Section):
    name: str = Field("AdamW", description="AdamW, Adam, SGD, or any other of timm's optimizers by its name")
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    betas: Pair = Field((0.9, 0.999), description="decay of the first and second moment")
    momentum: Probability = Field(0.9, description="of SGD and its kin")

    @field_validator("betas")
    @classmethod
    def _below_one(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("both must lie in 0 <= beta < 1")
        return betas


class Train(Section):
    last_epoch: int = Field(0, ge=0, description="epochs already done: training starts at the next (without a resume)")
    num_epochs: int = Field(300, ge=1, description="epochs")
    max_steps: int | None = Field(None, ge=1, description="stop, with a checkpoint, when the run has done these steps")
    warmup_epochs: float = Field(32, ge=0, description="epochs of linear warm-up, counted in NUM_EPOCHS")
    weight_decay: float = Field(0.3, ge=0, description="weight decay; not on biases, norms and tokens")
    base_lr: float = Field(3e-3, ge=0, description="peak learning rate")
    warmup_start_lr: float = Field(1e-6, ge=0, description="learning rate at the first step of the warm-up")
    end_lr: float = Field(0.0, ge=0, description="learning rate at the end of the cosine")
    linear_scaled_lr: int | None = Field(
        None, ge=1, description="multiplies the three rates by global batch size / this; null: rates as they stand"
    )
    grad_clip: float | None = Field(None, ge=0, description="max gradient norm, global; null or 0: no clipping")
    accum_iter: int = Field(1, ge=1, description="forward passes per optimizer step")
    compile: Literal["none", "default", "max"] = Field(
        "none",
        description="default: block by block (with drop-path as one), starts soon; max: the whole model, tuned",
    )
    layer_decay: float | None = Field(None, gt=0, le=1, description="learning rate's factor per layer downwards")
    smoothing: Probability = Field(0.0, description="label smoothing")
    model_ema: bool = Field(False, description="average the weights exponentially; evaluation judges the average")
    model_ema_decay: float = Field(0.99996, ge=0, lt=1, description="its decay per step")
    model_ema_force_cpu: bool = _not_yet("an average in the host's memory", False)
    mixup_alpha: float = Field(0.0, ge=0, description="Beta parameter of mixup; 0: off")
    mixup_prob: Probability = Field(1.0, description="probability that a batch is mixed at all")
    mixup_switch_prob: Probability = Field(0.5, description="probability of CutMix where both are on")
    mixup_mode: Literal["batch"] = Field("batch", description="one mixing weight per batch")
    cutmix_alpha: float = Field(0.0, ge=0, description="Beta parameter of CutMix; 0: off")
    optimizer: Optimizer = Optimizer()
    # DeiT
    cutmix_minmax: Any = _not_yet("CutMix by side lengths")
    color_jitter: float = _not_yet("colour jitter", 0.0)
    auto_augment: bool = _not_yet("AutoAugment", False)
    rand_augment: bool = _not_yet("RandAugment", False)
    rand_augment_layers: Any = _not_yet("RandAugment")
    rand_augment_magnitude: Any = _not_yet("RandAugment")
    random_erase_prob: Probability = Field(0.0, description="probability that parts of a training image are erased")
    random_erase_mode: Literal["const", "rand", "pixel"] = Field(
        "pixel", description="erased to the mean colour, to one random colour, or to noise"
    )
    random_erase_count: int = Field(1, ge=1, le=100, description="rectangles per erased image")
    random_erase_split: bool = _not_yet("random erasing of a part of the batch only", False)
    distillation_type: Any = _not_yet("distillation")
    distillation_alpha: Any = _not_yet("distillation")
    distillation_tau: Any = _not_yet("distillation")
    teacher_model: Any = _not_yet("distillation")

    @model_validator(mode="after")
    def _check(self) -> "Train":
        if self.warmup_epochs > self.num_epochs:
            raise ValueError(
                f"WARMUP_EPOCHS {self.warmup_epochs:g} exceeds NUM_EPOCHS {self.num_epochs}; lower it or train longer"
            )
        if self.last_epoch >= self.num_epochs:
            raise ValueError(f"LAST_EPOCH {self.last_epoch} of NUM_EPOCHS {self.num_epochs}: nothing is left to train")
        return self


class Config(Section):
    """All options of one run, checked and frozen."""

    save: Path = Field("./output", description="folder in which each run makes a folder of its own")
    save_freq: int = Field(10, ge=1, description="epochs between checkpoints")
    save_freq_steps: int | None = Field(None, ge=1, description="steps between checkpoints besides; null: none")
    save_freq_minutes: float | None = Field(15, gt=0, description="minutes between checkpoints besides; null: none")
    keep_checkpoints: int = Field(3, ge=0, description="periodic checkpoints kept besides last and best")
    report_freq: int = Field(20, ge=1, description="steps between log lines")
    validate_freq: int = Field(1, ge=1, description="epochs between evaluations; the last epoch is always evaluated")
    seed: int = Field(0, ge=0, lt=2**63, description="of all chance in the run")
    timeout_seconds: float = Field(
        600,
        ge=1,
        le=10**6,
        description="a rank waits so long for another, nine tenths of it for its own loading workers, then it ends",
    )
    eval: bool = Field(False, description="evaluate only")
    amp: Amp = Amp()
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()

    def with_model(self, **changes: str | None) -> "Config":
        """The same options but for some under MODEL."""
        return self.model_copy(update={"model": self.model.model_copy(update=changes)})

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if self.model.type == "vit" and self.data.image_size % self.model.patch_size:
            raise ValueError(
                f"DATA.IMAGE_SIZE {self.data.image_size} is no multiple of MODEL.PATCH_SIZE {self.model.patch_size}"
            )
        if self.eval and not (self.model.pretrained or self.model.resume):
            raise ValueError("EVAL needs weights to evaluate: give -pretrained or -resume")
        return self
