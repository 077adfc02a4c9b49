"""VOLO (Yuan et al., 2021): outlook attention, then self-attention, then class attention; an auxiliary head."""

from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family
from configs.schema.families.lists import Counts, check_divisible, check_lengths
from configs.schema.model import Model
from configs.schema.section import Bools, Floats, Section


class Trans(Section):
    patch_size: int = Field(32, description="not used: a patch is 8 x 8 pixels")
    layers: Counts = Field((12, 12, 20, 4), description="blocks of each stage")
    embed_dims: Counts = Field((384, 768, 768, 768), description="channels of each stage")
    num_heads: Counts = Field((12, 16, 16, 16), description="attention heads of each stage")
    mlp_ratios: Floats = Field((4, 4, 4, 4), description="hidden channels of the MLP / channels, of each stage")
    downsamples: Bools = Field((True, False, False, False), description="halve height and width after the stage")
    outlook_attention: Bools = Field((True, False, False, False), description="outlook attention in the stage")
    qkv_bias: bool = Field(False, description="bias in the query, key and value projections")
    qk_scale: Literal[False] | None = Field(None, description="PaddleViT's custom attention scale: not in timm")

    @model_validator(mode="after")
    def _check(self) -> "Trans":
        check_lengths(self, "LAYERS", "EMBED_DIMS", "NUM_HEADS", "MLP_RATIOS", "DOWNSAMPLES", "OUTLOOK_ATTENTION")
        check_divisible(self, "EMBED_DIMS", "NUM_HEADS")
        if sum(self.downsamples) != 1 or self.downsamples[-1]:
            raise ValueError("DOWNSAMPLES must be true once, before the last stage: the position embedding requires it")
        for (before, after), downsamples in zip(pairwise(self.embed_dims), self.downsamples, strict=False):
            if before != after and not downsamples:
                raise ValueError(f"EMBED_DIMS {before} to {after}: the channels change only where DOWNSAMPLES is true")
        return self


class VOLO(Model):
    type: Literal["volo"] = "volo"
    stem_hidden_dim: int = Field(128, ge=1, description="channels of the convolutions of the patch embedding")
    trans: Trans = Trans()

    def image_size_problem(self, image_size: int) -> str | None:
        return "is not a multiple of 16: patches of 8 pixels, downsampled once" if image_size % 16 else None


def _arguments(model: VOLO, data: Data) -> dict[str, Any]:
    return {
        "img_size": data.image_size,
        "patch_size": 8,
        "stem_hidden_dim": model.stem_hidden_dim,
        "layers": model.trans.layers,
        "embed_dims": model.trans.embed_dims,
        "num_heads": model.trans.num_heads,
        "mlp_ratio": model.trans.mlp_ratios,
        "downsamples": model.trans.downsamples,
        "outlook_attention": model.trans.outlook_attention,
        "qkv_bias": model.trans.qkv_bias,
        "pos_drop_rate": model.dropout,
        "drop_rate": 0.0,
    }


VOLO_FAMILY = Family(
    "VOLO",
    VOLO,
    timm="timm.models.volo:VOLO",
    arguments=_arguments,
    defaults=family_defaults(
        train={"WARMUP_EPOCHS": 3, "BASE_LR": 1e-3, "END_LR": 1e-5, "LINEAR_SCALED_LR": 128},
    ),
    renames=[
        (r"^patch_embed\.stem\.", "patch_embed.conv."),
        (r"^model\.", "network."),
        (r"^post_model\.", "post_network."),
    ],
    paddle_classes=1000,
    corrections=[
        "the default of TRAIN.END_LR is 1e-5, as in VOLO's own code; PaddleViT's, written 53-4, is 49",
        "MODEL.NUM_CLASSES, DROPPATH, DROPOUT and ATTENTION_DROPOUT have an effect; PaddleViT's VOLO ignores them and "
        "has 1000 classes",
    ],
)
