"""CaiT (Touvron et al., 2021): talking heads, layer scale, and blocks that update the class token only."""

from typing import Literal

from pydantic import Field

from configs.schema.families.family import DROPOUTS, TRANSFORMER, Family, arguments, family_defaults
from configs.schema.families.vit import PlainTransformer, UnusedAttentionKeys


class CaiT(PlainTransformer, UnusedAttentionKeys):
    type: Literal["cait"] = "cait"
    init_values: float = Field(1e-4, gt=0, description="initial value of the layer scale")
    depth_token_only: int = Field(2, ge=1, description="number of blocks that update the class token only")


CAIT = Family(
    "CaiT",
    CaiT,
    timm="cait_xxs24_224",
    arguments=arguments(
        *TRANSFORMER, "init_values", "depth_token_only", dropout=DROPOUTS, mlp_ratio_token_only="mlp_ratio"
    ),
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"MODEL_EMA": True, "MODEL_EMA_DECAY": 0.99996}),
    renames=[(r"^patch_embed\.patch_embed\.", "patch_embed.proj.")],
)
