"""XCiT (El-Nouby et al., 2021): attention between channels, local convolutions, class attention at the end."""

from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family, transformer_arguments
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

    @model_validator(mode="after")
    def _check_stem(self) -> "XCiT":
        divisor = self.patch_size // 2
        if self.embed_dim % divisor:
            raise ValueError(
                f"EMBED_DIM {self.embed_dim} must be a multiple of {divisor}: the convolutions before the blocks "
                f"double the channels until PATCH_SIZE {self.patch_size} is reached"
            )
        return self


def _arguments(model: XCiT, data: Data) -> dict[str, Any]:
    return transformer_arguments(model, data) | {
        "eta": model.eta,
        "tokens_norm": model.tokens_norm,
        "cls_attn_layers": model.cls_attn_layers,
        "use_pos_embed": model.use_pos,
    }


XCIT = Family(
    "XCiT",
    XCiT,
    timm="xcit_nano_12_p16_224",
    arguments=_arguments,
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"END_LR": 1e-5}),
    renames=[(r"^pos_embeder\.", "pos_embed.")],
    split={r"(cls_attn_blocks\.\d+\.attn\.)qkv(\..*)": ("q", "k", "v")},
)
