"""CrossViT (Chen et al., 2021): two branches with patches of two sizes, which exchange their class tokens."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family, transformer_arguments
from configs.schema.families.lists import Counts, check_divisible, check_lengths
from configs.schema.families.vit import UnusedAttentionKeys
from configs.schema.section import Floats


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


_Stages = Annotated[
    tuple[tuple[Annotated[int, Field(ge=0)], ...], ...], Field(min_length=1), BeforeValidator(_as_tuples)
]


class CrossViT(UnusedAttentionKeys):
    type: Literal["crossvit"] = "crossvit"
    img_size: Counts = Field((240, 224), description="height and width of each branch's input, to which it is resized")
    patch_size: Counts = Field((12, 16), description="height and width of a patch of each branch, pixels")
    embed_dim: Counts = Field((384, 768), description="channels of a token of each branch")
    num_heads: Counts = Field((12, 12), description="attention heads of each branch")
    depth: _Stages = Field(
        ((1, 4, 0), (1, 4, 0), (1, 4, 0)),
        description="for each stage: blocks of each branch, and of the exchange (0: one attention without MLP)",
    )
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")
    mlp_ratio: Floats = Field((4, 4, 1), description="hidden channels of the MLP / channels: each branch, the exchange")
    multi_conv: bool = Field(False, description="three convolutions as patch embedding")
    hybrid_backbone: None = Field(None, description="PaddleViT's T2T backbone: fails in PaddleViT")

    @model_validator(mode="after")
    def _check(self) -> "CrossViT":
        check_lengths(self, "IMG_SIZE", "PATCH_SIZE", "EMBED_DIM", "NUM_HEADS", length=2)
        if len(self.mlp_ratio) != 3:
            raise ValueError(f"MLP_RATIO has {len(self.mlp_ratio)} values; give three: each branch, and the exchange")
        check_divisible(self, "EMBED_DIM", "NUM_HEADS")
        if self.multi_conv and not {*self.patch_size} <= {12, 16}:
            raise ValueError(f"PATCH_SIZE {list(self.patch_size)} must be of 12 and 16 with MULTI_CONV")
        for stage in self.depth:
            if len(stage) != 3 or not any(stage):
                raise ValueError(
                    f"DEPTH {list(stage)} of a stage must have three values (each branch, the exchange), not all 0"
                )
        check_divisible(self, "IMG_SIZE", "PATCH_SIZE")
        return self


def _arguments(model: CrossViT, data: Data) -> dict[str, Any]:
    first, second = model.img_size
    return transformer_arguments(model, data) | {
        "img_size": first,
        "img_scale": (1.0, (second + 0.5) / first),  # timm truncates the product with img_size
        "multi_conv": model.multi_conv,
    }


CROSSVIT = Family(
    "CrossViT",
    CrossViT,
    timm="crossvit_tiny_240",
    arguments=_arguments,
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"END_LR": 1e-5}),
    renames=[(r"^(pos_embed|cls_token)\.(\d)$", r"\1_\2"), (r"\.attn\.out\.", ".attn.proj.")],
    norm_eps={r"blocks\.\d+\.revert_projs\.\d+\.0": 1e-5},
)
