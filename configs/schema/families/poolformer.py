"""PoolFormer (Yu et al., 2022): average pooling in place of attention."""

from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from configs.schema.families.family import Family, arguments, family_defaults, per_stage
from configs.schema.model import Model
from configs.schema.section import Bools, Counts, Floats


class PoolFormer(Model):
    type: Literal["poolformer"] = "poolformer"
    layers: Counts = per_stage((2, 2, 6, 2), "blocks of each stage")
    embed_dims: Counts = per_stage((64, 128, 320, 512), "channels of each stage")
    downsamples: Bools = Field((True,) * 4, description="a convolution of stride 2 after each stage: always true")
    mlp_ratios: Floats = Field((4.0,) * 4, description="hidden channels of the MLP / channels: 4 in timm")
    layer_scale_init_value: float = Field(1e-5, gt=0, description="initial value of the layer scale")

    @model_validator(mode="after")
    def _check(self) -> "PoolFormer":
        if any(one == other for one, other in pairwise(self.embed_dims)):
            raise ValueError("EMBED_DIMS has two equal values in a row: timm then does not downsample; change one")
        if not all(self.downsamples):
            raise ValueError("DOWNSAMPLES must be true in all stages: timm has no others")
        if set(self.mlp_ratios) != {4.0}:
            raise ValueError("MLP_RATIOS must be 4 in all stages: timm has no others")
        return self


POOLFORMER = Family(
    "PoolFormer",
    PoolFormer,
    timm="models.families.poolformer:poolformer",
    arguments=arguments(depths="layers", dims="embed_dims", layer_scale_init_values="layer_scale_init_value"),
    defaults=family_defaults(train={"BASE_LR": 1e-3, "END_LR": 1e-5, "LINEAR_SCALED_LR": 1024}),
    renames=[
        (r"^patch_embed\.proj\.", "stem.conv."),
        (r"^network\.(\d+)\.proj\.", lambda match: f"stages.{(int(match[1]) + 1) // 2}.downsample.conv."),
        (r"^network\.(\d+)\.(\d+)\.", lambda match: f"stages.{int(match[1]) // 2}.blocks.{match[2]}."),
        (r"\.layer_scale_(\d)$", r".layer_scale\1.scale"),
        (r"^norm\.", "head.norm."),
        (r"^head\.(weight|bias)$", r"head.fc.\1"),
    ],
    differs="a group norm before the pooling, as in PaddleViT, in place of a layer norm after it",
)
