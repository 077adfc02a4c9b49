"""DeiT (Touvron et al., 2020): ViT with ImageNet's normalization, and a second head if it is distilled."""

from typing import Literal

from pydantic import Field

from configs.schema.families.family import DROPOUTS, TRANSFORMER, Family, arguments, family_defaults
from configs.schema.families.vit import PlainTransformer


class DeiT(PlainTransformer):
    type: Literal["deit"] = "deit"
    distilled: bool = Field(True, description="a distillation token and head; default: DISTILLATION_TYPE is not none")


RENAMES = (
    (r"^position_embedding$", "pos_embed"),
    (r"^patch_embedding\.patch_embedding\.", "patch_embed.proj."),
    (r"^encoder\.layers\.", "blocks."),
    (r"\.attn_norm\.", ".norm1."),
    (r"\.mlp_norm\.", ".norm2."),
    (r"\.attn\.out\.", ".attn.proj."),
    (r"^encoder\.encoder_norm\.", "norm."),
    (r"^classifier_dist\.", "head_dist."),
    (r"^classifier\.", "head."),
)
DEIT = Family(
    "DeiT",
    DeiT,
    timm=lambda model: "deit_tiny_distilled_patch16_224" if model.distilled else "deit_tiny_patch16_224",
    arguments=arguments(*TRANSFORMER, dropout=DROPOUTS),
    defaults=family_defaults(train={"MODEL_EMA": True, "MODEL_EMA_DECAY": 0.99996, "DISTILLATION_TYPE": "hard"}),
    renames=RENAMES,
)
