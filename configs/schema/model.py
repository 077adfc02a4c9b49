"""The section MODEL: the keys that all families share. `configs/schema/families/` has the keys of each family."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from configs.data_sets import IMAGENET_CLASSES
from configs.schema.section import Name, OptionalPath, Probability, Section, as_names, as_tuple, option

# MODEL.TYPE -> the keys of PaddleViT's files that have one possible value, and this value; null: also false; ...: any
# value, since the key has no effect. `Model` removes them before it checks the others: they are in no field.
_HEADS: dict[str, Any] = {"ATTN_HEAD_SIZE": None, "QK_SCALE": None}  # EMBED_DIM / NUM_HEADS, 1 / sqrt(ATTN_HEAD_SIZE)
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


def without_fixed_keys(values: Any, family: str, section: str = "") -> Any:
    """The section MODEL without the keys in `FIXED_KEYS` that have their value. section: in MODEL, such as "TRANS."."""
    fixed = FIXED_KEYS.get(family, {})
    if not isinstance(values, dict) or not fixed:
        return values
    return {
        key: without_fixed_keys(value, family, f"{section}{key}.")
        for key, value in values.items()
        if f"{section}{key}" not in fixed or not _is_fixed(value, fixed[f"{section}{key}"])
    }


def _is_fixed(value: Any, fixed: Any) -> bool:
    return fixed is ... or as_tuple(value) == as_tuple(fixed) or (fixed is None and value is False)


def _check_tune(tune: str) -> str:
    if not re.fullmatch(r"full|head|lora|probe|last:[1-9][0-9]{0,3}", tune):
        raise ValueError("must be full, head, last:N with a number of blocks N, lora or probe")
    return tune


UNTUNED: Mapping[str, Any] = {"tune": "full", "freeze_backbone": False}  # of a model that is not trained


class Lora(Section):
    """Low-rank adapters, for TUNE lora."""

    rank: int = option(8, "rank of an adapter: the rows of A, the columns of B", ge=1)
    alpha: float = option(16.0, "an adapter adds ALPHA / RANK * B A to the weight of its layer", gt=0)
    targets: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(as_names)] | None = option(
        None, "linear layers with adapters: paths or their ends, as [qkv, mlp.fc1]; null: all inside blocks"
    )
    dropout: float = option(
        0.0, "dropout rate of the inputs of A; one mask for all tokens of a forward pass", ge=0, lt=1
    )


class Model(Section):
    type: str = "vit"
    name: Name = option("vit", "name in the log; for TYPE timm: timm's, hf-hub:ORG/NAME or local-dir:FOLDER")
    resume: OptionalPath = option(None, "checkpoint to resume (the whole state): a file, a run folder, or auto")
    pretrained: OptionalPath = option(
        None, "initial weights: a file, an hf folder, hf-hub:ORG/NAME; for TYPE timm also 'timm'"
    )
    weights_entry: Name | None = option(
        None,
        "weights to read of a file with several, also a teacher's: raw, average, or the name of an entry or a prefix; "
        "null: the average, but the raw weights to evaluate another program's file",
    )
    num_classes: int | None = option(
        None, "number of classes; null: as many as the data has, for imagenet2012 always 1000", ge=1
    )
    tune: Annotated[str, AfterValidator(_check_tune)] = option(
        "full", "what is trained besides the head: full, head (nothing), last:N (blocks), lora, probe"
    )
    features: Literal["pre_logits", "token", "avg", "token_avg"] = option(
        "pre_logits",
        "input of the head, and output of -embed; pre_logits: the model's own; of a ViT also token: the class token; "
        "avg: the average of the patch tokens; token_avg: both",
    )
    lora: Lora = Lora()
    freeze_backbone: bool = option(False, "PaddleViT's key of TUNE head")
    dropout: Probability = option(0.0, "dropout rate after the position embedding and the projections")
    attention_dropout: Probability = option(0.0, "dropout rate of the attention weights")
    droppath: Probability = option(
        0.0, "drop-path rate of the last block, linear from 0 (CaiT, XCiT, CoaT, LeViT, MLPs: of all)"
    )
    grad_checkpointing: bool = option(
        False, "recompute activations in the backward pass: less memory, about a third more computation"
    )
    attention: Literal["auto", "fused", "cudnn", "explicit"] = option(
        "auto", "fused: torch chooses the kernel; cudnn; explicit: softmax(q k^T) v; auto: fused only on a GPU"
    )
    channels_last: Literal["auto"] | bool = option(
        "auto",
        "NHWC memory format of weights and images; auto: on a GPU, for models with convolutions beyond the patch "
        "embedding, unless they are sharded or in O3",
    )

    @property
    def tuned(self) -> str:
        """The trained part: `tune`, or PaddleViT's key of it."""
        return "head" if self.freeze_backbone else self.tune

    @property
    def num_logits(self) -> int:
        """The width of the head: NUM_CLASSES, or 1000 if the model is built without data."""
        return IMAGENET_CLASSES if self.num_classes is None else self.num_classes

    @property
    def image_size_multiple(self) -> int:
        """The height and width of the images must be a multiple of this number of pixels."""
        return 1

    @model_validator(mode="before")
    @classmethod
    def _remove_fixed_keys(cls, values: Any) -> Any:
        return without_fixed_keys(values, cls.model_fields["type"].default)

    @model_validator(mode="after")
    def _check_frozen(self) -> "Model":
        if self.freeze_backbone and self.tune not in ("full", "head"):
            raise ValueError(f"FREEZE_BACKBONE is TUNE=head, not TUNE={self.tune}; remove one of them")
        return self

    @field_validator("type", mode="before")
    @classmethod
    def _in_lower_case(cls, name: object) -> object:
        return name.lower() if isinstance(name, str) else name
