"""The section MODEL: the keys that all families share. `configs/schema/families/` has the keys of each family."""

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from configs.schema.data import IMAGENET_CLASSES
from configs.schema.section import (
    Count,
    Name,
    OptionalPath,
    Positive,
    Probability,
    Section,
    as_names,
    as_tuple,
    option,
    optional,
)
from configs.yaml_io import Values

# MODEL.TYPE -> the keys of PaddleViT's files that have one possible value, and this value; null: also false; ...: any
# value, since the key has no effect. They are in no field.
FREEZE_BACKBONE = "FREEZE_BACKBONE"
_HEADS: Values = {"ATTN_HEAD_SIZE": None, "QK_SCALE": None}  # EMBED_DIM / NUM_HEADS, 1 / sqrt(ATTN_HEAD_SIZE)
_COAT = {"PATCH_SIZE": 4, "NUM_HEADS": 8}  # the position encodings have windows for 8 heads
_MOBILEVIT = {"PATCH_SIZE": 2, "DEPTHS": [2, 4, 3], "NUM_HEADS": 8, "MLP_RATIO": 2, "QKV_BIAS": True, "QK_SCALE": None}
FIXED_KEYS: Mapping[str, Mapping[str, Any]] = {
    "beit": _HEADS | {"VAE_TYPE": "dall-e"},
    "cait": _HEADS,
    "coat": _COAT,
    "coat_lite": _COAT,
    "convnext": {"OUTPUT_STRIDE": 32, "HEAD_NORM_FIRST": False, "CONV_MLP": False, "STEM_TYPE": "patch"},
    "crossvit": _HEADS | {"HYBRID_BACKBONE": None},
    "gatedmlp": {"MIXER.PATCH_SIZE": 16},
    "levit": {"PATCH_SIZE": 16, "MLP_RATIO": 2, "USE_CONV": False},
    "mae": {"MAE_PRETRAIN": False, "TRANS.MASK_RATIO": ..., "TRANS.DECODER": ...},
    "mixer": {"MIXER.PATCH_SIZE": 16},
    "mobileone": {"DEPLOY": False},
    "mobilevit": _MOBILEVIT,
    "poolformer": {"DOWNSAMPLES": [True] * 4, "MLP_RATIOS": [4] * 4},
    "pvtv2": _HEADS | {"PATCH_SIZE": 4},
    "swin": {"QK_SCALE": None, "APE": False, "PATCH_NORM": True},
    "volo": {"TRANS.PATCH_SIZE": ..., "TRANS.QK_SCALE": None},
    "xcit": _HEADS,
}


def present_keys(values: Any, family: str) -> Any:
    """The section MODEL as its schema has it: without the keys in `FIXED_KEYS` that have their value, TUNE head for
    `FREEZE_BACKBONE: true` of PaddleViT's Caltech files.

    Raises ValueError: FREEZE_BACKBONE with another TUNE.
    """
    if not isinstance(values, dict):
        return values
    values = _without_fixed_keys(values, FIXED_KEYS.get(family, {}))
    frozen = values.get(FREEZE_BACKBONE)
    if isinstance(frozen, bool):
        del values[FREEZE_BACKBONE]
    if frozen is True:
        tune = values.get("TUNE", "full")
        if tune not in ("full", "head"):
            raise ValueError(f"FREEZE_BACKBONE is TUNE=head, not TUNE={tune}; remove one of them")
        values["TUNE"] = "head"
    return values


def _without_fixed_keys(values: Values, fixed: Mapping[str, Any], section: str = "") -> Values:
    """section: in MODEL, such as "TRANS."."""
    kept = {}
    for key, value in values.items():
        name = f"{section}{key}"
        if name in fixed and _is_fixed(value, fixed[name]):
            continue
        if isinstance(value, dict):
            value = _without_fixed_keys(value, fixed, f"{name}.")
        kept[key] = value
    return kept


def _is_fixed(value: Any, only: Any) -> bool:
    """Whether the value is the possible one, see `FIXED_KEYS`."""
    if only is None:
        return value is None or value is False
    return only is ... or bool(as_tuple(value) == as_tuple(only))


class Lora(Section):
    """Low-rank adapters, for TUNE lora."""

    rank: Count = option(8, "rank of an adapter: the rows of A, the columns of B")
    alpha: Positive = option(16.0, "an adapter adds ALPHA / RANK * B A to the weight of its layer")
    targets: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(as_names)] | None = optional(
        "linear layers with adapters: paths or their ends, as [qkv, mlp.fc1]; null: all inside blocks"
    )
    dropout: float = option(0.0, "dropout rate of A's inputs; one mask for all tokens of a forward pass", ge=0, lt=1)


