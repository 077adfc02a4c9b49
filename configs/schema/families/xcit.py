"""XCiT (El-Nouby et al., 2021): attention between channels, local convolutions, class attention at the end."""

from typing import Literal

from pydantic import Field

from configs.schema.families.family import DROPOUTS, TRANSFORMER, Family, arguments, family_defaults
from configs.schema.families.vit import PlainTransformer, UnusedAttentionKeys


class XCiT(PlainTransformer, UnusedAttentionKeys):
    type: Literal["xcit"] = "xcit"
    patch_size: Literal[8, 16] = Field(16, description="height and width of a patch, pixels")
    embed_dim: int = Field(128, ge=1, description="channels of a token")
    num_heads: int = Field(4, ge=1, description="attention heads per block")
    eta: float = Field(1.0, gt=0, description="initial value of the layer scale")
    tokens_norm: bool = Field(False, description="norm of all tokens, not of the class token only, in the last blocks")
    cls_attn_layers: int = Field(2, ge=1, description="number of blocks with class attention")
    use_pos: bool = Field(True, description="a position embedding of sines and cosines")


XCIT = Family(
    "XCiT",
    XCiT,
    timm="xcit_nano_12_p16_224",
    arguments=arguments(
        *TRANSFORMER, "eta", "tokens_norm", "cls_attn_layers", use_pos_embed="use_pos", dropout=DROPOUTS
    ),
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"END_LR": 1e-5}),
    teacher_distils=True,
    renames=[(r"^pos_embeder\.", "pos_embed.")],
    split={r"(cls_attn_blocks\.\d+\.attn\.)qkv(\..*)": ("q", "k", "v")},
)
