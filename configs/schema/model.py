"""The section MODEL."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from configs.section import Path, Probability, Section

IMAGENET_CLASSES = 1000
# Keys of the architecture that describe TYPE vit and no other.
VIT_KEYS = (
    "PATCH_SIZE", "EMBED_DIM", "NUM_HEADS", "ATTN_HEAD_SIZE", "DEPTH", "MLP_RATIO", "QKV_BIAS", "GLOBAL_POOL",
    "POS_EMBED",
)  # fmt: skip


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
    num_classes: int | None = Field(
        None, ge=1, description="number of classes; null: that of the data, for imagenet2012 always 1000"
    )
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
    global_pool: Literal["token", "avg"] = Field(
        "token", description="input of the head: the class token, or the mean of the patches (without a class token)"
    )
    pos_embed: Literal["learned", "sincos2d"] = Field(
        "learned", description="position embedding: learned, or fixed sines and cosines"
    )

    @property
    def num_logits(self) -> int:
        """The width of the head: NUM_CLASSES, or 1000 if the model is built without data."""
        return IMAGENET_CLASSES if self.num_classes is None else self.num_classes

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
            raise ValueError(f"TYPE: {values['TYPE'][:80]} is not available yet; use vit or timm")
        return values

    @model_validator(mode="after")
    def _check(self) -> "Model":
        if self.type == "timm":
            for key in VIT_KEYS:
                if getattr(self, key.lower()) != type(self).model_fields[key.lower()].default:
                    raise ValueError(f"{key} does not apply to TYPE timm; remove it")
        if self.type == "vit" and self.attn_head_size is None and self.embed_dim % self.num_heads:
            raise ValueError(
                f"EMBED_DIM {self.embed_dim} is not a multiple of NUM_HEADS {self.num_heads}; "
                "change one of them or set ATTN_HEAD_SIZE"
            )
        if self.pos_embed == "sincos2d" and self.embed_dim % 4:
            raise ValueError(f"POS_EMBED sincos2d needs an EMBED_DIM that is a multiple of 4, not {self.embed_dim}")
        return self