class Model(Section):
    size_multiple: ClassVar[int | str] = 1  # of the images, or the field that has it
    family: ClassVar[Any]  # a `Family`, of PaddleViT's models
    type: str = "vit"
    name: Name = option("vit", "name in the log; for TYPE timm: timm's, hf:ORG/NAME or local-dir:FOLDER")
    resume: OptionalPath = optional("checkpoint to resume (the whole state): a file, a run folder, or auto")
    pretrained: OptionalPath = optional("initial weights: a file, hf folder, hf:ORG/NAME; TYPE timm: also timm")
    weights_entry: Name | None = optional(
        "weights to read of a file with several: raw, average, or the name of an entry or a prefix; "
        "null: the average, but the raw weights to evaluate another program's file"
    )
    num_classes: int | None = optional("number of classes; null: of the data, for imagenet2012 1000", ge=1)
    tune: str = option("full", "what is trained besides the head: full, head (nothing), last:N (blocks), lora, probe")
    head: Literal["zero", "probe"] = option(
        "zero",
        "start of a new head on pretrained weights; probe: the linear classifier of the features, as TUNE probe solves "
        "for it; the run then has its evaluation as epoch 0",
    )
    batch_norm: Literal["auto", "train", "frozen"] = option(
        "auto",
        "batch norms of pretrained weights in training steps; train: statistics of the batch; frozen: the running "
        "statistics, which stay; auto: frozen with HEAD probe",
    )
    features: Literal["pre_logits", "token", "avg", "token_avg"] = option(
        "pre_logits",
        "input of the head, and output of -embed; pre_logits: the model's own; of a ViT also token: the class token; "
        "avg: the average of the patch tokens; token_avg: both",
    )
    lora: Lora = Lora()
    dropout: Probability = option(0.0, "dropout rate after the position embedding and the projections")
    attention_dropout: Probability = option(0.0, "dropout rate of the attention weights")
    droppath: Probability = option(
        0.0, "drop-path rate of the last block, linear from 0 (CaiT, XCiT, CoaT, LeViT, MLPs: of all)"
    )
    grad_checkpointing: Literal["cheap"] | bool = option(
        False,
        "recompute in the backward pass, to save memory; cheap: norms, activations and casts; true: all but the inputs "
        "of blocks, about 22% more computation (ViT)",
    )
    attention: Literal["auto", "fused", "explicit"] = option(
        "auto",
        "fused: torch chooses the kernel; explicit: softmax(q k^T) v; auto: fused on a GPU, and in float32 on a CPU, "
        "in timm's plain attention without dropout",
    )
    fused_blocks: bool = option(
        True,
        "on a GPU (compute capability 8.0 or higher) with -amp: Triton kernels between the products of plain ViT "
        "blocks; not with -compile, GRAD_CHECKPOINTING, sharding, frozen blocks, or lists of ops of blocks other than "
        "add and layer_norm; false: torch's ops",
    )
    channels_last: Literal["auto"] | bool = option(
        "auto",
        "NHWC memory format of weights and images; auto: for models with convolutions beyond the patch embedding, "
        "unless they are sharded or in O3",
    )

    @property
    def num_logits(self) -> int:
        """The width of the head: NUM_CLASSES, or 1000 if the model is built without data."""
        return IMAGENET_CLASSES if self.num_classes is None else self.num_classes

    @property
    def solves_head(self) -> bool:
        """Whether a training is a linear probe: one step, without batches, an optimizer or a learning rate."""
        return self.tune == "probe"

    @property
    def freezes_batch_norms(self) -> bool:
        """Returns whether batch norms keep the statistics of the pretrained weights."""
        if self.tune == "lora":
            return True
        if self.pretrained is None:
            return False
        return self.batch_norm == "frozen" or (self.batch_norm == "auto" and self.head == "probe")

    @property
    def image_size_multiple(self) -> int:
        """The height and width of the images must be a multiple of this number of pixels."""
        key = self.size_multiple
        multiple: int = attrgetter(key)(self) if isinstance(key, str) else key
        return multiple

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        return present_keys(values, cls.model_fields["type"].default)

    @field_validator("tune", mode="before")
    @classmethod
    def _check_tune(cls, tune: object) -> object:
        if not re.fullmatch("full|head|lora|probe|last:[1-9][0-9]{0,3}", str(tune)):
            raise ValueError("must be full, head, last:N with a number of blocks N, lora or probe")
        return tune

    @field_validator("type", mode="before")
    @classmethod
    def _in_lower_case(cls, name: object) -> object:
        return name.lower() if isinstance(name, str) else name
