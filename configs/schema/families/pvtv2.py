"""PVT v2 (Wang et al., 2021): spatially reduced attention, convolutions in the patch embeddings and MLPs."""

from typing import Any, Literal

from pydantic import Field, model_validator

from configs.schema.data import Data
from configs.schema.families.defaults import family_defaults
from configs.schema.families.family import Family, shifted
from configs.schema.families.lists import Counts, check_divisible, check_lengths
from configs.schema.model import Model
from configs.schema.section import Floats


class PVTv2(Model):
    type: Literal["pvtv2"] = "pvtv2"
    patch_size: Literal[4] = Field(4, description="no effect: the first convolution is 7x7 with stride 4")
    embed_dim: Counts = Field((32, 64, 160, 256), description="channels of each stage")
    num_heads: Counts = Field((1, 2, 5, 8), description="attention heads of each stage")
    attn_head_size: None = Field(None, description="no effect: a head has EMBED_DIM / NUM_HEADS channels")
    stage_depth: Counts = Field((2, 2, 2, 2), description="blocks of each stage")
    qk_scale: None = Field(None, description="PaddleViT's custom attention scale: not in timm")
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")
    mlp_ratio: Floats = Field((8.0, 8.0, 4.0, 4.0), description="hidden channels of the MLP / channels, of each stage")
    sr_ratio: Counts = Field((8, 4, 2, 1), description="keys and values: side of the map / side after the reduction")
    linear: bool | None = Field(None, description="keys and values: always pooled to 7x7 (PVT v2 Linear); null: false")

    @model_validator(mode="after")
    def _check(self) -> "PVTv2":
        check_lengths(self, "EMBED_DIM", "NUM_HEADS", "STAGE_DEPTH", "MLP_RATIO", "SR_RATIO", length=4)
        check_divisible(self, "EMBED_DIM", "NUM_HEADS")
        return self

    def image_size_problem(self, image_size: int) -> str | None:
        side = -(-image_size // 4)
        for stage, ratio in enumerate(self.sr_ratio, start=1):
            if not self.linear and side < ratio:
                return f"gives a map of {side}x{side} in stage {stage}, smaller than MODEL.SR_RATIO {ratio}"
            side = -(-side // 2)
        return None


def _arguments(model: PVTv2, data: Data) -> dict[str, Any]:
    return {
        "embed_dims": model.embed_dim,
        "depths": model.stage_depth,
        "num_heads": model.num_heads,
        "mlp_ratios": model.mlp_ratio,
        "sr_ratios": model.sr_ratio,
        "qkv_bias": model.qkv_bias,
        "proj_drop_rate": model.dropout,
        "drop_rate": 0.0,
        "linear": bool(model.linear),
    }


PVTV2 = Family(
    "PVT v2",
    PVTv2,
    timm="pvt_v2_b0",
    arguments=_arguments,
    defaults=family_defaults(model={"DROPPATH": 0.1}, train={"END_LR": 1e-5}),
    renames=[
        (r"^patch_embedding1\.patch_embed\.", "patch_embed.proj."),
        (r"^patch_embedding1\.norm\.", "patch_embed.norm."),
        (r"^patch_embedding(\d)\.patch_embed\.", shifted("stages.", ".downsample.proj.", by=-1)),
        (r"^patch_embedding(\d)\.norm\.", shifted("stages.", ".downsample.norm.", by=-1)),
        (r"^block(\d)\.", shifted("stages.", ".blocks.", by=-1)),
        (r"^norm(\d)\.", shifted("stages.", ".norm.", by=-1)),
        (r"\.dwconv\.dwconv\.", ".dwconv."),
    ],
    norm_eps={r"(.*\.)?norm[12]?": 1e-6},
)
