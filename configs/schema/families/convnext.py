"""ConvNeXt (Liu et al., 2022)."""

from typing import Literal

from pydantic import Field

from configs.schema.families.family import Family, arguments, family_defaults, per_stage
from configs.schema.model import Model
from configs.schema.section import Counts


class ConvNeXt(Model):
    type: Literal["convnext"] = "convnext"
    patch_size: int = Field(4, ge=1, description="height and width of a patch, pixels")
    output_stride: Literal[32] = Field(32, description="no effect: dilation is not in PaddleViT")
    depths: Counts = per_stage((3, 3, 9, 3), "blocks of each of the 4 stages")
    dims: Counts = per_stage((96, 192, 384, 768), "channels of each stage")
    head_norm_first: Literal[False] = Field(False, description="norm before the pooling: no weights were verified")
    conv_mlp: Literal[False] = Field(False, description="MLPs as 1x1 convolutions: no weights were verified")
    stem_type: Literal["patch"] = Field("patch", description="PaddleViT's other stem, 'dual', is not in timm")


CONVNEXT = Family(
    "ConvNeXt",
    ConvNeXt,
    timm="convnext_tiny",
    arguments=arguments("depths", "dims", "patch_size"),
    defaults=family_defaults(
        train={"WARMUP_EPOCHS": 20, "BASE_LR": 4e-3, "END_LR": 1e-5, "MODEL_EMA": True, "MODEL_EMA_DECAY": 0.9999}
    ),
)
