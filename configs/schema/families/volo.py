"""VOLO (Yuan et al., 2021): outlook attention, then self-attention, then class attention; an auxiliary head."""

from typing import Literal

from pydantic import Field

from configs.schema.families.family import Family, arguments, family_defaults, per_stage
from configs.schema.model import Model
from configs.schema.section import Bools, Counts, Floats, Section


class Trans(Section):
    patch_size: int = Field(32, description="not used: a patch is 8 x 8 pixels")
    layers: Counts = per_stage((12, 12, 20, 4), "blocks of each stage")
    embed_dims: Counts = per_stage((384, 768, 768, 768), "channels of each stage")
    num_heads: Counts = per_stage((12, 16, 16, 16), "attention heads of each stage")
    mlp_ratios: Floats = per_stage((4, 4, 4, 4), "hidden channels of the MLP / channels, of each stage")
    downsamples: Bools = per_stage((True, False, False, False), "halve height and width after the stage")
    outlook_attention: Bools = per_stage((True, False, False, False), "outlook attention in the stage")
    qkv_bias: bool = Field(False, description="bias in the query, key and value projections")
    qk_scale: Literal[False] | None = Field(None, description="PaddleViT's custom attention scale: not in timm")


class VOLO(Model):
    type: Literal["volo"] = "volo"
    stem_hidden_dim: int = Field(128, ge=1, description="channels of the convolutions of the patch embedding")
    trans: Trans = Trans()

    @property
    def image_size_multiple(self) -> int:
        return 16  # patches of 8 pixels, downsampled once


VOLO_FAMILY = Family(
    "VOLO",
    VOLO,
    timm="timm.models.volo:VOLO",
    arguments=arguments(
        *("img_size", "stem_hidden_dim", "trans.layers", "trans.num_heads", "trans.embed_dims", "trans.downsamples"),
        *("trans.outlook_attention", "trans.qkv_bias"),
        mlp_ratio="trans.mlp_ratios",
        dropout=["pos_drop_rate"],
    ),
    defaults=family_defaults(train={"WARMUP_EPOCHS": 3, "BASE_LR": 1e-3, "END_LR": 1e-5, "LINEAR_SCALED_LR": 128}),
    renames=[
        (r"^patch_embed\.stem\.", "patch_embed.conv."),
        (r"^model\.", "network."),
        (r"^post_model\.", "post_network."),
    ],
    corrections=[
        "the default of TRAIN.END_LR is 1e-5, as in VOLO's own code; PaddleViT's, written 53-4, is 49",
        "MODEL.NUM_CLASSES, DROPPATH, DROPOUT and ATTENTION_DROPOUT have an effect; PaddleViT's VOLO ignores them and "
        "has 1000 classes",
    ],
)
