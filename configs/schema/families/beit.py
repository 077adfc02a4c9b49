"""BEiT (Bao et al., 2021), for fine-tuning: relative position bias, layer scale, averaged patches."""

from typing import Literal

from pydantic import Field

from configs.schema.families.family import DROPOUTS, HALF, TRANSFORMER, Family, arguments, family_defaults
from configs.schema.families.vit import PlainTransformer, UnusedAttentionKeys


class BEiT(PlainTransformer, UnusedAttentionKeys):
    type: Literal["beit"] = "beit"
    vae_type: Literal["dall-e"] = Field("dall-e", description="tokenizer of the pre-training: not used")
    use_abs_pos_emb: bool = Field(False, description="a learned position embedding")
    use_rel_pos_bias: bool = Field(True, description="a relative position bias in each block")
    init_values: float = Field(1e-4, gt=0, description="initial value of the layer scale")


BEIT = Family(
    "BEiT",
    BEiT,
    timm="beit_base_patch16_224",
    arguments=arguments(*TRANSFORMER, "use_abs_pos_emb", "use_rel_pos_bias", "init_values", dropout=DROPOUTS),
    defaults=family_defaults(
        data=HALF,
        model={"DROPPATH": 0.1},
        train={
            "NUM_EPOCHS": 100,
            "WARMUP_EPOCHS": 20,
            "BASE_LR": 4e-3,
            "WARMUP_START_LR": 0.0,
            "END_LR": 1e-6,
            "LAYER_DECAY": 0.65,
            "MODEL_EMA": True,
            "MODEL_EMA_DECAY": 0.9999,
        },
    ),
    dropped=[r".*\.relative_position_index"],
    corrections=["MODEL.DROPPATH, DROPOUT and ATTENTION_DROPOUT have an effect; PaddleViT's BEiT ignores them"],
)
