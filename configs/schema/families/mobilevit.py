"""MobileViT (Mehta and Rastegari, 2021)."""

from typing import Literal

from pydantic import Field, model_validator

from configs.schema.families.family import MOBILE_TRAINING, Family, arguments, family_defaults, per_stage, shifted
from configs.schema.model import Model
from configs.schema.section import Counts

DEPTHS = (2, 4, 3)


class MobileViT(Model):
    type: Literal["mobilevit"] = "mobilevit"
    patch_size: Literal[2] = Field(2, description="height and width of a patch, pixels of the feature map: always 2")
    dims: Counts = per_stage(
        (16, 32, 48, 48, 48, 64, 80, 96, 384),
        "channels of the stem, of the 7 inverted residuals, and of the last convolution; multiples of 8",
    )
    hidden_dims: Counts = per_stage((96, 120, 144), "channels of the 3 transformers; multiples of 8")
    depths: Counts = per_stage(DEPTHS, "blocks of the 3 transformers: always (2, 4, 3)")
    num_heads: Literal[8] = Field(8, description="attention heads: always 8")
    mlp_ratio: float = Field(2.0, ge=2, le=2, description="hidden channels of the MLP / channels: always 2")
    qkv_bias: Literal[True] = Field(True, description="bias in the query, key and value projections: always")
    qk_scale: None = Field(None, description="no effect")

    @model_validator(mode="after")
    def _check(self) -> "MobileViT":
        for key, values in {"DIMS": self.dims, "HIDDEN_DIMS": self.hidden_dims}.items():
            if any(value % 8 for value in values):
                raise ValueError(f"{key} has a value that is not a multiple of 8; change it")
        if self.depths != DEPTHS:
            raise ValueError("DEPTHS has no effect in PaddleViT, which builds (2, 4, 3); remove it")
        return self

    @property
    def image_size_multiple(self) -> int:
        return 64


_RESIDUALS = {"1": "0.0", "2": "1.0", "3": "1.1", "4": "1.2", "5": "2.0", "6": "3.0", "7": "4.0"}
_LAYERS = {"0": "conv1_1x1", "1": "conv2_kxk", "2": "conv3_1x1.conv", "3": "conv3_1x1.bn"}
_CONVOLUTIONS = {"1": "conv_kxk", "2": "conv_1x1", "3": "conv_proj", "4": "conv_fusion"}

MOBILEVIT = Family(
    "MobileViT",
    MobileViT,
    timm="models.families.mobilevit:mobilevit",
    arguments=arguments("dims", "depths", transformer_dims="hidden_dims"),
    defaults=family_defaults(data={"CROP_PCT": 0.9}, train=MOBILE_TRAINING),
    renames=[
        (r"^mv2_block_([1-7])\.conv\.([0-3])\.", lambda match: f"stages.{_RESIDUALS[match[1]]}.{_LAYERS[match[2]]}."),
        (r"^mvit_block_(\d)\.", shifted("stages.", ".1.", by=1)),
        (r"^(stages\.\d\.1)\.transformer\.norm\.", r"\1.norm_."),
        (r"\.transformer\.layers\.", ".transformer."),
        (r"\.attn_norm\.", ".norm1."),
        (r"\.mlp_norm\.", ".norm2."),
        (r"^(stages\.\d\.1)\.conv([1-4])\.", lambda match: f"{match[1]}.{_CONVOLUTIONS[match[2]]}."),
        (r"^conv3x3\.", "stem."),
        (r"^conv1x1\.", "final_conv."),
        (r"^linear\.", "head.fc."),
        (r"\.norm\.", ".bn."),
        (r"\.norm_\.", ".norm."),
    ],
    norm_eps={r"stages\.\d\.1\.norm": 1e-6},
    differs="a batch norm and an activation follow the second convolution of a block, as in PaddleViT",
)
