"""CrossViT (Chen et al., 2021): two branches with patches of two sizes, which exchange their class tokens."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from configs.schema.data import Data
from configs.schema.families.family import DROPOUTS, TRANSFORMER, Family, arguments, family_defaults, per_stage
from configs.schema.families.vit import UnusedAttentionKeys
from configs.schema.section import Counts, Floats


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


_Stages = Annotated[
    tuple[tuple[Annotated[int, Field(ge=0)], ...], ...], Field(min_length=1), BeforeValidator(_as_tuples)
]


class CrossViT(UnusedAttentionKeys):
    type: Literal["crossvit"] = "crossvit"
    img_size: Counts = per_stage((240, 224), "height and width of each branch's input, to which it is resized")
    patch_size: Counts = per_stage((12, 16), "height and width of a patch of each branch, pixels")
    embed_dim: Counts = per_stage((384, 768), "channels of a token of each branch")
    num_heads: Counts = per_stage((12, 12), "attention heads of each branch")
    depth: _Stages = Field(
        ((1, 4, 0), (1, 4, 0), (1, 4, 0)),
        description="for each stage: blocks of each branch, and of the exchange (0: one attention without MLP)",
    )
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")
    mlp_ratio: Floats = per_stage((4, 4, 1), "hidden channels of the MLP / channels: each branch, the exchange")
    multi_conv: bool = Field(False, description="three convolutions as patch embedding")
    hybrid_backbone: None = Field(None, description="PaddleViT's T2T backbone: fails in PaddleViT")

    @model_validator(mode="after")
    def _check(self) -> "CrossViT":
        for size, patch_size in zip(self.img_size, self.patch_size, strict=True):
            if size % patch_size:
                raise ValueError(
                    f"IMG_SIZE {size} is not a multiple of its PATCH_SIZE {patch_size}; change one of them"
                )
        for stage in self.depth:
            if len(stage) != 3:
                raise ValueError(f"DEPTH {list(stage)} of a stage must have three values: each branch, the exchange")
        return self


def _arguments(model: CrossViT, data: Data) -> dict[str, Any]:
    first, second = model.img_size
    # timm truncates the product with img_size
    sizes = {"img_size": first, "img_scale": (1.0, (second + 0.5) / first)}
    return arguments(*TRANSFORMER, "multi_conv", dropout=DROPOUTS)(model, data) | sizes


CROSSVIT = Family(
    "CrossViT",
    CrossViT,
    timm="crossvit_tiny_240",
    arguments=_arguments,
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"END_LR": 1e-5}),
    renames=[(r"^(pos_embed|cls_token)\.(\d)$", r"\1_\2"), (r"\.attn\.out\.", ".attn.proj.")],
    norm_eps={r"blocks\.\d+\.revert_projs\.\d+\.0": 1e-5},
)
