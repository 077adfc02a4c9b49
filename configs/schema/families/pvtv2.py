"""PVT v2 (Wang et al., 2021): spatially reduced attention, convolutions in the patch embeddings and MLPs."""

from typing import Literal

from pydantic import Field

from configs.schema.families.family import Family, arguments, family_defaults, per_stage, shifted
from configs.schema.model import Model
from configs.schema.section import Counts, Floats


class PVTv2(Model):
    type: Literal["pvtv2"] = "pvtv2"
    patch_size: Literal[4] = Field(4, description="no effect: the first convolution is 7x7 with stride 4")
    embed_dim: Counts = per_stage((32, 64, 160, 256), "channels of each stage")
    num_heads: Counts = per_stage((1, 2, 5, 8), "attention heads of each stage")
    attn_head_size: None = Field(None, description="no effect: a head has EMBED_DIM / NUM_HEADS channels")
    stage_depth: Counts = per_stage((2, 2, 2, 2), "blocks of each stage")
    qk_scale: None = Field(None, description="PaddleViT's custom attention scale: not in timm")
    qkv_bias: bool = Field(True, description="bias in the query, key and value projections")
    mlp_ratio: Floats = per_stage((8.0, 8.0, 4.0, 4.0), "hidden channels of the MLP / channels, of each stage")
    sr_ratio: Counts = per_stage((8, 4, 2, 1), "keys and values: side of the map / side after the reduction")
    linear: bool | None = Field(None, description="keys and values: always pooled to 7x7 (PVT v2 Linear); null: false")


PVTV2 = Family(
    "PVT v2",
    PVTv2,
    timm="pvt_v2_b0",
    arguments=arguments(
        *("num_heads", "qkv_bias", "linear"),
        embed_dims="embed_dim",
        depths="stage_depth",
        mlp_ratios="mlp_ratio",
        sr_ratios="sr_ratio",
        dropout=["proj_drop_rate"],
    ),
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
